"""Speed of meta-training and testing, as ratios to the backbone alone.

    python benchmarks/speed.py [--device cpu]
    python benchmarks/speed.py --methods all [--device cpu]

The floor is forward, backward and optimiser step of the same network on the same number of prepared images; on a GPU it
is compiled, in bfloat16 and a CUDA graph. A training step adds gathering, augmentation, Gaussian process and EMA.
Images are random noise: their content does not change the work. With --methods: the step of each method on characters,
5-way 1-shot, and MAML also against a plain loop over its tasks and inner steps.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from _common import save, table
from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.methods import METHODS
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.training import build_method, build_preprocess
from mirrorshot.training.build import (
    backbone_name,
    build_stream,
    is_pretrained,
    place_method,
    resolve_options,
    training_sampler,
)
from mirrorshot.training.config import Config
from mirrorshot.training.learner import Learner
from mirrorshot.training.presets import preset_settings
from mirrorshot.training.stream import NumberedTasks

DATA = {
    "conv4": ("cub", 3, 84, 192),
    "conv4s": ("omniglot_to_emnist", 1, 28, 28),
    "conv4snp": ("omniglot_to_emnist", 1, 28, 28),
}


BOTH = ("paper", "default")
CASES_GPU = {  # shots, tasks per step, presets
    "conv4": ((1, 1, BOTH), (1, 16, ("paper",)), (1, 32, ("paper",)), (5, 1, ("paper",)), (5, 16, ("paper",))),
    "conv4s": ((1, 1, BOTH), (1, 16, ("paper",)), (5, 1, ("paper",))),
}
CASES_CPU = ((1, 1, BOTH), (5, 1, ("paper",)))
CPU_STEPS = {"conv4": 2, "conv4s": 10}


def noise_dataset(backbone: str) -> Dataset:
    """Return random images, stored like CUB (192 x 192, with original sizes) or like the characters."""
    name, channels, size, stored = DATA[backbone]
    generator = torch.Generator().manual_seed(0)
    n = 2000 if backbone == "conv4" else 8000
    pictures = torch.randint(256, (n, channels, stored, stored), dtype=torch.uint8, generator=generator)
    sizes = torch.tensor([[500, 375]]).repeat(n, 1) if backbone == "conv4" else None
    source = ClassSource(pictures, torch.arange(n) % (n // 40), tuple(map(str, range(n // 40))), sizes)
    return Dataset(
        name, source, source, source, size, channels, backbone == "conv4", (0.5,) * channels, (0.3,) * channels
    )


def median_time(run: Callable[[], Any], device: torch.device, n: int) -> float:
    """Return the median seconds of a call, after a warm-up that raises the clock of a GPU."""
    until = time.perf_counter() + (0.2 if device.type == "cuda" else 0.0)
    while time.perf_counter() < until:
        run()
        wait(device)
    times = []
    for _ in range(n):
        wait(device)
        started = time.perf_counter()
        run()
        wait(device)
        times.append(time.perf_counter() - started)
    return float(torch.tensor(times).median())


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def floor(backbone: str, n_pictures: int, device: torch.device, steps: int) -> Callable[[], Any]:
    """Return a function that runs `steps` steps of forward, backward and Adam of the network alone."""
    _, channels, size, _ = DATA[backbone]
    network = make_backbone(backbone, generator=torch.Generator().manual_seed(0)).to(device)
    pictures = torch.randn(n_pictures, channels, size, size, device=device)
    x = pictures.to(memory_format=torch.channels_last)[None]
    network.to(memory_format=torch.channels_last)
    cuda = device.type == "cuda"
    adam = torch.optim.Adam(network.parameters(), lr=1e-3, fused=cuda or None, capturable=cuda)
    if cuda:
        network.compile(dynamic=False)

    def step() -> None:
        adam.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            z = network(x)
        z.float().square().sum().backward()
        adam.step()

    run = recorded(step) if cuda else step
    run()
    return lambda: [run() for _ in range(steps)]


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Record a step as a CUDA graph.

    The graph stores only addresses. The returned function holds `step`, and with it the network, images and optimiser
    whose memory the graph uses.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return functools.partial(_replay, graph, step)


def _replay(graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> None:
    """Run the graph; the argument keeps `step` alive."""
    graph.replay()


def training(config: Config, dataset: Dataset, device: torch.device, steps: int) -> Callable[[], Any]:
    """Return a function that runs `steps` training steps, including the data path."""
    config = resolve_options(config, dataset)
    sampler = training_sampler(config, dataset.train.to(device))
    stream = build_stream(config, dataset, sampler, rank=0, world_size=1)
    method = place_method(build_method(config, dataset), config, device).train()
    if device.type == "cuda":
        method.accelerate()
        stream.compile()
    learner = Learner(method, config, stream)
    block = stream.block(0, steps)
    learner.run(block, 0)
    return lambda: learner.run(block, 0)


def in_turns(first: Callable[[], Any], second: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Return median seconds of two calls, taken in turns so that a change of the machine's speed affects both."""
    pairs = [(median_time(first, device, 1), median_time(second, device, 1)) for _ in range(7)]
    medians = torch.tensor(pairs).median(0).values.tolist()
    return medians[0], medians[1]


def testing(backbone: str, n_shot: int, dataset: Dataset, device: torch.device, n_tasks: int) -> dict[str, float]:
    """Return milliseconds of a test episode of 75 queries: gathering, network and inference to the optimum.

    "anew_ms" passes every image of every episode through the network. "ms", on a GPU only, passes all images once and
    draws episodes of features, as in evaluation.
    """
    config = Config(data=dataset.name, n_shot=n_shot, backbone=backbone).replace(
        **preset_settings("paper", dataset.name, n_shot)
    )
    sampler = EpisodeSampler(evaluation_noise(dataset).to(device), 5, n_shot, 15, seed=0)
    stream = NumberedTasks(sampler, build_preprocess(dataset))
    method = place_method(build_method(config, dataset), config, device).eval()
    if device.type == "cuda":
        method.accelerate()

    at_once = 50 if device.type == "cuda" else 4
    head = method.on_features()

    @torch.no_grad()
    def anew() -> list[Tensor]:
        return [method.predict(stream.tasks(range(i, i + at_once))[0]) for i in range(0, n_tasks, at_once)]

    @torch.no_grad()
    def once() -> list[Tensor]:
        features = torch.cat([method.embed(chunk)[0] for chunk in stream.chunks(20 * at_once)])
        tasks = stream.with_items(features)
        return [head.predict(tasks.tasks(range(i, i + 4 * at_once))[0]) for i in range(0, n_tasks, 4 * at_once)]

    milliseconds = {}
    for key, run in {"anew_ms": anew, "ms": once}.items() if device.type == "cuda" else {"anew_ms": anew}.items():
        run()
        milliseconds[key] = 1e3 * median_time(run, device, 3) / n_tasks
    return milliseconds


def evaluation_noise(dataset: Dataset) -> ClassSource:
    """Return images of the input size of the network, as in evaluation."""
    source = dataset.test
    size = dataset.image_size
    return source._replace(items=source.items[..., :size, :size].contiguous(), sizes=None)


def maml_loop(config: Config, device: torch.device, steps: int) -> float:
    """Return the seconds of a step of second-order MAML as a plain loop over tasks and inner steps."""
    options = config.method_options
    network = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    model = torch.nn.ModuleDict({"network": network, "head": torch.nn.Linear(network.out_features, 5)}).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    support, query = (torch.randn(1, 5 * n, 1, 28, 28, device=device) for n in (1, 16))

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        y = torch.arange(x.shape[1], device=device) % 5
        forward = torch.func.functional_call(network, {k[8:]: w for k, w in weights.items() if k[:8] == "network."}, x)
        logits = torch.nn.functional.linear(forward[0], weights["head.weight"], weights["head.bias"])
        return torch.nn.functional.cross_entropy(logits, y)

    def step() -> None:
        adam.zero_grad()
        total = torch.zeros((), device=device)
        for _ in range(config.tasks_per_step):
            weights = dict(model.named_parameters())
            for _ in range(options["n_steps"]):
                slopes = torch.autograd.grad(loss(weights, support), list(weights.values()), create_graph=True)
                moved = zip(weights.items(), slopes, strict=True)
                weights = {name: w - options["step_size"] * slope for (name, w), slope in moved}
            total = total + loss(weights, query)
        total.backward()
        adam.step()

    step()
    return median_time(lambda: [step() for _ in range(steps)], device, 5) / steps


def measure_methods(names: list[str], device: torch.device) -> None:
    """Measure the training step of each method against its network alone."""
    dataset = noise_dataset("conv4s")
    rows: list[dict[str, Any]] = []
    for name in names:
        torch.compiler.reset()
        settings = preset_settings("default", dataset.name, 1, name)
        config = Config(data=dataset.name).replace(**settings)
        items = config.batch_size if is_pretrained(config) else config.tasks_per_step * 85
        n_steps = 3 if device.type == "cpu" else 20
        base = floor(backbone_name(config, dataset), items, device, n_steps)
        times = in_turns(base, training(config, dataset, device, n_steps), device)
        floor_time, step = (seconds / n_steps for seconds in times)
        speed = {"floor_ms": 1e3 * floor_time, "step_ms": 1e3 * step, "ratio": step / floor_time}
        rows.append({"method": name, "pictures": items, **speed})
        if name == "maml":
            loop = maml_loop(config, device, n_steps)
            rows[-1] |= {"loop_ms": 1e3 * loop, "loop_ratio": step / loop}
        print(rows[-1], flush=True)
        save(f"method_speed_{device.type}", {"rows": rows}, seed=0)
    header = ["method", "pictures a step", "floor, ms", "step, ms", "ratio", "plain loop, ms", "ratio to it"]
    keys = ["method", "pictures", "floor_ms", "step_ms", "ratio", "loop_ms", "loop_ratio"]
    print(table(header, [[cell(row.get(key, "")) for key in keys] for row in rows]))


def measure_objectives(device: torch.device) -> None:
    """Measure the training step of MD-BFSC with objective pl against that with cml, in turns."""
    rows: list[dict[str, Any]] = []
    for backbone, n_shot in itertools.product(("conv4s", "conv4") if device.type == "cuda" else ("conv4s",), (1, 5)):
        dataset = noise_dataset(backbone)
        n_steps = 20 if device.type == "cuda" else CPU_STEPS[backbone]
        settings = preset_settings("default", dataset.name, n_shot)
        steps = []
        for objective in ("cml", "pl"):
            torch.compiler.reset()
            options = settings["method_options"] | {"objective": objective}
            config = Config(data=dataset.name, n_shot=n_shot, backbone=backbone)
            config = config.replace(**settings | {"method_options": options})
            steps.append(training(config, dataset, device, n_steps))
        cml, pl = (1e3 * seconds / n_steps for seconds in in_turns(steps[0], steps[1], device))
        rows.append({"backbone": backbone, "n_shot": n_shot, "cml_ms": cml, "pl_ms": pl, "ratio": pl / cml})
        print(rows[-1], flush=True)
    print(table(list(rows[0]), [[cell(value) for value in row.values()] for row in rows]))
    save(f"objective_speed_{device.type}", {"rows": rows}, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--methods", default="", help="names with commas, or all: measure these instead")
    parser.add_argument("--objectives", action="store_true", help="measure pl against cml instead")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = device.type == "cuda"  # for the floor, as for training
    if options.objectives:
        measure_objectives(device)
    elif options.methods:
        measure_methods(list(METHODS) if options.methods == "all" else options.methods.split(","), device)
    else:
        measure_networks(device)


def measure_networks(device: torch.device) -> None:
    """Measure training and testing of MD-BFSC on both networks."""
    cuda = device.type == "cuda"
    rows: list[dict[str, Any]] = []
    name = "speed_gpu" if cuda else "speed_cpu"
    for backbone in ("conv4", "conv4s"):
        dataset = noise_dataset(backbone)
        for n_shot, tasks, presets in CASES_GPU[backbone] if cuda else CASES_CPU:
            n_steps = max(10, 100 // tasks) if cuda else CPU_STEPS[backbone]
            torch.compiler.reset()  # after many shapes, functions would exceed the limit of recompilations
            base = floor(backbone, tasks * 5 * (n_shot + 16), device, n_steps)
            for preset in presets:
                sizes = {"tasks_per_step": tasks, "validate_every": tasks}
                settings = preset_settings(preset, dataset.name, n_shot) | sizes
                config = Config(data=dataset.name, n_shot=n_shot, backbone=backbone)
                times = in_turns(base, training(config.replace(**settings), dataset, device, n_steps), device)
                floor_time, step = (seconds / n_steps for seconds in times)
                case = {"backbone": backbone, "n_shot": n_shot, "tasks_per_step": tasks, "preset": preset}
                speed = {"floor_ms": 1e3 * floor_time / tasks, "ms": 1e3 * step / tasks, "ratio": step / floor_time}
                rows.append({"what": "train", **case, **speed})
                print(rows[-1], flush=True)
                save(name, {"rows": rows}, seed=0)
        for n_shot in (1, 5):
            n_tasks = 600 if cuda else 16
            torch.compiler.reset()
            speed = testing(backbone, n_shot, dataset, device, n_tasks)
            rows.append({"what": "test", "backbone": backbone, "n_shot": n_shot, **speed})
            print(rows[-1], flush=True)
    header = [
        "",
        "network",
        "shots",
        "tasks a step",
        "preset",
        "floor, ms an episode",
        "ms an episode",
        "ratio",
        "every picture anew, ms",
    ]
    keys = ["what", "backbone", "n_shot", "tasks_per_step", "preset", "floor_ms", "ms", "ratio", "anew_ms"]
    print(table(header, [[cell(row.get(key, "")) for key in keys] for row in rows]))
    save(name, {"rows": rows}, seed=0)


def cell(value: Any) -> str:
    """Format a number with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

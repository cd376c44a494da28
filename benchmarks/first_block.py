"""A training step with the first block in one kernel (`networks.first_block`), as a ratio to the plain block; on a GPU.

    python benchmarks/first_block.py [--profile]

The network alone, forward and backward, and whole training steps of the preset `default`, both compiled and recorded
as CUDA graphs, in turns. Errors are those of maps and gradients against float64 on the CPU. Images are random noise.
With --profile: the kernels that a training step on photographs spends its time in.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from _common import save, table
from mirrorshot.networks import blocks
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.networks.first_block import normalised_pool
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings
from speed import DATA, in_turns, noise_dataset, recorded, training

DEVICE = torch.device("cuda")
STEPS = 30
NETWORKS = (("conv4", 85), ("conv4s", 85))
TRAININGS = (("conv4", 1, "mirror_gp"), ("conv4", 1, "dkt"))


def errors(backbone: str) -> dict[str, float]:
    """Relative distance of maps and gradients from those in float64."""
    _, channels, size, _ = DATA[backbone]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, channels, size, size, generator=generator) + 0.3
    given = [torch.randn(size, generator=generator) for size in ((64, channels, 3, 3), (64,), (64,))]

    def gradients(parameters: list[Tensor], maps: Tensor) -> list[Tensor]:
        direction = torch.randn(maps.shape, generator=torch.Generator().manual_seed(1)).to(maps)
        return [maps, *torch.autograd.grad((maps * direction).sum(), parameters)]

    exact = [t.double().requires_grad_() for t in given]
    maps = F.batch_norm(F.conv2d(x.double(), exact[0], padding=1), None, None, exact[1], exact[2], True, 0.0, 1e-5)
    expected = gradients(exact, F.relu(F.max_pool2d(maps, 2)))
    single = [t.to(DEVICE).requires_grad_() for t in given]
    found = gradients(single, normalised_pool(x.to(DEVICE), *single, 1, 1e-5, torch.float32)[0])
    distances = [float((f.detach().cpu() - e).norm() / e.norm()) for f, e in zip(found, expected, strict=True)]
    return dict(zip(("maps", "weight", "gamma", "beta"), distances, strict=True))


def network(backbone: str, n_images: int) -> Callable[[], Any]:
    """Steps of forward and backward of a network in train mode."""
    _, channels, size, _ = DATA[backbone]
    net = make_backbone(backbone, generator=torch.Generator().manual_seed(0)).to(DEVICE).train()
    net.to(memory_format=torch.channels_last)
    x = torch.randn(n_images, channels, size, size, device=DEVICE).to(memory_format=torch.channels_last)[None]
    net.compile(dynamic=False)

    def step() -> None:
        for p in net.parameters():
            p.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            z = net(x)
        z.float().square().sum().backward()

    run = recorded(step)
    return lambda: [run() for _ in range(STEPS)]


def steps_of(backbone: str, n_shot: int, method: str) -> Callable[[], Any]:
    """Training steps of a method with the preset `default`."""
    name = DATA[backbone][0]
    config = Config(data=name, n_shot=n_shot, device="cuda")
    config = config.replace(**preset_settings("default", name, n_shot, method))
    return training(config, noise_dataset(backbone), DEVICE, STEPS)


def compare(make: Callable[[], Callable[[], Any]]) -> tuple[float, float]:
    """Milliseconds of a step with the plain block, and with the fused one."""
    torch.compiler.reset()
    with patch.object(blocks, "can_fuse", lambda x, block: False):
        plain = make()
    torch.compiler.reset()
    seconds = in_turns(plain, make(), DEVICE)
    return 1e3 * seconds[0] / STEPS, 1e3 * seconds[1] / STEPS


def profile(n_shot: int) -> str:
    """The kernels of a training step on photographs, by time."""
    torch.compiler.reset()
    run = steps_of("conv4", n_shot, "mirror_gp")
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return found.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=70)


def main() -> None:
    """Compare, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="print the kernels of a training step, and save nothing")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("expected a GPU, but torch sees none")
    if options.profile:
        print(profile(1))
        return
    started = time.perf_counter()
    accuracy = {backbone: errors(backbone) for backbone in ("conv4", "conv4s")}
    for backbone, distances in accuracy.items():
        print(backbone, {name: f"{value:.1e}" for name, value in distances.items()}, flush=True)
    rows: list[dict[str, Any]] = []
    alone = ((f"{b}, {n} images", lambda b=b, n=n: network(b, n)) for b, n in NETWORKS)
    whole = ((f"{m}, {b}, {n} shots", lambda b=b, n=n, m=m: steps_of(b, n, m)) for b, n, m in TRAININGS)
    for name, make in itertools.chain(alone, whole):
        plain, fused = compare(make)
        rows.append({"step": name, "plain_ms": plain, "fused_ms": fused, "ratio": plain / fused})
        print({key: round(value, 3) if key != "step" else value for key, value in rows[-1].items()}, flush=True)
    save("first_block", {"errors": accuracy, "rows": rows}, seed=0, started=started)
    cells = [[row["step"], *(f"{row[key]:.3f}" for key in ("plain_ms", "fused_ms", "ratio"))] for row in rows]
    print(table(["step", "plain block, ms", "one kernel, ms", "times faster"], cells))


if __name__ == "__main__":
    main()

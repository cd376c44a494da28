"""Training steps of MAML and ABML on a GPU: tasks side by side, and one after the other with a compiled step.

    python benchmarks/adapted_steps.py

Milliseconds of one task, of random pictures, data path and optimiser included, as a CUDA graph: "side by side" by
`torch.func.vmap`; "compiled, convolutions" with cuDNN's; "compiled" as `accelerate` leaves it, with products of
matrices in their place. The seconds until the first step are for empty caches of the compiler.
"""

import argparse
import time
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from _common import save, table
from mirrorshot.config import Config
from mirrorshot.methods.abml import ABML
from mirrorshot.methods.maml import MAML
from mirrorshot.methods.per_task import ItemConv
from mirrorshot.presets import preset_settings
from speed import median_time, noise_dataset, training

CASES = (("maml", "conv4", 1), ("maml", "conv4", 5), ("abml", "conv4s", 5))
WAYS = ("side by side", "compiled, convolutions", "compiled")
N_TASKS = 40


def convolve(conv: ItemConv, x: Tensor) -> Tensor:
    """What `ItemConv` does where nothing is compiled."""
    return F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding)


def measure(method: str, backbone: str, n_shot: int, way: str, device: torch.device) -> dict[str, float]:
    """Milliseconds of a task, and seconds until the first one."""
    torch.compiler.reset()
    dataset = noise_dataset(backbone)
    config = Config(data=dataset.name, n_shot=n_shot)
    config = config.replace(**preset_settings("default", dataset.name, n_shot, method))
    n_steps = N_TASKS // config.tasks_per_step
    kind = {"maml": MAML, "abml": ABML}[method]
    accelerate = kind.accelerate if way != "side by side" else lambda method: None
    forward = convolve if way == "compiled, convolutions" else ItemConv.forward
    started = time.perf_counter()
    with mock.patch.object(kind, "accelerate", accelerate), mock.patch.object(ItemConv, "forward", forward):
        run = training(config, dataset, device, n_steps)
        ready = time.perf_counter() - started
        return {"ms": 1e3 * median_time(run, device, 5) / N_TASKS, "first_s": ready}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("Expected a CUDA GPU, for which steps are compiled.")
    started, rows = time.perf_counter(), []
    for method, backbone, n_shot in CASES:
        for way in WAYS:
            found = measure(method, backbone, n_shot, way, torch.device("cuda"))
            rows.append({"method": method, "backbone": backbone, "shots": n_shot, "way": way, **found})
            print(rows[-1], flush=True)
            save("adapted_steps", {"rows": rows}, seed=0, started=started)
    header = ["method", "network", "shots", "way", "a task, ms", "first step after, s"]
    print(table(header, [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]))


if __name__ == "__main__":
    main()

"""Training steps of MAML and ABML on a GPU, with and without a compiled step.

    python benchmarks/adapted_steps.py

Milliseconds per task of random images, including data path and optimiser, as a CUDA graph. "Not compiled": `vmap` over
the four tasks of MAML, or the one task of ABML. "Compiled, convolutions": with the convolutions of cuDNN. "Compiled":
the default of `accelerate`, with matrix products instead of convolutions.
"""

import argparse
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from _common import save, table
from mirrorshot.methods.abml import ABML
from mirrorshot.methods.maml import MAML
from mirrorshot.methods.per_task import ItemConv
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings
from speed import median_time, noise_dataset, training

CASES = (("maml", "conv4", 1), ("maml", "conv4", 5), ("abml", "conv4s", 5))
WAYS = ("not compiled", "compiled, convolutions", "compiled")
N_TASKS = 40


def convolve(conv: ItemConv, x: Tensor) -> Tensor:
    """Compute `ItemConv` as without compilation."""
    return F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding)


def measure(method: str, backbone: str, n_shot: int, way: str, device: torch.device) -> float:
    """Return milliseconds per task."""
    torch.compiler.reset()
    dataset = noise_dataset(backbone)
    config = Config(data=dataset.name, n_shot=n_shot)
    config = config.replace(**preset_settings("default", dataset.name, n_shot, method))
    n_steps = N_TASKS // config.tasks_per_step
    kind = {"maml": MAML, "abml": ABML}[method]
    accelerate = kind.accelerate if way != "not compiled" else lambda method: None
    forward = convolve if way == "compiled, convolutions" else ItemConv.forward
    with mock.patch.object(kind, "accelerate", accelerate), mock.patch.object(ItemConv, "forward", forward):
        run = training(config, dataset, device, n_steps)
        return 1e3 * median_time(run, device, 5) / N_TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("Expected a CUDA GPU, for which steps are compiled.")
    rows = []
    for method, backbone, n_shot in CASES:
        for way in WAYS:
            ms = measure(method, backbone, n_shot, way, torch.device("cuda"))
            rows.append({"method": method, "backbone": backbone, "shots": n_shot, "way": way, "ms": ms})
            print(rows[-1], flush=True)
            save("adapted_steps", {"rows": rows}, seed=0)
    header = ["method", "network", "shots", "way", "a task, ms"]
    print(table(header, [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]))


if __name__ == "__main__":
    main()

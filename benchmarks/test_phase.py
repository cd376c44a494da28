"""The test phase of methods with heads or samplers: a batch of tasks of features against one task after the other.

    python benchmarks/test_phase.py

Random features of 5 classes, 5 shots and 15 queries a class. "Launches" are the operations that torch dispatches for a
whole batch, on a GPU about as many kernels: they bound its time, and do not grow with the number of tasks.
"""

import argparse
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from _common import save, table
from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.methods import FewShotMethod, make_method
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.types import TaskBatch

METHODS = {
    "ove_gp": {},
    "feature_transfer": {"n_base_classes": 5},
    "baseline_pp": {"n_base_classes": 5},
    "logistic_softmax_gp": {},
}


class Launches(TorchDispatchMode):
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Count one, and compute it."""
        self.n += 1
        return func(*args, **(kwargs or {}))


def draw(n_tasks: int, n_features: int) -> TaskBatch:
    """Tasks of random features."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 1, n_features, generator=generator) + torch.randn(20, 20, n_features, generator=generator)
    source = ClassSource.from_arrays(x.flatten(0, 1), torch.arange(20).repeat_interleave(20))
    return EpisodeSampler(source, 5, 5, 15, seed=0).draw(n_tasks)[0]


@torch.no_grad()
def seconds(method: FewShotMethod, tasks: TaskBatch, size: int) -> float:
    """Wall time of predicting all tasks, so many at a time."""
    started = time.perf_counter()
    for start in range(0, tasks.n_tasks, size):
        method.predict(tasks.select(slice(start, start + size)))
    return time.perf_counter() - started


@torch.no_grad()
def launches(method: FewShotMethod, tasks: TaskBatch) -> int:
    """Operations of one batch."""
    with Launches() as counted:
        method.predict(tasks)
    return counted.n


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--features", type=int, default=64)
    options = parser.parse_args()
    started, rows = time.perf_counter(), []
    tasks = draw(options.tasks, options.features)
    for name, settings in METHODS.items():
        method = make_method(name, make_backbone("identity", in_features=options.features), **settings).eval()
        seconds(method, tasks.select(slice(0, 1)), 1)
        loop, batch = seconds(method, tasks, 1), seconds(method, tasks, options.tasks)
        one, all_of_them = launches(method, tasks.select(slice(0, 1))), launches(method, tasks)
        rows.append({"method": name, "loop_ms": 1e3 * loop / options.tasks, "batch_ms": 1e3 * batch / options.tasks,
                     "ratio": loop / batch, "launches_of_one": one, "launches_of_batch": all_of_them})  # fmt: skip
        print(rows[-1], flush=True)
    body = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    print(table(list(rows[0]), body))
    save(
        "test_phase", {"n_tasks": options.tasks, "n_features": options.features, "rows": rows}, seed=0, started=started
    )


if __name__ == "__main__":
    main()

"""Softmax expectations: the native core against the NumPy and torch reference, one thread, in turns.

    python benchmarks/softmax_core.py

Times are the smallest CPU times of many calls, so that other programs do not matter.
"""

import time
from collections.abc import Callable

import numpy as np
import torch

from _common import save, table
from mirrorshot.softmax import integrals, native

SEED = 0
# name, points, classes, range of standard deviations, with derivatives
CASES = (
    ("25 x 5", 25, 5, (1.0, 3.0), False),
    ("25 x 5, narrow", 25, 5, (0.1, 0.5), False),
    ("25 x 5, derivatives", 25, 5, (1.0, 3.0), True),
    ("1000 x 100", 1000, 100, (1.0, 3.0), False),
    ("1000 x 100, derivatives", 1000, 100, (1.0, 3.0), True),
)


def seconds(function: Callable[[], object], total: float = 0.5) -> float:
    """Return the smallest CPU time of a call, among the calls that fit into `total` seconds."""
    times: list[float] = []
    while sum(times) < total or len(times) < 3:
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return min(times)


def measure(
    points: int, classes: int, stds: tuple[float, float], has_derivatives: bool, dtype: str
) -> dict[str, float]:
    rng = np.random.default_rng(SEED)
    mean = 2 * rng.normal(size=(points, classes)).astype(dtype)
    var = rng.uniform(*stds, (points, classes)).astype(dtype) ** 2
    name = "class_pairs" if has_derivatives else "integrate_moments"
    tensors = torch.from_numpy(mean), torch.from_numpy(var)
    return {
        "native": seconds(lambda: getattr(native, name)(mean, var, stds[1])),
        "numpy": seconds(lambda: getattr(integrals, name)(mean, var, stds[1])),
        "torch": seconds(lambda: getattr(integrals, name)(*tensors, stds[1])),
    }


def main() -> None:
    torch.set_num_threads(1)
    if native.library() is None:
        raise SystemExit("Expected a compiled core, but found none. Run `python hatch_build.py`.")
    results = {f"{name}, {dtype}": measure(*case, dtype) for dtype in ("float64", "float32") for name, *case in CASES}
    rows = [
        [name, *(f"{1e6 * found[key]:.0f}" for key in found), f"{found['numpy'] / found['native']:.1f}"]
        for name, found in results.items()
    ]
    print(table(["latents", "native, us", "numpy, us", "torch, us", "numpy / native"], rows))
    save("softmax_core", {"seconds": results}, seed=SEED)


if __name__ == "__main__":
    main()

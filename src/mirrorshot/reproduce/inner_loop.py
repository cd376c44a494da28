"""Figure 3: how fast inner loops climb the bound, on the paper's fixed episode and on fresh ones."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mirrorshot.inference import amortise, gradient_descent, mirror_descent
from mirrorshot.reproduce.episodes import N_WAY, Laboratory, covariances
from mirrorshot.reproduce.natural_gradient import natural_descent
from mirrorshot.reproduce.released import released_descent
from mirrorshot.reproduce.sheets import Record, Sheet, yes_or_no

RHO = 0.005
"""The paper's step size for both mirror and gradient descent."""

CLOSE = 1e-3
"""Nats per point: an inner loop that is so near the optimum has converged."""

NUGGET = 1e-6

Loop = Callable[[Tensor, Tensor], Tensor]
MIRROR, PLAIN, FAIR = f"MD, rho = {RHO}", f"GD, plain, rho = {RHO}", "GD, safeguarded"


def inner_loops(n_steps: int, start: Any) -> dict[str, Loop]:
    """Inner loops by name: from covariances and labels to the bound at the start and after each step."""

    def mirror(**options: Any) -> Loop:
        return lambda K, y: mirror_descent(K, y, n_way=N_WAY, max_steps=n_steps, **options)[1].elbo

    def gradient(form: Any, step_size: float) -> Loop:
        return lambda K, y: gradient_descent(
            K, y, n_way=N_WAY, max_steps=n_steps, step_size=step_size, form=form
        )[1].elbo  # fmt: skip

    def natural(K: Tensor, y: Tensor) -> Tensor:
        one = zip(K[:, 0], y, strict=True)
        return torch.stack([natural_descent(k, t, n_way=N_WAY, max_steps=n_steps, step_size=RHO).elbo for k, t in one])

    def released(rho: float) -> Loop:
        return lambda K, y: released_descent(K, y, n_way=N_WAY, max_steps=n_steps, step_size=rho)[1].elbo

    return {
        MIRROR: mirror(step_size=RHO),
        PLAIN: gradient("plain", RHO),
        FAIR: gradient("cholesky", RHO),
        f"natural gradient by GPyTorch, {RHO}": natural,
        f"released formula, rho = {RHO}": released(RHO),
        "MD, rho = 0.5": mirror(step_size=0.5),
        "released formula, rho = 0.5": released(0.5),
        "MD, rho = 1": mirror(step_size=1.0),
        "MD, safeguarded": mirror(tol=1e-9),
        "MD, safeguarded, amortised start": mirror(tol=1e-9, start=start),
    }


def measure_inner_loop(
    data: str,
    n_shot: int,
    *,
    n_steps: int = 30,
    n_fresh: int = 10,
    n_known: int = 16,
    n_repeats: int = 5,
    seed: int = 1,
) -> Record:
    """Run all inner loops, with an untrained network and the kernel of the preset.

    Args:
        data: name of the data set.
        n_shot: labelled items of a class.
        n_steps: steps of each loop.
        n_fresh: fresh tasks to repeat the comparison on.
        n_known: further tasks, which the amortised start learns from.
        n_repeats: repetitions that times are the median of.
        seed: seed of the network and the tasks.
    """
    laboratory = Laboratory(data, n_shot, seed)
    method = laboratory.method()
    K, y = covariances(method, laboratory.fixed(), nugget=NUGGET)
    fresh, fresh_y = covariances(method, laboratory.fresh(n_fresh), nugget=NUGGET)
    known, known_y = covariances(method, laboratory.fresh(n_known, first=n_fresh), nugget=NUGGET)
    solved, _ = mirror_descent(known, known_y, n_way=N_WAY, max_steps=100, tol=1e-10)
    loops = inner_loops(n_steps, amortise(known, known_y, solved))
    optimum, fresh_optimum = _optimum(K, y), _optimum(fresh, fresh_y)
    n_points, fresh_points = K.shape[-1], fresh.shape[-1]
    curves: dict[str, Record] = {}
    fresh_curves: dict[str, Tensor] = {}
    for name, loop in loops.items():
        elbo = loop(K, y)[0]
        fresh_curves[name] = elbo_fresh = loop(fresh, fresh_y)
        gaps = (fresh_optimum[:, None] - elbo_fresh) / fresh_points
        curves[name] = {
            "elbo": elbo.tolist(),
            "n_steps": int(elbo.diff().nonzero().max()) + 1 if bool(elbo.diff().any()) else 0,
            "seconds": _seconds(loop, K, y, n_repeats),
            "steps_to_optimum": _first_close((optimum - elbo) / n_points),
            "steps_to_optimum_fresh_median": _median([_first_close(gap) for gap in gaps]),
        }
    return {
        "data": data, "n_shot": n_shot, "n_steps": n_steps, "n_points": n_points, "optimum": float(optimum),
        "smallest_eigenvalue": float(torch.linalg.eigvalsh(K).min()), "curves": curves,
        "mirror_above": {
            other: {
                "fixed": _above(torch.tensor([curves[MIRROR]["elbo"]]), torch.tensor([curves[other]["elbo"]])) == 1.0,
                "share_of_fresh": _above(fresh_curves[MIRROR], fresh_curves[other]),
            }
            for other in (PLAIN, FAIR)
        },
    }  # fmt: skip


def _optimum(K: Tensor, y: Tensor) -> Tensor:
    return mirror_descent(K, y, n_way=N_WAY, max_steps=200, tol=1e-12)[1].elbo[:, -1]


def _first_close(gap: Tensor) -> int | None:
    close = (gap <= CLOSE).nonzero()
    return int(close[0, 0]) if len(close) else None


def _median(values: list[int | None]) -> float | None:
    """Median, where None is larger than every number."""
    ordered = sorted(values, key=lambda v: float("inf") if v is None else v)
    middle = ordered[(len(ordered) - 1) // 2]
    return None if middle is None else float(middle)


def _above(mirror: Tensor, other: Tensor) -> float:
    """Share of the tasks in which mirror descent is above at every step."""
    return float((mirror[:, 1:] > other[:, 1:]).all(1).double().mean())


def _seconds(loop: Loop, K: Tensor, y: Tensor, n_repeats: int) -> float:
    """Wall time of the loop, which has run before: median of some repetitions."""
    times = []
    for _ in range(n_repeats):
        started = time.perf_counter()
        loop(K, y)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def inner_loop_sheet(record: Record) -> Sheet:
    """The figure in numbers."""
    n_steps, n_points = record["n_steps"], record["n_points"]

    def steps(value: float | None) -> str:
        return f"more than {n_steps}" if value is None else f"{value:g}"

    rows, records = [], []
    for name, curve in record["curves"].items():
        last = curve["elbo"][-1] / n_points
        gap = record["optimum"] / n_points - last
        found = curve["steps_to_optimum"], curve["steps_to_optimum_fresh_median"]
        rows.append([name, f"{last:.4f}", f"{gap:.1e}", *map(steps, found), f"{1e3 * curve['seconds']:.0f}"])
        records.append(
            {
                "data": record["data"], "n_shot": record["n_shot"], "loop": name, "elbo_per_point": last,
                "gap_per_point": gap, "steps_to_optimum": found[0], "steps_to_optimum_fresh_median": found[1],
                "seconds": curve["seconds"],
            }
        )  # fmt: skip
    notes = [
        f"One fixed episode of {n_points} points, untrained network, float64; optimum "
        f"{record['optimum'] / n_points:.4f} nats per point, smallest eigenvalue of the prior covariance "
        f"{record['smallest_eigenvalue']:.1e}. A loop that leaves the positive definite matrices stays where it was. "
        "Milliseconds are those of all steps."
    ]
    for other, above in record["mirror_above"].items():
        notes.append(
            f"{MIRROR} is above {other} at every step: {yes_or_no(above['fixed'])} on the fixed episode, in "
            f"{above['share_of_fresh']:.0%} of the fresh ones."
        )
    columns = ("inner loop", f"bound per point after {n_steps} steps", "gap", f"steps to {CLOSE:g} nats per point",
               "the same, median of fresh episodes", "ms")  # fmt: skip
    title = f"Inner loop: {record['data']}, {record['n_shot']} shot{'s' if record['n_shot'] > 1 else ''}"
    return Sheet(title, columns, rows, records, notes)

"""Figure 3: bound over steps of several inner loops, on the paper's fixed episode and on fresh ones."""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirrorshot.gp import amortise, gradient_descent, mirror_descent
from mirrorshot.paper.episodes import N_WAY, Laboratory, best_elbo, covariances
from mirrorshot.paper.natural_gradient import NaturalDescent, natural_descent
from mirrorshot.paper.released import released_descent
from mirrorshot.paper.tables import Record, Sheet, column_title, place
from mirrorshot.views.figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
    draw_grid,
    hide_frame,
    set_panel_title,
)

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

RHO = 0.005
"""Step size of mirror and gradient descent in the paper."""
CLOSE = 1e-3
"""Largest gap of a converged inner loop, in nats per point."""
NUGGET = 1e-6
SIZES: dict[str, dict[str, int]] = {"smoke": {"n_steps": 4, "n_fresh": 1, "n_known": 4, "n_repeats": 1}}

Loop = Callable[[Tensor, Tensor], Tensor]
MIRROR, PLAIN, FAIR = f"MD, rho = {RHO}", f"GD, plain, rho = {RHO}", "GD, safeguarded"
NATURAL, AMORTISED = f"natural gradient by GPyTorch, {RHO}", "MD, safeguarded, amortised start"
_SMALLEST_GAP = 1e-7  # nats per point; smaller gaps are drawn as this one


def _natural(K: Tensor, y: Tensor, **options: Any) -> tuple[None, NaturalDescent]:
    """Natural-gradient descent of each task, with the interface of the other loops."""
    found = [natural_descent(k, t, **options) for k, t in zip(K[:, 0], y, strict=True)]
    return None, NaturalDescent(*map(torch.stack, zip(*found, strict=True)))


# Algorithm, options, and style: the colour shows the algorithm, line and marker show its variant.
_LOOPS: dict[str, tuple[Callable[..., Any], dict[str, Any], str, str, str]] = {
    MIRROR: (mirror_descent, {"step_size": RHO}, BLUE, "-", "o"),
    PLAIN: (gradient_descent, {"step_size": RHO, "form": "plain"}, VERMILION, "-", "s"),
    FAIR: (gradient_descent, {"step_size": RHO, "form": "cholesky"}, VERMILION, "--", "D"),
    NATURAL: (_natural, {"step_size": RHO}, INK, ":", "x"),
    f"released formula, rho = {RHO}": (released_descent, {"step_size": RHO}, PURPLE, "-", "v"),
    "MD, rho = 0.5": (mirror_descent, {"step_size": 0.5}, BLUE, "--", "^"),
    "released formula, rho = 0.5": (released_descent, {"step_size": 0.5}, PURPLE, "--", "P"),
    "MD, rho = 1": (mirror_descent, {"step_size": 1.0}, BLUE, ":", "*"),
    "MD, safeguarded": (mirror_descent, {"tol": 1e-9}, GREEN, "-", "D"),
    AMORTISED: (mirror_descent, {"tol": 1e-9}, ORANGE, "-", "o"),
}


def inner_loops(n_steps: int, start: Any) -> dict[str, Loop]:
    """Inner loops by name: functions from covariances and labels to the bound at the start and after each step."""

    def loop(name: str) -> Loop:
        descent, options, *_ = _LOOPS[name]
        options = options | ({"start": start} if name == AMORTISED else {})
        return lambda K, y: descent(K, y, n_way=N_WAY, max_steps=n_steps, **options)[1].elbo

    return {name: loop(name) for name in _LOOPS}


def measure_inner_loop(
    data: str, n_shot: int, *, n_steps: int = 30, n_fresh: int = 10, n_known: int = 16, n_repeats: int = 5
) -> Record:
    """Run all inner loops with an untrained network and the kernel of the preset.

    The comparison is repeated on `n_fresh` tasks. The amortised start learns from `n_known` further tasks.
    """
    laboratory = Laboratory(data, n_shot)
    method = laboratory.method()
    K, y = covariances(method, laboratory.fixed(), nugget=NUGGET)
    fresh, fresh_y = covariances(method, laboratory.fresh(n_fresh), nugget=NUGGET)
    known, known_y = covariances(method, laboratory.fresh(n_known, first=n_fresh), nugget=NUGGET)
    solved, _ = mirror_descent(known, known_y, n_way=N_WAY, max_steps=100, tol=1e-10)
    optimum, fresh_optimum = best_elbo(K, y), best_elbo(fresh, fresh_y)
    n_points, curves, found = K.shape[-1], {}, {}
    for name, loop in inner_loops(n_steps, amortise(known, known_y, solved)).items():
        elbo, elbo_fresh = loop(K, y), loop(fresh, fresh_y)
        found[name] = elbo, elbo_fresh
        gaps = (fresh_optimum[:, None] - elbo_fresh) / fresh.shape[-1]
        moved = elbo[0].diff().nonzero()
        curves[name] = {
            "elbo": elbo[0].tolist(),
            "n_steps": int(moved.max()) + 1 if len(moved) else 0,
            "seconds": _seconds(loop, K, y, n_repeats),
            "steps_to_optimum": _first_close((optimum - elbo[0]) / n_points),
            "steps_to_optimum_fresh_median": _median([_first_close(gap) for gap in gaps]),
        }
    above = {}
    for other in (PLAIN, FAIR):  # share of tasks for which mirror descent is above at every step
        pairs = zip(found[MIRROR], found[other], strict=True)
        fixed, share = (float((a[:, 1:] > b[:, 1:]).all(1).double().mean()) for a, b in pairs)
        above[other] = {"fixed": fixed == 1.0, "share_of_fresh": share}
    return {
        "data": data,
        "n_shot": n_shot,
        "n_steps": n_steps,
        "n_points": n_points,
        "optimum": float(optimum),
        "smallest_eigenvalue": float(torch.linalg.eigvalsh(K).min()),
        "curves": curves,
        "mirror_above": above,
    }


def _first_close(gap: Tensor) -> int | None:
    close = (gap <= CLOSE).nonzero()
    return int(close[0, 0]) if len(close) else None


def _median(values: list[int | None]) -> float | None:
    """Return the lower median; None is larger than every number."""
    middle = sorted(values, key=lambda v: float("inf") if v is None else v)[(len(values) - 1) // 2]
    return None if middle is None else float(middle)


def _seconds(loop: Loop, K: Tensor, y: Tensor, n_repeats: int) -> float:
    """Return the median wall time of a loop that has already run once."""
    times = []
    for _ in range(n_repeats):
        started = time.perf_counter()
        loop(K, y)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def inner_loop_sheet(record: Record) -> Sheet:
    """Return the numbers of the figure as a table."""
    n_steps, n_points, optimum = record["n_steps"], record["n_points"], record["optimum"] / record["n_points"]

    def steps(value: float | None) -> str:
        return f"more than {n_steps}" if value is None else f"{value:g}"

    rows, records = [], []
    for name, curve in record["curves"].items():
        last, gap = curve["elbo"][-1] / n_points, optimum - curve["elbo"][-1] / n_points
        counts = {key: curve[key] for key in ("steps_to_optimum", "steps_to_optimum_fresh_median")}
        rows.append([name, f"{last:.4f}", f"{gap:.1e}", *map(steps, counts.values()), f"{1e3 * curve['seconds']:.0f}"])
        numbers = {"elbo_per_point": last, "gap_per_point": gap, **counts, "seconds": curve["seconds"]}
        records.append({**place(record), "loop": name, **numbers})
    notes = [
        f"One fixed episode of {n_points} points, untrained network, float64; optimum "
        f"{optimum:.4f} nats per point, smallest eigenvalue of the prior covariance "
        f"{record['smallest_eigenvalue']:.1e}. A loop that leaves the positive definite matrices stays where it was. "
        "Milliseconds are those of all steps."
    ]
    for other, above in record["mirror_above"].items():
        notes.append(
            f"{MIRROR} is above {other} at every step: {'yes' if above['fixed'] else 'no'} on the fixed episode, in "
            f"{above['share_of_fresh']:.0%} of the fresh ones."
        )
    columns = (
        "inner loop",
        f"bound per point after {n_steps} steps",
        "gap",
        f"steps to {CLOSE:g} nats per point",
        "the same, median of fresh episodes",
        "ms",
    )
    title = f"Inner loop: {column_title(**place(record))}"
    return Sheet(title, columns, rows, records, notes)


def inner_loop_figure(record: Record) -> "matplotlib.figure.Figure":
    """Draw the bound over steps as in the paper, and the gap to the optimum over steps and milliseconds."""
    figure, axes = panels(3)
    n, optimum = record["n_points"], record["optimum"]
    for name, curve in record["curves"].items():
        _, _, colour, line, marker = _LOOPS[name]
        edge = colour if marker in "x*P" else "white"  # a white edge would cover these markers
        style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 5, "markeredgecolor": edge}
        style |= {"label": name, "linewidth": 1.6}
        steps = range(len(curve["elbo"]))
        every = max(1, len(steps) // 8)
        gap = [max(_SMALLEST_GAP, (optimum - value) / n) for value in curve["elbo"]]
        seconds = [1e3 * curve["seconds"] * step / max(1, curve["n_steps"]) for step in steps]
        if name in list(_LOOPS)[:5]:
            axes[0].plot(steps, [value / n for value in curve["elbo"]], markevery=every, **style)
        axes[1].semilogy(steps, gap, markevery=every, **style)
        taken = slice(1, curve["n_steps"] + 1)
        axes[2].loglog(seconds[taken], gap[taken], markevery=every, **style)
    axes[0].axhline(optimum / n, color=GREY, linewidth=1.0, linestyle="--")
    axes[0].annotate("optimum", (0, optimum / n), (2, -4), textcoords="offset points", va="top", color=GREY)
    name_axes(axes[0], "bound, nats per point", "inner steps")
    name_axes(axes[1], "gap to the optimum, nats per point", "inner steps")
    name_axes(axes[2], "gap to the optimum, nats per point", "milliseconds")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    figure.suptitle(f"Inner loop: {column_title(**place(record))}, one fixed episode, untrained network")
    return figure


def panels(n: int) -> tuple["matplotlib.figure.Figure", Any]:
    """Return a figure with a row of panels, and its axes."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(4.4 * n, 4.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    return figure, figure.subplots(1, n)


def name_axes(ax: Any, title: str, axis: str) -> None:
    """Set the title of a panel and its horizontal axis; draw the grid."""
    set_panel_title(ax, title)
    ax.set_xlabel(axis)
    if ax.get_xscale() == "linear":  # steps and tasks
        ax.xaxis.get_major_locator().set_params(integer=True)
    draw_grid(ax)
    hide_frame(ax)
    ax.set_axisbelow(True)

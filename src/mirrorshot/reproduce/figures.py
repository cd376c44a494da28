"""Figures 2 to 4, drawn from results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mirrorshot.metrics import CalibrationBins
from mirrorshot.reproduce.cells import Result
from mirrorshot.reproduce.inner_loop import FAIR, MIRROR, PLAIN, RHO
from mirrorshot.reproduce.sheets import Record
from mirrorshot.types import InvalidInputError
from mirrorshot.views import ReliabilityDisplay, reliability_figure, save_figure
from mirrorshot.views.figures import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, VERMILION

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

# colour: the algorithm; line and marker: its variant
_INNER_STYLES: dict[str, dict[str, Any]] = {
    MIRROR: {"color": BLUE, "marker": "o"},
    PLAIN: {"color": VERMILION, "marker": "s"},
    FAIR: {"color": VERMILION, "linestyle": "--", "marker": "D"},
    f"natural gradient by GPyTorch, {RHO}": {"color": INK, "linestyle": ":", "marker": "x"},
    f"released formula, rho = {RHO}": {"color": PURPLE, "marker": "v"},
    "MD, rho = 0.5": {"color": BLUE, "linestyle": "--", "marker": "^"},
    "released formula, rho = 0.5": {"color": PURPLE, "linestyle": "--", "marker": "P"},
    "MD, rho = 1": {"color": BLUE, "linestyle": ":", "marker": "*"},
    "MD, safeguarded": {"color": GREEN, "marker": "D"},
    "MD, safeguarded, amortised start": {"color": ORANGE, "marker": "o"},
}
_OUTER_STYLES: dict[str, dict[str, Any]] = {
    "MD": {"color": BLUE, "marker": "o"},
    "GD": {"color": VERMILION, "marker": "s"},
    "MD, rho = 1": {"color": GREEN, "marker": "^"},
    "MD, to the optimum": {"color": ORANGE, "marker": "D", "linestyle": "--"},
}
_SMALLEST_GAP = 1e-7  # nats per point that are shown


def write_figure(figure: "matplotlib.figure.Figure", name: str, folder: Path) -> list[Path]:
    """Write a figure as SVG and PNG; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}{suffix}" for suffix in (".svg", ".png")]
    for path in paths:
        save_figure(figure, path)
    return paths


def inner_loop_figure(record: Record) -> "matplotlib.figure.Figure":
    """Figure 3: the bound over steps as in the paper, and the gap to the optimum over steps and seconds."""
    figure, axes = _panels(3)
    n, optimum = record["n_points"], record["optimum"]
    for name, curve in record["curves"].items():
        style = {"linewidth": 1.6, "markersize": 5, "markeredgecolor": "white", "label": name, **_INNER_STYLES[name]}
        if style["marker"] == "x":
            style["markeredgecolor"] = style["color"]
        steps = range(len(curve["elbo"]))
        every = max(1, len(steps) // 8)
        gap = [max(_SMALLEST_GAP, (optimum - value) / n) for value in curve["elbo"]]
        seconds = [1e3 * curve["seconds"] * step / max(1, curve["n_steps"]) for step in steps]
        if name in list(_INNER_STYLES)[:5]:
            axes[0].plot(steps, [value / n for value in curve["elbo"]], markevery=every, **style)
        axes[1].semilogy(steps, gap, markevery=every, **style)
        taken = slice(1, curve["n_steps"] + 1)
        axes[2].loglog(seconds[taken], gap[taken], markevery=every, **style)
    axes[0].axhline(optimum / n, color=GREY, linewidth=1.0, linestyle="--")
    axes[0].annotate("optimum", (0, optimum / n), (2, -4), textcoords="offset points", va="top", color=GREY)
    _name(axes[0], "bound, nats per point", "inner steps")
    _name(axes[1], "gap to the optimum, nats per point", "inner steps")
    _name(axes[2], "gap to the optimum, nats per point", "milliseconds")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    figure.suptitle(f"Inner loop: {_what(record)}, one fixed episode, untrained network")
    return figure


def outer_loop_figure(record: Record) -> "matplotlib.figure.Figure":
    """Figure 4: the loss on a fixed episode as in the paper, and on held-out tasks while learning from fresh ones."""
    figure, axes = _panels(2)
    for name, curve in record["curves"].items():
        style = {"linewidth": 1.8, "markersize": 5, "markeredgecolor": "white", "label": name, **_OUTER_STYLES[name]}
        iterations = range(1, len(curve["fixed"]) + 1)
        axes[0].plot(iterations, curve["fixed"], markevery=max(1, len(iterations) // 8), **style)
        axes[1].plot(curve["fresh_iterations"], curve["fresh"], **style)
    _name(axes[0], "fixed episode: loss, nats per query", "iterations")
    _name(axes[1], "held-out tasks: loss, nats per query", "fresh tasks learned from")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"Outer loop: {_what(record)}")
    return figure


def calibration_figure(results: Mapping[str, Result]) -> "matplotlib.figure.Figure":
    """Figure 2: reliability diagrams, a row for each result, as predicted and at one temperature.

    Args:
        results: by title; each with stored bins.
    """
    kinds = {"raw": "as predicted", "calibrated": "one temperature"}
    rows: list[Sequence[ReliabilityDisplay]] = []
    for title, result in results.items():
        stored = {text: (result.evaluation.get(kind) or {}).get("bins") for kind, text in kinds.items()}
        row = [ReliabilityDisplay(stored_bins(b), name=f"{title}\n{text}") for text, b in stored.items() if b]
        rows += [row] * bool(row)
    if not rows:
        raise InvalidInputError("Expected a result with stored reliability bins, but got none.")
    return reliability_figure(rows)


def stored_bins(stored: Mapping[str, Sequence[float]]) -> CalibrationBins:
    """Bins of equal width, as results store them."""
    sums = [torch.tensor(stored[name], dtype=torch.float64) for name in ("counts", "confidence_sum", "correct_sum")]
    n_bins = len(sums[0])
    return CalibrationBins(torch.arange(n_bins + 1, dtype=torch.float64) / n_bins, *sums)


def _panels(n: int) -> tuple["matplotlib.figure.Figure", Any]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(4.4 * n, 4.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    return figure, figure.subplots(1, n)


def _name(ax: Any, title: str, axis: str) -> None:
    ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    ax.set_xlabel(axis)
    ax.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)


def _what(record: Record) -> str:
    return f"{record['data']}, {record['n_shot']} shot{'s' if record['n_shot'] > 1 else ''}"

"""Reliability diagrams: accuracy at each confidence."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mirrorshot.files.lazy import need
from mirrorshot.metrics import (
    CalibrationBins,
    bootstrap_bins,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
    task_statistics,
    wilson_interval,
)
from mirrorshot.types import InvalidInputError
from mirrorshot.views.figures import BLUE, BOX, GAP, GREY, INK, SKY, axes_to_draw_on, hide_frame, short, to_array

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.axes
    import matplotlib.figure

    from mirrorshot.training.evaluation import Calibration

_PANEL_WIDTH, _PANEL_HEIGHT, _LEGEND_HEIGHT = 3.9, 4.6, 0.5  # inches


class ReliabilityDisplay:
    """Reliability diagram: how often predictions are right, at each confidence.

    Bars are the accuracy per confidence bin. Their 95 % intervals are bootstrapped over tasks if the tasks are known.
    Otherwise they are Wilson's for independent predictions, which is somewhat too narrow, as queries of a task share
    their support. The hatched part is the gap between accuracy and mean confidence. The panel below counts the
    predictions per bin.

    Args:
        bins: calibration bins of the predictions.
        name: title.
        intervals: lower and upper ends of the accuracy in each bin, (2, B), as from `bootstrap_bins`. None: Wilson's.

    Attributes:
        ece, mce: expected and maximum calibration error.
        ax_, share_ax_, figure_: made by `plot`.

    Example:
        >>> prob = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]]
        >>> display = ReliabilityDisplay.from_predictions(prob, [0, 1, 0, 1], name="four queries")
        >>> round(display.ece, 2)
        0.3
        >>> save_figure(display.figure_, "reliability.png")  # doctest: +SKIP
    """

    def __init__(self, bins: CalibrationBins, *, name: str | None = None, intervals: Any | None = None) -> None:
        self.bins, self.name, self.intervals = bins, name, intervals
        self.ece = float(expected_calibration_error(bins))
        self.mce = float(maximum_calibration_error(bins))

    @classmethod
    def from_predictions(
        cls,
        prob: ArrayLike,
        y: ArrayLike,
        *,
        n_bins: int = 15,
        name: str | None = None,
        ax: "matplotlib.axes.Axes | None" = None,
    ) -> "ReliabilityDisplay":
        """Compute the diagram of predicted probabilities and draw it.

        Args:
            prob: class probabilities, shape (..., n_queries, n_classes). With one leading dimension, of tasks, the
                intervals are bootstrapped over tasks.
            y: labels 0 .. n_classes - 1, shape (..., n_queries).
            n_bins: number of confidence bins.
            name: title.
            ax: axes to draw on; None: a new figure.
        """
        p, labels = to_array(prob), to_array(y)
        bins, intervals = calibration_bins(p, labels, n_bins), None
        if p.ndim == 3 and len(p) > 1:
            found = bootstrap_bins(task_statistics(p, labels, n_bins), np.random.default_rng(0))
            intervals = np.stack(found)
        return cls(bins, name=name, intervals=intervals).plot(ax)

    @classmethod
    def from_calibration(cls, calibration: "Calibration", *, name: str | None = None) -> "ReliabilityDisplay":
        """Make the display of a stored calibration, with its intervals over tasks."""
        return cls(calibration.bins, name=name, intervals=calibration.bin_intervals)

    def plot(self, ax: "matplotlib.axes.Axes | None" = None, *, legend: bool = True) -> "ReliabilityDisplay":
        """Draw the diagram on `ax`, or on a new figure."""
        ax = axes_to_draw_on(ax, (_PANEL_WIDTH, _PANEL_HEIGHT), "compressed")
        self.ax_, self.figure_ = ax, ax.get_figure(root=True)
        self.share_ax_ = ax.inset_axes((0.0, -0.25, 1.0, 0.19), sharex=ax)
        self._draw_accuracy(ax)
        self._draw_share(self.share_ax_)
        ax.set_title(short(self.name or ""), fontsize="medium")
        errors = f"ECE {self.ece:.3f}\nMCE {self.mce:.3f}"
        ax.text(0.97, 0.04, errors, transform=ax.transAxes, ha="right", va="bottom", bbox=BOX, zorder=6)
        if legend:
            ax.legend(loc="upper left", fontsize="small", framealpha=0.9, edgecolor="white").set_zorder(6)
        return self

    def _draw_accuracy(self, ax: Any) -> None:
        left, width, filled = self._geometry()
        accuracy, confidence, counts = (
            to_array(part)[filled] for part in (self.bins.accuracy, self.bins.confidence, self.bins.counts)
        )
        ax.bar(left, accuracy, width, align="edge", color=SKY, edgecolor="white")
        for style in GAP:
            ax.bar(left, confidence - accuracy, width, accuracy, align="edge", **style)
        ax.containers[-1].set_label("gap to confidence")
        ax.hlines(accuracy, left, left + width, color=BLUE, linewidth=2.5, zorder=4, label="accuracy")
        if self.intervals is None:
            low, high = wilson_interval(accuracy, counts)
        else:
            low, high = to_array(self.intervals)[:, filled]
        ax.vlines(left + width / 2, low, high, color=INK, linewidth=1.2, zorder=5, label="95 % interval")
        ax.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1.0, zorder=3, label="calibrated")
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", ylabel="accuracy")
        ax.tick_params(labelbottom=False)
        hide_frame(ax)

    def _draw_share(self, ax: Any) -> None:
        left, width, filled = self._geometry()
        counts = to_array(self.bins.counts)[filled]
        ax.bar(left, counts, width, align="edge", color=GREY, edgecolor="white")
        top, n = float(counts.max()), float(counts.sum())
        ax.set(xlabel=f"confidence ({n:,.0f} predictions)", ylabel="count", ylim=(0, 1.05 * top), yticks=[0, top])
        ax.set_yticklabels(["0", f"{top:,.0f}\n({top / n:.0%})"], fontsize="small")
        ax.yaxis.get_ticklabels()[-1].set_verticalalignment("top")
        hide_frame(ax)

    def _geometry(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return left edges and widths of the bins with predictions, and the mask of these bins."""
        edges, filled = to_array(self.bins.edges), to_array(self.bins.counts) > 0
        return edges[:-1][filled], np.diff(edges)[filled], filled


def reliability_figure(displays: Sequence[Sequence[ReliabilityDisplay]]) -> "matplotlib.figure.Figure":
    """Draw several reliability diagrams, given in rows, on one figure."""
    Figure = need("matplotlib.figure").Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    n_columns = max((len(row) for row in displays), default=0)
    if n_columns == 0:
        raise InvalidInputError("Expected at least one display. Pass those to draw.")
    size = (_PANEL_WIDTH * n_columns, _PANEL_HEIGHT * len(displays) + _LEGEND_HEIGHT)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.15, compress=True))
    axes = figure.subplots(len(displays), n_columns, squeeze=False)
    for axes_row, row in zip(axes, displays, strict=True):
        for ax in axes_row[len(row) :]:
            ax.remove()
        for ax, display in zip(axes_row, row, strict=False):
            display.plot(ax, legend=False)
    parts = next(display for row in displays for display in row).ax_.get_legend_handles_labels()
    figure.legend(*parts, loc="outside lower center", ncols=2 if n_columns == 1 else 4, frameon=False)
    return figure

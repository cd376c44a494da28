"""Risk-coverage curves: the error rate of the most confident predictions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mirrorshot.files.lazy import need
from mirrorshot.metrics import RiskCoverage, aurc, risk_coverage
from mirrorshot.types import InvalidInputError
from mirrorshot.views.figures import BLUE, GREY, LINES, axes_to_draw_on, draw_grid, hide_frame, short, to_array

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.axes
    import matplotlib.figure

    from mirrorshot.training.evaluation import Calibration

_STYLES = ("-", "--", "-.", ":")


class RiskCoverageDisplay:
    """Risk-coverage curve: the error rate of the predictions that are kept when the least confident are refused.

    The dotted line is an uninformative confidence. The shaded area is the best possible order: all right predictions
    before the wrong ones.

    Args:
        curve: coverages and error rates, from `risk_coverage`.
        area: area under the curve (AURC).
        name: label of the curve.

    Attributes:
        ax_, figure_: made by `plot`.

    Example:
        >>> prob = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]]
        >>> display = RiskCoverageDisplay.from_predictions(prob, [0, 1, 0, 1], name="four queries")
        >>> round(display.area, 4)
        0.0625
    """

    def __init__(self, curve: RiskCoverage, area: float, *, name: str | None = None) -> None:
        self.curve, self.area, self.name = curve, area, name

    @classmethod
    def from_predictions(
        cls, prob: ArrayLike, y: ArrayLike, *, name: str | None = None, ax: "matplotlib.axes.Axes | None" = None
    ) -> "RiskCoverageDisplay":
        """Compute the curve of probabilities (..., n_queries, n_classes) and labels (..., n_queries), and draw it."""
        p, labels = to_array(prob), to_array(y)
        return cls(risk_coverage(p, labels), float(aurc(p, labels)), name=name).plot(ax)

    @classmethod
    def from_calibration(cls, calibration: "Calibration", *, name: str | None = None) -> "RiskCoverageDisplay":
        """Make the display of a stored calibration."""
        if calibration.risk is None:
            raise InvalidInputError("Expected a calibration with a risk-coverage curve, but it has none.")
        risk = to_array(calibration.risk)
        coverage = np.arange(1, len(risk) + 1) / len(risk)
        return cls(RiskCoverage(coverage, risk), calibration.scores["aurc"], name=name)

    def plot(
        self, ax: "matplotlib.axes.Axes | None" = None, *, color: str = BLUE, linestyle: str = "-", alone: bool = True
    ) -> "RiskCoverageDisplay":
        """Draw the curve; with `alone`, also the two reference curves, labels and limits of the axes."""
        ax = axes_to_draw_on(ax, (4.3, 3.9))
        self.ax_, self.figure_ = ax, ax.get_figure(root=True)
        coverage, risk = map(to_array, self.curve)
        label = f"{short(self.name or 'by confidence')}, AURC {self.area:.3f}"
        ax.plot(coverage, risk, color=color, linestyle=linestyle, linewidth=2.0, label=label)
        if alone:
            error = float(risk[-1])
            ax.axhline(error, color=GREY, linestyle=":", linewidth=1.2, label="in random order")
            best = np.maximum(0, 1 - (1 - error) / coverage)
            ax.fill_between(coverage, 0, best, color=GREY, alpha=0.2, linewidth=0, label="best order")
            _format_axes(ax, error)
        return self


def risk_coverage_figure(displays: Sequence[RiskCoverageDisplay]) -> "matplotlib.figure.Figure":
    """Draw several risk-coverage curves on one panel; they differ in colour and line style."""
    Figure = need("matplotlib.figure").Figure

    if not displays:
        raise InvalidInputError("Expected at least one display. Pass those to draw.")
    figure = Figure(figsize=(5.4, 4.2 + 0.2 * len(displays)), layout="constrained")
    ax = figure.subplots()
    for i, display in enumerate(displays):
        display.plot(ax, color=LINES[i % len(LINES)], linestyle=_STYLES[i % len(_STYLES)], alone=len(displays) == 1)
    if len(displays) > 1:
        _format_axes(ax, max(float(d.curve.risk[-1]) for d in displays), legend=False)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=1)
    return figure


def _format_axes(ax: Any, error: float, *, legend: bool = True) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set(xlim=(0, 1), ylim=(0, max(1.25 * error, 0.02)))
    ax.set_xlabel("coverage: share of predictions kept, most confident first")
    ax.set_ylabel("risk: error rate of those kept")
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    draw_grid(ax)
    hide_frame(ax)
    if legend:
        ax.legend(loc="upper left", fontsize="small", frameon=False)

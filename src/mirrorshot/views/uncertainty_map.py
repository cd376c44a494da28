"""Maps of two-dimensional data: predicted class, aleatoric and epistemic uncertainty."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mirrorshot.files.lazy import need
from mirrorshot.files.texts import cut
from mirrorshot.types import InvalidInputError, check_at_least
from mirrorshot.views.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILION, look, set_panel_title

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.axes
    import matplotlib.figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, INK)
_MARGIN = 0.4  # beyond the examples, as a share of their range
_MAX_LEGEND, _MAX_NAME = 12, 24  # limits of the legend: classes, and letters of a name
_PANELS = ("predicted class", "aleatoric, nats", "epistemic, nats")


@dataclass(eq=False)
class UncertaintyMapDisplay:
    """Three maps of the plane: predicted class (paler where less sure), aleatoric and epistemic uncertainty.

    Aleatoric uncertainty is high where classes overlap, epistemic uncertainty where there are no examples. Support
    points are drawn on all three; classes differ in colour and marker. Up to twelve classes are named in a legend.

    Args:
        x, y: coordinates of the columns and rows of the maps.
        prob: class probabilities, (rows, columns, classes).
        aleatoric, epistemic: parts of the uncertainty in nats, (rows, columns).
        support_x, support_y: labelled points (n, 2) and indices of their classes (n,).
        class_names: names of the classes.

    Attributes:
        axes_, figure_: made by `plot`.

    Example:
        >>> from mirrorshot import FewShotClassifier
        >>> X, y = np.array([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), ["a", "b", "b"]
        >>> few = FewShotClassifier(kernel="rbf").fit(X, y)
        >>> display = UncertaintyMapDisplay.from_estimator(few, X, y, n_points=10)
        >>> display.prob.shape, display.epistemic.shape
        ((10, 10, 2), (10, 10))
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    prob: NDArray[np.float64]
    aleatoric: NDArray[np.float64]
    epistemic: NDArray[np.float64]
    support_x: NDArray[np.float64]
    support_y: NDArray[np.int64]
    class_names: Sequence[str]

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: ArrayLike, y: ArrayLike, *, n_points: int = 120
    ) -> "UncertaintyMapDisplay":
        """Compute maps around the examples X (n, 2) of a fitted `FewShotClassifier`, `n_points` along each side."""
        points, labels = np.asarray(X, dtype=np.float64), np.asarray(y)
        _check(points, labels, n_points)
        classes = np.asarray(estimator.classes_)
        number = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
        if not bool((classes[number] == labels).all()):
            raise InvalidInputError("Expected `y` to be labels that `estimator` was fitted on, but got others.")
        low, high = points.min(0), points.max(0)
        room = _MARGIN * np.maximum(high - low, 1e-9).max()
        gx, gy = (np.linspace(a - room, b + room, n_points) for a, b in zip(low, high, strict=True))
        grid = np.stack(np.meshgrid(gx, gy), -1).reshape(-1, 2)
        parts, prob = estimator.uncertainty(grid), estimator.predict_proba(grid)
        aleatoric, epistemic = (part.reshape(n_points, n_points) for part in (parts.aleatoric, parts.epistemic))
        maps = prob.reshape(n_points, n_points, -1), aleatoric, epistemic
        return cls(gx, gy, *maps, points, number, [str(name) for name in classes])

    def plot(self, ax: "Sequence[matplotlib.axes.Axes] | None" = None) -> "UncertaintyMapDisplay":
        """Draw the three maps on three axes, or on a new figure."""
        if ax is None:
            Figure = need("matplotlib.figure").Figure

            ax = list(Figure(figsize=(11.4, 3.9), layout="constrained").subplots(1, 3))
        if len(ax) != 3:
            raise InvalidInputError(f"Expected `ax` to be three axes, one for each map, but got {len(ax)}.")
        self.axes_, self.figure_ = list(ax), ax[0].get_figure(root=True)
        self._draw_classes(ax[0])
        for panel, values in zip(ax[1:], (self.aleatoric, self.epistemic), strict=True):
            self._draw_part(panel, values)
        for panel, title in zip(ax, _PANELS, strict=True):
            self._draw_support(panel)
            set_panel_title(panel, title)
            panel.set(xticks=[], yticks=[], xlim=(self.x[0], self.x[-1]), ylim=(self.y[0], self.y[-1]))
            panel.spines[:].set_visible(False)
        if len(self.class_names) <= _MAX_LEGEND:
            names = ax[0].legend(loc="upper left", fontsize="small", framealpha=0.9, edgecolor="white").get_texts()
            for name in names:
                name.set_parse_math(False)
        return self

    def _draw_classes(self, ax: Any) -> None:
        from matplotlib.colors import to_rgb

        colours = np.array([to_rgb(_COLOURS[c % len(_COLOURS)]) for c in range(self.prob.shape[-1])])
        label, n = self.prob.argmax(-1), self.prob.shape[-1]
        sure = ((self.prob.max(-1) - 1 / n) / (1 - 1 / n))[..., None] if n > 1 else np.ones((*label.shape, 1))
        strength = 0.08 + 0.62 * sure
        ax.imshow(1 - strength * (1 - colours[label]), extent=self._extent(), origin="lower", aspect="auto")
        for c in range(n):
            others = np.delete(self.prob, c, -1).max(-1) if n > 1 else np.zeros(label.shape)
            ax.contour(self.x, self.y, self.prob[..., c] - others, levels=[0.0], colors=INK, linewidths=0.7)

    def _draw_part(self, ax: Any, values: NDArray[np.float64]) -> None:
        most = max(float(self.aleatoric.max()), float(self.epistemic.max()), 1e-6)
        place: dict[str, Any] = {"extent": self._extent(), "origin": "lower", "aspect": "auto"}
        drawn = ax.imshow(values, cmap="cividis", vmin=0, vmax=most, **place)
        figure: Any = self.figure_
        bar = figure.colorbar(drawn, ax=ax, fraction=0.045, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, labelsize="small")

    def _draw_support(self, ax: Any) -> None:
        for c, name in enumerate(self.class_names):
            points = self.support_x[self.support_y == c]
            label = cut(name, _MAX_NAME)
            ax.scatter(*points.T, s=44, edgecolor="white", linewidth=1.1, zorder=3, label=label, **look(c, _COLOURS))

    def _extent(self) -> tuple[float, float, float, float]:
        return float(self.x[0]), float(self.x[-1]), float(self.y[0]), float(self.y[-1])


def _check(points: NDArray[np.float64], labels: NDArray[Any], n_points: int) -> None:
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0 or len(labels) != len(points):
        raise InvalidInputError(
            f"Expected `X` of shape (n, 2) and `y` of n labels, but got {points.shape} and {labels.shape}."
        )
    check_at_least(2, n_points=n_points)

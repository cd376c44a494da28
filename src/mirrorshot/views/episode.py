"""One episode as a figure: support images, queries, class probabilities and uncertainty."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from mirrorshot.classifier import decisions
from mirrorshot.classifier.decisions import Uncertainty
from mirrorshot.data import EpisodeSampler
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.files.texts import cut
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.training import build_preprocess
from mirrorshot.training.evaluation import Prepare, predict_latents, predict_tasks
from mirrorshot.training.runs import Run
from mirrorshot.types import InvalidInputError
from mirrorshot.views.figures import BLUE, GAP, GREY, INK, ORANGE, PURPLE, SKY, VERMILION

_COLUMN, _ROW, _LABEL, _HEADER = 1.35, 0.62, 1.15, 0.95  # inches: class column, row, query column, largest header
_VERDICT, _UNCERTAINTY = 0.75, 1.65  # inches: column of the verdict, column of the uncertainty
_MAX_SHOTS = 6  # support images shown of a class
_MAX_NAME = 15  # letters of a name that fit


class EpisodeDisplay:
    """One episode as a card: a column for each class, headed by its support, and a row for each query.

    A cell has a bar as long as the probability of the class. The cell of the right class is framed, and its number is
    bold. The bar of the predicted class is dark if it is right, and hatched if it is wrong. With `uncertainty`, a last
    column has its aleatoric part, which more examples cannot remove, and its epistemic part, which they can.

    Args:
        support: images (N, channels, height, width), bytes or floats from 0 to 1, all of class 0, then all of class 1.
        query: images to classify.
        log_prob: log-probabilities of the classes.
        y: right classes of the queries.
        class_names: names of the C classes.
        uncertainty: uncertainty of the queries in nats; None: no column.

    Attributes:
        figure_: figure, made by `plot`.

    Example:
        >>> import torch
        >>> images = torch.zeros(6, 1, 8, 8, dtype=torch.uint8)
        >>> log_prob = torch.full((6, 3), 1 / 3).log()
        >>> display = EpisodeDisplay(images, images, log_prob, torch.arange(6) // 2, ["a", "b", "c"])
        >>> len(display.plot().figure_.axes)  # 3 headers, and 6 queries with 3 bars each
        27
    """

    def __init__(
        self,
        support: Shaped[Tensor, "N ..."],
        query: Shaped[Tensor, "M ..."],
        log_prob: Float[Tensor, "M C"],
        y: Int[Tensor, " M"],
        class_names: Sequence[str],
        uncertainty: Uncertainty | None = None,
    ) -> None:
        _check_episode(support, query, log_prob, y, len(class_names))
        self.support, self.query, self.log_prob, self.y = support, query, log_prob, y
        self.class_names, self.uncertainty = tuple(class_names), uncertainty

    @classmethod
    def from_method(
        cls, method: FewShotMethod, sampler: EpisodeSampler, numbers: Sequence[int], *, prepare: Prepare
    ) -> "list[EpisodeDisplay]":
        """Predict some episodes of images with a method; return a display for each.

        Args:
            method: a trained method. If it has latents, the displays show the uncertainty.
            sampler: sampler of the episodes.
            numbers: numbers of the episodes.
            prepare: maps byte images to the input of the backbone, on the device of the method.
        """
        found = predict_tasks(method, sampler, numbers, prepare=prepare, batch_size=len(numbers))
        latents = predict_latents(method, sampler, numbers, prepare=prepare, batch_size=len(numbers))
        parts = None
        if latents is not None:
            parts = decisions.uncertainty(*(t.double().cpu() for t in (*latents, found.log_prob)))
        (tasks, y), source = sampler.tasks(numbers), sampler.source
        classes = [dict.fromkeys(source.labels[items].tolist()) for items in sampler.index(numbers).support]
        shown = []
        for i in range(len(numbers)):
            names = [source.class_names[c] for c in classes[i]]
            own = None if parts is None else Uncertainty(*(part[i] for part in parts))
            support, query = tasks.support_x[i].cpu(), tasks.query_x[i].cpu()
            shown.append(cls(support, query, found.log_prob[i], y[i].cpu(), names, own))
        return shown

    @classmethod
    def of_run(
        cls, run: Run, dataset: Dataset, sizes: tuple[int, int, int], *, seed: int, n_tasks: int
    ) -> "list[EpisodeDisplay]":
        """Predict the first `n_tasks` test tasks of a run on images; `sizes` are n_way, n_shot and n_query."""
        preprocess, test = build_preprocess(dataset), dataset.test
        if preprocess is None or test is None:
            raise InvalidInputError(f"Expected `dataset` to have test classes with images, but got {dataset.name}.")
        sampler = EpisodeSampler(test, *sizes, seed=seed)
        return cls.from_method(run.predictor, sampler, range(n_tasks), prepare=lambda x: preprocess(x.to(run.device)))

    @property
    def accuracy(self) -> float:
        """Return the share of the queries that are right."""
        return float((self.log_prob.argmax(-1) == self.y).double().mean())

    def plot(self, *, n_queries: int = 6) -> "EpisodeDisplay":
        """Draw the card on a new figure, with at most `n_queries` evenly spaced queries."""
        from matplotlib.figure import Figure

        n_way = len(self.class_names)
        rows = np.unique(np.linspace(0, len(self.y) - 1, min(n_queries, len(self.y))).round().astype(int))
        support, queries = _as_images(self.support), _as_images(self.query)
        shots = [_montage(part, n_columns=3) for part in support.reshape(n_way, -1, *support.shape[1:])]
        header = min(_COLUMN * shots[0].shape[0] / shots[0].shape[1], _HEADER)
        heights = [header, *[_ROW] * len(rows)]
        right = _VERDICT + (_UNCERTAINTY if self.uncertainty is not None else 0.0)
        size = (_LABEL + _COLUMN * n_way + right, sum(heights) + 0.75)
        figure = Figure(figsize=size)
        ratios: dict[str, Any] = {"width_ratios": [_LABEL, *[_COLUMN] * n_way], "height_ratios": heights}
        frame = {"left": 0.02, "right": 1 - right / size[0], "top": 1 - 0.42 / size[1], "bottom": 0.3 / size[1]}
        grid = figure.add_gridspec(len(rows) + 1, n_way + 1, **ratios, **frame, wspace=0.14, hspace=0.16)
        for c, (name, image) in enumerate(zip(self.class_names, shots, strict=True)):
            ax = figure.add_subplot(grid[0, c + 1])
            _draw_image(ax, image)
            ax.set_title(cut(name, _MAX_NAME), fontsize=9, fontweight="bold", color=INK, pad=5, parse_math=False)
        prob = self.log_prob.detach().exp().cpu().double().numpy()
        for i, row in enumerate(rows):
            _draw_image(figure.add_subplot(grid[i + 1, 0]), queries[row])
            axes = [figure.add_subplot(grid[i + 1, c + 1]) for c in range(n_way)]
            _draw_probabilities(axes, prob[row], int(self.y[row]))
        if self.uncertainty is not None:
            _draw_uncertainty(figure, self.uncertainty, rows, heights, size, math.log(n_way))
        _draw_words(figure, header / size[1], size, len(self.support) // n_way)
        self.figure_ = figure
        return self


def _draw_uncertainty(
    figure: Any,
    parts: Uncertainty,
    rows: NDArray[np.int64],
    heights: Sequence[float],
    size: tuple[float, float],
    most: float,
) -> None:
    """Draw a bar for each query beside the rows: aleatoric, then epistemic, on an axis up to `most` = log C."""
    total = sum(heights[1:])
    left, width = (size[0] - _UNCERTAINTY) / size[0], (_UNCERTAINTY - 0.22) / size[0]
    ax = figure.add_axes((left, 0.3 / size[1], width, total / size[1]))
    ax.set_label("uncertainty")
    height = np.arange(len(rows), 0, -1) - 0.5
    aleatoric, epistemic = (t.detach().cpu().double().numpy()[rows] for t in (parts.aleatoric, parts.epistemic))
    ax.barh(height, most, height=0.34, facecolor=GREY, alpha=0.13, zorder=0)
    ax.barh(height, aleatoric, height=0.34, color=ORANGE, label="aleatoric")
    dotted = {"color": PURPLE, "edgecolor": "white", "hatch": "....", "linewidth": 0.0}
    ax.barh(height, epistemic, height=0.34, left=aleatoric, label="epistemic", **dotted)
    for y, a, e in zip(height, aleatoric, epistemic, strict=True):
        ax.text(0, y + 0.2, f"{a:.2f} + {e:.2f}", fontsize=9, color=INK, va="bottom", ha="left")
    ax.set(xlim=(0, most), ylim=(0, len(rows)))
    ax.set_axis_off()
    style = {"fontsize": 9, "title_fontsize": 9, "frameon": False, "handlelength": 1.2, "borderpad": 0.1}
    place = {"loc": "lower left", "bbox_to_anchor": (left - 0.01, (0.3 + total) / size[1]), "alignment": "left"}
    figure.legend(*ax.get_legend_handles_labels(), title="uncertainty, nats", labelspacing=0.3, **style, **place)


def _draw_image(ax: Any, image: NDArray[Any]) -> None:
    grey = image.shape[-1] == 1
    ax.imshow(image[..., 0] if grey else image, cmap="gray" if grey else None, vmin=0, vmax=1, aspect="equal")
    ax.set_axis_off()


def _draw_probabilities(axes: Sequence[Any], prob: NDArray[np.float64], right: int) -> None:
    predicted = int(prob.argmax())
    for c, (ax, p) in enumerate(zip(axes, prob, strict=True)):
        plain = ({"facecolor": BLUE if c == predicted else SKY},)
        for style in GAP if c == predicted != right else plain:
            ax.barh(0, p, height=0.3, left=0, **style)
        ax.barh(0, 1, height=0.3, left=0, facecolor=GREY, alpha=0.13, zorder=0)
        weight = "bold" if c == right else "normal"
        percent = f"{p:.0%}" if p >= 0.005 or p == 0 else "<1%"
        ax.text(0, 0.3, percent, fontsize=9, fontweight=weight, color=INK, va="bottom", ha="left")
        ax.set(xlim=(-0.07, 1.07), ylim=(-0.42, 0.95), xticks=[], yticks=[])
        ax.spines[:].set(visible=c == right, color=INK, linewidth=1.3)
    verdict = "right" if predicted == right else "wrong"
    place = {"transform": axes[-1].transAxes, "va": "center", "ha": "left"}
    axes[-1].text(1.12, 0.5, verdict, fontsize=9, color=INK if verdict == "right" else VERMILION, **place)


def _draw_words(figure: Any, header: float, size: tuple[float, float], n_shot: int) -> None:
    some = f"\n({_MAX_SHOTS} of {n_shot})" if n_shot > _MAX_SHOTS else ""
    top = 1 - 0.42 / size[1] - header
    figure.text(0.02, top + 0.06 / size[1], "query", fontsize=9, color=GREY, va="bottom")
    figure.text(0.02, 1 - 0.42 / size[1], f"learned from{some}", fontsize=9, color=GREY, va="top")
    words = "framed: the right class   |   bar: probability of the class"
    figure.text(_LABEL / size[0] + 0.02, 0.08 / size[1], words, fontsize=9, color=GREY, va="bottom")


def _as_images(x: Tensor) -> NDArray[np.float64]:
    """Return images (n, height, width, channels) with values from 0 to 1."""
    values = x.detach().cpu()
    values = values.double() / 255 if not values.is_floating_point() else values.double()
    return np.asarray(values.movedim(1, -1).clamp(0, 1).numpy())


def _montage(images: NDArray[np.float64], n_columns: int) -> NDArray[np.float64]:
    """Tile the first images with thin gaps; empty tiles are transparent."""
    shown = images[:_MAX_SHOTS]
    n, h, w, channels = shown.shape
    columns = min(n, n_columns)
    lines = -(-n // columns)
    gap = max(1, w // 14)
    canvas = np.ones((lines * (h + gap) - gap, columns * (w + gap) - gap, 4))
    canvas[..., 3] = 0.0
    for i, image in enumerate(shown):
        top, left = (i // columns) * (h + gap), (i % columns) * (w + gap)
        canvas[top : top + h, left : left + w, :3] = image if channels == 3 else image[..., :1]
        canvas[top : top + h, left : left + w, 3] = 1.0
    return canvas


def _check_episode(support: Tensor, query: Tensor, log_prob: Tensor, y: Tensor, n_way: int) -> None:
    for name, x in (("support", support), ("query", query)):
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise InvalidInputError(
                f"Expected `{name}` to be images (n, 1 or 3, height, width), but got shape {tuple(x.shape)}."
            )
    M = len(query)
    if tuple(log_prob.shape) != (M, n_way) or tuple(y.shape) != (M,) or M == 0:
        raise InvalidInputError(
            f"Expected `log_prob` of shape {(M, n_way)} and `y` of shape {(M,)}, for {M} queries and {n_way} names, "
            f"but got {tuple(log_prob.shape)} and {tuple(y.shape)}."
        )
    if len(support) % n_way or len(support) == 0:
        raise InvalidInputError(
            f"Expected `support` to have as many images of each of {n_way} classes, but got {len(support)} in all."
        )

"""Learning curves from the logs of runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.files.lazy import need
from mirrorshot.types import InvalidInputError
from mirrorshot.views.figures import draw_grid, hide_frame, look, set_panel_title, short

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

History = Sequence[Mapping[str, Any]]

# key of a record: (title of its panel, whether it is a share)
_PANELS = {
    "elbo": ("ELBO of training tasks, nats per point", False),
    "loss": ("training loss, nats per point", False),
    "val_accuracy": ("validation accuracy", True),
    "val_nll": ("validation NLL, nats per query", False),
}
_SMOOTHED = 20  # windows of the moving mean across a panel
_MANY = 60  # records above which bound and loss are smoothed


def learning_curve_figure(histories: Mapping[str, History]) -> "matplotlib.figure.Figure":
    """Draw the learning curves of runs: training bound or loss, validation accuracy and validation NLL, if logged.

    Long records of bound and loss are drawn faintly, with a moving mean on top. Runs differ in colour and marker.

    Args:
        histories: records of runs (`read_log`) by name, with "step" and any of "elbo" (see `with_elbo`), "loss",
            "val_accuracy" and "val_nll"; missing keys and None are skipped. If all have "episodes", these are the axis.

    Example:
        >>> log = [{"step": i, "episodes": 4 * i, "loss": 1 / i, "val_accuracy": 1 - 1 / i} for i in range(1, 50)]
        >>> figure = learning_curve_figure({"mirror descent": log})
        >>> [ax.get_title(loc="left") for ax in figure.axes]
        ['training loss, nats per point', 'validation accuracy']
    """
    Figure = need("matplotlib.figure").Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = [key for key in _PANELS if any(len(_series(h, key, "step")[0]) for h in histories.values())]
    if not shown:
        raise InvalidInputError(
            f"Expected records with a step and one of {', '.join(_PANELS)}, but {len(histories)} histories have none."
        )
    records = [record for history in histories.values() for record in history]
    axis = "episodes" if all(record.get("episodes") is not None for record in records) else "step"
    n_rows = 1 if len(shown) <= 3 else 2
    n_columns = -(-len(shown) // n_rows)
    size = (4.3 * n_columns, 3.4 * n_rows + 0.5)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    for ax, key in zip(figure.subplots(n_rows, n_columns, squeeze=False).flat, shown, strict=True):
        _draw_panel(ax, key, axis, histories)
    entries = {
        label: handle for ax in figure.axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    columns = max(1, min(len(entries), 4, int(size[0] / (0.6 + 0.085 * max(map(len, entries))))))  # inches of a letter
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return figure


def with_elbo(history: History) -> list[dict[str, Any]]:
    """Replace the loss, which is the negative bound, by the bound.

    Example:
        >>> with_elbo([{"step": 1, "loss": 1.5}])
        [{'step': 1, 'elbo': -1.5}]
    """
    records = [dict(record) for record in history]
    for record in records:
        if "loss" in record:
            loss = record.pop("loss")
            record["elbo"] = None if loss is None else -loss
    return records


def smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return a centred moving mean, with a truncated window at the ends.

    Example:
        >>> smooth(np.array([0.0, 3.0, 0.0, 3.0]), 3).tolist()
        [1.5, 1.0, 2.0, 1.5]
    """
    place = np.arange(len(values))
    total = np.concatenate([[0.0], np.cumsum(values)])
    low, high = np.maximum(place - width // 2, 0), np.minimum(place + width // 2 + 1, len(values))
    return np.asarray((total[high] - total[low]) / (high - low))


def _draw_panel(ax: Any, key: str, axis: str, histories: Mapping[str, History]) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter

    title, is_share = _PANELS[key]
    for i, (name, history) in enumerate(histories.items()):
        x, y = _series(history, key, axis)
        if not len(x):
            continue
        style = {"label": short(name), "linewidth": 1.9, "markersize": 6, "markeredgecolor": "white"}
        if len(x) > _MANY and key in ("elbo", "loss"):
            ax.plot(x, y, color=look(i)["color"], alpha=0.22, linewidth=0.7)
            y = smooth(y, len(x) // _SMOOTHED)
        ax.plot(x, y, markevery=max(1, len(x) // 8), **look(i), **style)
    set_panel_title(ax, title)
    ax.set_xlabel(f"training {axis}" if axis == "episodes" else "training steps")
    draw_grid(ax)
    hide_frame(ax, "left")
    ax.tick_params(length=0)
    ax.set_axisbelow(True)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    if is_share:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))


def _series(history: History, key: str, axis: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    pairs = [(r[axis], r[key]) for r in history if r.get(axis) is not None and r.get(key) is not None]
    points = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    points = points[np.isfinite(points).all(1)]
    return points[:, 0], points[:, 1]

"""Confidence intervals by the bootstrap over tasks.

Queries of one task are dependent, because they share its support and classes. So a resample draws whole tasks with
replacement. Design note: every metric is a function of sums over tasks. A resample is a row with the count of each
task, and one matrix product computes the sums of all resamples. Rejected: evaluation of the metrics on each resample,
for example 1,000 times on 3,000 tasks of 75 predictions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Float, Int

from mirrorshot.metrics.backend import Generator, draw_below, like_array, sort
from mirrorshot.metrics.bins import CalibrationBins, bin_predictions, equal_width_edges
from mirrorshot.metrics.calibration_errors import (
    brier_decomposition,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from mirrorshot.metrics.inputs import checked
from mirrorshot.metrics.scores import brier_terms, nll_terms, right_terms
from mirrorshot.softmax.arrays import Array, arange, double, like, namespace
from mirrorshot.types import InvalidInputError

_MAX_COUNTS = 2**25  # largest number of counts in memory: 256 MiB


class TaskStatistics(NamedTuple):
    """Sums over the queries of each task, in float64.

    Attributes:
        weight: number of queries, or sum of their weights.
        correct, nll, brier: sums of correct predictions and of scores.
        bins: calibration bins of each task, fields of shape (T, B).
    """

    weight: Float[Array, " T"]
    correct: Float[Array, " T"]
    nll: Float[Array, " T"]
    brier: Float[Array, " T"]
    bins: CalibrationBins


class Interval(NamedTuple):
    """A metric over all tasks, with its confidence interval."""

    value: float
    low: float
    high: float


METRICS: Mapping[str, Callable[[TaskStatistics], Array]] = {
    "accuracy": lambda sums: sums.correct / sums.weight,
    "nll": lambda sums: sums.nll / sums.weight,
    "brier": lambda sums: sums.brier / sums.weight,
    "ece": lambda sums: expected_calibration_error(sums.bins),
    "mce": lambda sums: maximum_calibration_error(sums.bins),
    "debiased_ce": lambda sums: debiased_calibration_error(sums.bins),
    "debiased_ece": lambda sums: debiased_calibration_error(sums.bins, norm=1),
    "reliability": lambda sums: brier_decomposition(sums.bins).reliability,
    "resolution": lambda sums: brier_decomposition(sums.bins).resolution,
    "uncertainty": lambda sums: brier_decomposition(sums.bins).uncertainty,
}


def task_statistics(
    prob: Float[Array, "T M C"],
    y: Int[Array, "T M"],
    n_bins: int = 15,
    weight: Float[Array, "T M"] | None = None,
) -> TaskStatistics:
    """Reduce each task to the sums from which `METRICS` are computed, with bins of equal width.

    Example:
        >>> import torch
        >>> prob, y = torch.tensor([[[0.9, 0.1], [0.6, 0.4]]]), torch.tensor([[0, 1]])
        >>> task_statistics(prob, y).correct
        tensor([1.], dtype=torch.float64)
    """
    if prob.ndim != 3:
        raise InvalidInputError(f"Expected `prob` of shape (T, M, C), but got {tuple(prob.shape)}.")
    prob, y, share = checked(prob, y, weight)
    right = double(right_terms(prob, y))
    correct, nll, brier = ((share * double(term)).sum(-1) for term in (right, nll_terms(prob, y), brier_terms(prob, y)))
    bins = bin_predictions(namespace(prob).amax(prob, -1), right, share, equal_width_edges(n_bins, prob))
    return TaskStatistics(share.sum(-1), correct, nll, brier, bins)


def bootstrap_intervals(
    statistics: TaskStatistics,
    generator: Generator,
    n_resamples: int = 1000,
    level: float = 0.95,
    metrics: Sequence[str] = tuple(METRICS),
) -> dict[str, Interval]:
    """Percentile intervals of metrics over all queries, by resampling of tasks.

    Noise biases the plain calibration errors (ece, mce, reliability) upwards, and resampling adds noise, so their
    intervals are too high for well calibrated methods or few tasks. Intervals of the debiased errors are less biased.

    Tasks of zero weight are ignored. `level` is the share of resamples in the interval, `metrics` keys of `METRICS`.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> prob, y = torch.tensor([0.8, 0.2]).expand(200, 5, 2), (torch.rand(200, 5, generator=g) > 0.8).long()
        >>> found = bootstrap_intervals(task_statistics(prob, y), g)["accuracy"]
        >>> found.low < 0.8 < found.high
        True
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        raise InvalidInputError(f"Expected `metrics` from {list(METRICS)}, but got {unknown}.")
    resamples = _resamples(statistics, generator, n_resamples, level)
    whole = _from_table(_table(statistics).sum(0)[None], statistics.bins.edges)
    return {name: _interval(METRICS[name](whole), METRICS[name](resamples), level) for name in dict.fromkeys(metrics)}


def bootstrap_bins(
    statistics: TaskStatistics, generator: Generator, n_resamples: int = 1000, level: float = 0.95
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Percentile intervals of the accuracy in each calibration bin, for a reliability diagram.

    Arguments are as in `bootstrap_intervals`. A bin ignores resamples in which it is empty; a bin without predictions
    has NaN as lower and upper end.

    Example:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> prob, y = torch.tensor([0.8, 0.2]).expand(200, 5, 2), (torch.rand(200, 5, generator=g) > 0.8).long()
        >>> low, high = bootstrap_bins(task_statistics(prob, y), g)
        >>> bool(low[11] < 0.8 < high[11]), bool(low[0].isnan())
        (True, True)
    """
    bins = _resamples(statistics, generator, n_resamples, level).bins
    accuracy, xp = bins.accuracy, namespace(bins.counts)
    is_empty = xp.isnan(accuracy).all(0)
    ends = like(bins.counts, [(1 - level) / 2, (1 + level) / 2])
    low, high = xp.where(is_empty, xp.nan, xp.nanquantile(xp.where(is_empty, 0.0, accuracy), ends, 0))
    return low, high


def _resamples(statistics: TaskStatistics, generator: Generator, n_resamples: int, level: float) -> TaskStatistics:
    real = statistics.weight > 0
    if not bool(real.any()):
        raise InvalidInputError(
            f"Expected `statistics` of at least one task with queries, but got {len(real)} without."
        )
    if n_resamples < 2 or not 0 < level < 1:
        raise InvalidInputError(
            f"Expected `n_resamples` of at least 2 and `level` between 0 and 1, but got {n_resamples} and {level}."
        )
    return _from_table(_resampled(_table(statistics)[real], generator, n_resamples), statistics.bins.edges)


def _table(statistics: TaskStatistics) -> Array:
    """All sums of each task in one row, (T, 4 + 3 B)."""
    weight, correct, nll, brier, bins = statistics
    xp = namespace(weight)
    return xp.concatenate([xp.stack([weight, correct, nll, brier], -1), *bins[1:]], -1)


def _from_table(table: Array, edges: Array) -> TaskStatistics:
    n_bins = len(edges) - 1
    weight, correct, nll, brier = table[:, :4].T
    sums = (table[:, 4 + i * n_bins : 4 + (i + 1) * n_bins] for i in range(3))
    return TaskStatistics(weight, correct, nll, brier, CalibrationBins(edges, *sums))


def _resampled(table: Array, generator: Generator, n_resamples: int) -> Array:
    """Sum of the rows of each resample, (R, columns), computed in pieces to bound memory."""
    xp = namespace(table)
    infinite = xp.isinf(table)
    finite = xp.where(infinite, 0.0, table)  # 0 x inf would be NaN
    piece = max(1, _MAX_COUNTS // len(table))
    sums = []
    for start in range(0, n_resamples, piece):
        counts = _draw_counts(len(table), min(piece, n_resamples - start), generator)
        counts = like_array(table, counts)
        hit = counts @ double(infinite) > 0
        sums.append(xp.where(hit, xp.inf, counts @ finite))
    return xp.concatenate(sums)


def _draw_counts(n_tasks: int, n_resamples: int, generator: Generator) -> Array:
    """Number of draws of each task in each resample, (R, T)."""
    drawn = draw_below(n_tasks, (n_resamples, n_tasks), generator)
    index = (drawn + n_tasks * arange(drawn, n_resamples)[:, None]).reshape(-1)
    counts = namespace(drawn).bincount(index, minlength=n_resamples * n_tasks)
    return double(counts).reshape(n_resamples, n_tasks)


def _interval(value: Array, resamples: Array, level: float) -> Interval:
    ordered = sort(resamples)[0]
    # round outwards to a resample: interpolation between infinite values would be NaN
    skip = int((1 - level) / 2 * (len(ordered) - 1) + 1e-9)  # 1e-9 corrects rounding, as in 3.9999999999999991
    return Interval(float(value[0]), float(ordered[skip]), float(ordered[-1 - skip]))

"""Metrics as functions of probabilities and labels.

`prob` has the classes in its last dimension and the queries in the one before, `y` has the labels 0 .. C - 1.
`accuracy`, `nll` and `brier` average over the queries and keep every dimension before them: one number for
each task of (T, M, C). A single task is too small to show its calibration, so the bins pool all queries of
all tasks. `weight` says how often a query counts; zero is padding, which may hold anything.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.metrics._terms import brier_terms, checked, nll_terms, right_terms, top_label
from mirrorshot.types import InvalidInputError


class CalibrationBins(NamedTuple):
    """Predictions sorted by confidence, the probability of the predicted class.

    Sums, and not means, are stored: the bins of two sets of predictions add up field by field. Several
    sets of bins with the same edges (of classes, of tasks, of resamples) have their dimensions before B.

    Attributes:
        edges: bin b holds confidences in (edges[b], edges[b + 1]], the first bin also 0; (B + 1,).
        counts: number of predictions, or sum of their weights; (B,).
        confidence_sum: sum of their confidences; (B,).
        correct_sum: number of them that were right; (B,).
    """

    edges: Float[Tensor, " B_plus_1"]
    counts: Float[Tensor, "*batch B"]
    confidence_sum: Float[Tensor, "*batch B"]
    correct_sum: Float[Tensor, "*batch B"]

    @property
    def confidence(self) -> Float[Tensor, "*batch B"]:
        """Mean confidence of each bin, NaN where it is empty."""
        return self.confidence_sum / self.counts

    @property
    def accuracy(self) -> Float[Tensor, "*batch B"]:
        """Share of right predictions in each bin, NaN where it is empty."""
        return self.correct_sum / self.counts

    @property
    def share(self) -> Float[Tensor, "*batch B"]:
        """Share of all predictions that fell into each bin."""
        return self.counts / self.counts.sum(-1, keepdim=True)


def accuracy(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], weight: Float[Tensor, "*batch M"] | None = None
) -> Float[Tensor, "*batch"]:
    """Share of queries whose most probable class (the first, if several) is the right one.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        weight: how often each query counts; zero is padding. None: once.

    Returns:
        One number per task, NaN if all of it is padding; a single number for (M, C).

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    prob, y, weight = checked(prob, y, weight)
    return _mean(right_terms(prob, y), weight)


def nll(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], weight: Float[Tensor, "*batch M"] | None = None
) -> Float[Tensor, "*batch"]:
    """Negative log-likelihood: mean of `-log p(right class)`, in nats.

    Infinite if a right class was given probability zero.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        weight: how often each query counts; zero is padding. None: once.

    Returns:
        One number per task, NaN if all of it is padding; a single number for (M, C).

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    prob, y, weight = checked(prob, y, weight)
    return _mean(nll_terms(prob, y), weight)


def brier(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], weight: Float[Tensor, "*batch M"] | None = None
) -> Float[Tensor, "*batch"]:
    """Brier score: mean of `sum_c (p_c - [c is right])^2`, between 0 and 2.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        weight: how often each query counts; zero is padding. None: once.

    Returns:
        One number per task, NaN if all of it is padding; a single number for (M, C).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.2500)
    """
    prob, y, weight = checked(prob, y, weight)
    return _mean(brier_terms(prob, y), weight)


def calibration_bins(
    prob: Float[Tensor, "*batch M C"],
    y: Int[Tensor, "*batch M"],
    n_bins: int = 15,
    weight: Float[Tensor, "*batch M"] | None = None,
) -> CalibrationBins:
    """Sort the predictions of all tasks into confidence bins of equal width.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        n_bins: number of bins; 15 as in the paper.
        weight: how often each query counts; zero is padding. None: once.

    Returns:
        `CalibrationBins`: edges in the type of `prob`, sums in float64.

    Example:
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_bins=2)
        >>> bins.counts.tolist(), bins.accuracy.tolist()
        ([0.0, 2.0], [nan, 0.5])
    """
    top = top_label(*checked(prob, y, weight))
    return bin_predictions(*top, equal_width_edges(n_bins, top.confidence))


def equal_width_edges(n_bins: int, like: Float[Tensor, "..."]) -> Float[Tensor, " B_plus_1"]:
    """Edges 0, 1 / n_bins, ..., 1 in the type of the confidences `like`, and where they are.

    Example:
        >>> equal_width_edges(4, torch.zeros(1))
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    if n_bins < 1:
        raise InvalidInputError(f"Expected `n_bins` to be at least 1, but got {n_bins}.")
    edges = torch.arange(n_bins + 1, dtype=torch.float64, device=like.device) / n_bins
    return edges.to(like.dtype)  # so that a confidence of 0.6 and the edge 0.6 are the same number


def bin_predictions(
    confidence: Float[Tensor, "*groups n"],
    correct: Float[Tensor, "*groups n"],
    weight: Float[Tensor, "*groups n"],
    edges: Float[Tensor, " B_plus_1"],
) -> CalibrationBins:
    """Sums of each bin, in each group (class, task) alone. Every kind of calibration bins is made here.

    Args:
        confidence: probabilities that were given to events.
        correct: 1 for each event that happened, else 0.
        weight: how often each counts.
        edges: of the bins, ascending, in the type of `confidence`.

    Example:
        >>> p, edges = torch.tensor([0.2, 0.9, 1.0]), torch.tensor([0.0, 0.5, 1.0])
        >>> bin_predictions(p, torch.tensor([0.0, 1.0, 0.0]), torch.ones(3), edges).correct_sum
        tensor([0., 1.], dtype=torch.float64)
    """
    groups, n_bins = confidence.shape[:-1], len(edges) - 1
    index = torch.bucketize(confidence.contiguous(), edges[1:-1].contiguous()).reshape(groups.numel(), -1)
    index = (index + n_bins * torch.arange(groups.numel(), device=index.device)[:, None]).flatten()
    weight = weight.double()
    sums = (
        torch.bincount(index, weights=term.flatten(), minlength=groups.numel() * n_bins).reshape(*groups, n_bins)
        for term in (weight, weight * confidence.double(), weight * correct.double())
    )
    return CalibrationBins(edges, *sums)


def expected_calibration_error(bins: CalibrationBins) -> Float[Tensor, "*batch"]:
    """Distance of accuracy and confidence, averaged over the bins by their share of the predictions.

    Example:
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> expected_calibration_error(bins)
        tensor(0.3500, dtype=torch.float64)
    """
    check_bins(bins)
    # sum_b (n_b / n) |acc_b - conf_b|
    return (bins.correct_sum - bins.confidence_sum).abs().sum(-1) / bins.counts.sum(-1)


def maximum_calibration_error(bins: CalibrationBins, min_count: int = 0) -> Float[Tensor, "*batch"]:
    """Distance of accuracy and confidence in the worst bin that holds a prediction.

    Args:
        bins: of `calibration_bins`.
        min_count: bins with fewer predictions are left out: the gap of a bin with a handful of them is mostly noise.

    Example:
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> maximum_calibration_error(bins)
        tensor(0.6000, dtype=torch.float64)
    """
    check_bins(bins)
    fullest = float(bins.counts.amax(-1).min())
    if not fullest >= min_count:
        raise InvalidInputError(
            f"Expected a bin of at least `min_count` = {min_count} predictions, but the fullest has {fullest}."
        )
    use = (bins.counts > 0) & (bins.counts >= min_count)
    gap = (bins.correct_sum - bins.confidence_sum).abs() / torch.where(use, bins.counts, 1.0)
    return torch.where(use, gap, 0.0).amax(-1)


def check_bins(bins: CalibrationBins) -> None:
    """Refuse bins without predictions."""
    if not bool((bins.counts.sum(-1) > 0).all()):
        raise InvalidInputError("Expected `bins` to hold at least one prediction, but all of them are empty.")


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    if weight is None:
        return values.mean(-1)
    weight = weight.to(values.dtype)
    return (weight * values).sum(-1) / weight.sum(-1)

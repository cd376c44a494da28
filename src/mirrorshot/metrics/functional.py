"""Metrics as functions of probabilities and labels.

`prob` has the classes in its last dimension and the queries in the one before, `y` has the labels 0 .. C - 1.
`accuracy`, `nll` and `brier` average over the queries and keep every dimension before them: one number for
each task of (T, M, C). A single task is too small to show its calibration, so the bins pool all queries of
all tasks.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.types import InvalidInputError

_SUM_TOLERANCE = 1e-4  # how far probabilities may be from summing to one; a few roundings if that is more


class CalibrationBins(NamedTuple):
    """Predictions sorted by confidence, the probability of the predicted class.

    Sums, and not means, are stored: the bins of two sets of predictions add up field by field.

    Attributes:
        edges: bin b holds confidences in (edges[b], edges[b + 1]], the first bin also 0; (B + 1,).
        counts: number of predictions; (B,).
        confidence_sum: sum of their confidences; (B,).
        correct_sum: number of them that were right; (B,).
    """

    edges: Float[Tensor, " B_plus_1"]
    counts: Float[Tensor, " B"]
    confidence_sum: Float[Tensor, " B"]
    correct_sum: Float[Tensor, " B"]

    @property
    def confidence(self) -> Float[Tensor, " B"]:
        """Mean confidence of each bin, NaN where it is empty."""
        return self.confidence_sum / self.counts

    @property
    def accuracy(self) -> Float[Tensor, " B"]:
        """Share of right predictions in each bin, NaN where it is empty."""
        return self.correct_sum / self.counts

    @property
    def share(self) -> Float[Tensor, " B"]:
        """Share of all predictions that fell into each bin."""
        return self.counts / self.counts.sum()


def accuracy(prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"]) -> Float[Tensor, "*batch"]:
    """Share of queries whose most probable class (the first, if several) is the right one.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.

    Returns:
        One number per task; a single number for (M, C).

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    _check_predictions(prob, y)
    return (prob.argmax(-1) == y).to(_wide(prob.dtype)).mean(-1)


def nll(prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"]) -> Float[Tensor, "*batch"]:
    """Negative log-likelihood: mean of `-log p(right class)`, in nats.

    Infinite if a right class was given probability zero.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.

    Returns:
        One number per task; a single number for (M, C).

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    _check_predictions(prob, y)
    return -_prob_of_label(prob, y).log().mean(-1)


def brier(prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"]) -> Float[Tensor, "*batch"]:
    """Brier score: mean of `sum_c (p_c - [c is right])^2`, between 0 and 2.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.

    Returns:
        One number per task; a single number for (M, C).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.2500)
    """
    _check_predictions(prob, y)
    # sum_c (p_c - t_c)^2 = sum_c p_c^2 - 2 p_y + 1; written without the cancellation at p_y = 1
    right = _prob_of_label(prob, y)
    others = prob.to(right.dtype).square().scatter(-1, y.long()[..., None], 0.0).sum(-1)
    return ((1 - right).square() + others).mean(-1)


def calibration_bins(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], n_bins: int = 15
) -> CalibrationBins:
    """Sort the predictions of all tasks into confidence bins of equal width.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        n_bins: number of bins; 15 as in the paper.

    Returns:
        `CalibrationBins`: edges in the type of `prob`, sums in float64.

    Example:
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_bins=2)
        >>> bins.counts.tolist(), bins.accuracy.tolist()
        ([0.0, 2.0], [nan, 0.5])
    """
    _check_predictions(prob, y)
    if n_bins < 1:
        raise InvalidInputError(f"Expected `n_bins` to be at least 1, but got {n_bins}.")
    confidence, label = prob.max(-1)
    edges = torch.arange(n_bins + 1, dtype=torch.float64, device=prob.device) / n_bins
    edges = edges.to(prob.dtype)  # so that a confidence of 0.6 and the edge 0.6 are the same number
    index = torch.bucketize(confidence, edges[1:-1]).flatten()
    confidence, correct = (t.double().flatten() for t in (confidence, label == y))
    sums = (
        torch.bincount(index, weights=weight, minlength=n_bins)
        for weight in (torch.ones_like(confidence), confidence, correct)
    )
    return CalibrationBins(edges, *sums)


def expected_calibration_error(bins: CalibrationBins) -> Float[Tensor, ""]:
    """Distance of accuracy and confidence, averaged over the bins by their share of the predictions.

    Example:
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> expected_calibration_error(bins)
        tensor(0.3500, dtype=torch.float64)
    """
    _check_bins(bins)
    # sum_b (n_b / n) |acc_b - conf_b|
    return (bins.correct_sum - bins.confidence_sum).abs().sum() / bins.counts.sum()


def maximum_calibration_error(bins: CalibrationBins) -> Float[Tensor, ""]:
    """Distance of accuracy and confidence in the worst bin that holds a prediction.

    Example:
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> maximum_calibration_error(bins)
        tensor(0.6000, dtype=torch.float64)
    """
    _check_bins(bins)
    gap = (bins.correct_sum - bins.confidence_sum).abs() / bins.counts.clamp(min=1)  # an empty bin has no gap
    return gap.amax()


def _prob_of_label(prob: Tensor, y: Tensor) -> Tensor:
    return prob.gather(-1, y.long()[..., None])[..., 0].to(_wide(prob.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a mean in half precision would have three digits."""
    return torch.promote_types(dtype, torch.float32)


def _check_predictions(prob: Tensor, y: Tensor) -> None:
    _check_shapes(prob, y)
    _check_probabilities(prob)
    low, high, n_classes = int(y.min()), int(y.max()), prob.shape[-1]
    if low < 0 or high >= n_classes:
        raise InvalidInputError(
            f"Expected labels `y` from 0 to {n_classes - 1}, the columns of `prob`, "
            f"but got labels from {low} to {high}."
        )


def _check_shapes(prob: Tensor, y: Tensor) -> None:
    if prob.ndim < 2 or prob.shape[:-1] != y.shape:
        raise InvalidInputError(
            "Expected `prob` of shape (..., M, C) and `y` of shape (..., M), "
            f"but got {tuple(prob.shape)} and {tuple(y.shape)}."
        )
    if prob.numel() == 0:
        raise InvalidInputError(f"Expected at least one prediction, but `prob` has shape {tuple(prob.shape)}.")
    if not prob.is_floating_point() or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidInputError(
            f"Expected `prob` to be floating point and `y` integer, but got {prob.dtype} and {y.dtype}."
        )


def _check_probabilities(prob: Tensor) -> None:
    low = float(prob.min())
    if not low >= 0.0:  # NaN included
        raise InvalidInputError(f"Expected `prob` not to be negative, but its smallest value is {low}.")
    total = prob.sum(-1)
    off = float((total - 1).abs().max())
    if not off <= max(_SUM_TOLERANCE, 4 * torch.finfo(prob.dtype).eps):
        raise InvalidInputError(
            "Expected `prob` to sum to 1 over its last dimension, "
            f"but got sums from {float(total.min()):.6g} to {float(total.max()):.6g}. "
            "Apply a softmax to scores first."
        )


def _check_bins(bins: CalibrationBins) -> None:
    if not float(bins.counts.sum()) > 0:
        raise InvalidInputError("Expected `bins` to hold at least one prediction, but all of them are empty.")

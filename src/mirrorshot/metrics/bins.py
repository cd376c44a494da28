"""Calibration bins: sums over predictions, binned by confidence."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from mirrorshot.metrics.backend import cast, quietly, search, sort
from mirrorshot.metrics.inputs import TopLabel, checked, top_label
from mirrorshot.softmax.arrays import Array, arange, double, namespace
from mirrorshot.types import check_at_least

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


class CalibrationBins(NamedTuple):
    """Predictions binned by confidence, the probability of the predicted class.

    Sums are stored instead of means, so the bins of two sets of predictions can be added field by field. Batches of
    bins with the same edges (of classes, tasks or resamples) have their dimensions before B.

    Attributes:
        edges: bin b contains confidences in (edges[b], edges[b + 1]]; the first bin includes 0.
        counts: number of predictions, or sum of their weights.
        confidence_sum: weighted sum of their confidences.
        correct_sum: number of correct predictions, or sum of their weights.
    """

    edges: Float[Array, " B_plus_1"]
    counts: Float[Array, "*batch B"]
    confidence_sum: Float[Array, "*batch B"]
    correct_sum: Float[Array, "*batch B"]

    @property
    @quietly
    def confidence(self) -> Float[Array, "*batch B"]:
        """Mean confidence of each bin; NaN if it is empty."""
        return self.confidence_sum / self.counts

    @property
    @quietly
    def accuracy(self) -> Float[Array, "*batch B"]:
        """Share of correct predictions in each bin; NaN if it is empty."""
        return self.correct_sum / self.counts

    @property
    def share(self) -> Float[Array, "*batch B"]:
        """Share of all predictions in each bin."""
        return self.counts / self.counts.sum(-1)[..., None]


def calibration_bins(
    prob: Float[Array, "*batch M C"],
    y: Int[Array, "*batch M"],
    n_bins: int = 15,
    weight: Float[Array, "*batch M"] | None = None,
    *,
    equal_mass: bool = False,
) -> CalibrationBins:
    """Bin the predictions of all tasks by confidence, with edges in the dtype of `prob` and sums in float64.

    The bins have equal width or, with `equal_mass`, equal numbers of predictions, for the adaptive ECE of Nguyen and
    O'Connor, "Posterior calibration and exploratory analysis for natural language processing models", 2015,
    https://arxiv.org/abs/1508.05154.

    Design note: with `equal_mass`, the edges are quantiles of the confidences, so the order of equal confidences does
    not matter, but bins may differ in size or be empty. Rejected: equal pieces of the sorted list.

    Example:
        >>> import torch
        >>> prob = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
        >>> bins = calibration_bins(prob, torch.tensor([0, 0, 1, 1]), n_bins=2)
        >>> bins.counts.tolist(), bins.accuracy.tolist()
        ([0.0, 4.0], [nan, 0.5])
        >>> calibration_bins(prob, torch.tensor([0, 0, 1, 1]), n_bins=2, equal_mass=True).edges
        tensor([0.0000, 0.7000, 1.0000])
    """
    top = top_label(prob, y, weight)
    edges = equal_width_edges(n_bins, top.confidence)
    return bin_predictions(*top, _equal_mass_edges(top, edges) if equal_mass else edges)


def class_calibration_bins(
    prob: Float[Array, "*batch M C"],
    y: Int[Array, "*batch M"],
    n_bins: int = 15,
    weight: Float[Array, "*batch M"] | None = None,
) -> CalibrationBins:
    """Bin the probabilities of each class, predicted or not, with equal width; fields have shape (C, B).

    Example:
        >>> import torch
        >>> class_calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_bins=2).counts
        tensor([[0., 2.],
                [2., 0.]], dtype=torch.float64)
    """
    prob, y, share = checked(prob, y, weight)
    columns = prob.reshape(-1, prob.shape[-1]).T
    happened = y.reshape(-1) == arange(y, len(columns))[:, None]
    weights = namespace(prob).broadcast_to(share.reshape(-1), columns.shape)
    return bin_predictions(columns, double(happened), weights, equal_width_edges(n_bins, prob))


def equal_width_edges(n_bins: int, like: Float[Array, "..."]) -> Float[Array, " B_plus_1"]:
    """Return the edges 0, 1 / n_bins, ..., 1 in the dtype and on the device of `like`."""
    check_at_least(1, n_bins=n_bins)
    edges = double(arange(like, n_bins + 1)) / n_bins
    return cast(edges, like.dtype)  # a confidence of 0.6 must equal the edge 0.6


def bin_predictions(
    confidence: Float[Array, "*groups n"],
    correct: Float[Array, "*groups n"],
    weight: Float[Array, "*groups n"],
    edges: Float[Array, " B_plus_1"],
) -> CalibrationBins:
    """Sum predictions per bin and group (class, task); `edges` ascend, in the dtype of `confidence`."""
    xp, groups, n_bins = namespace(confidence), confidence.shape[:-1], len(edges) - 1
    n_groups = math.prod(groups)
    index = search(edges[1:-1], confidence).reshape(n_groups, -1)
    index = (index + n_bins * arange(index, n_groups)[:, None]).reshape(-1)
    weight = double(weight)
    sums = (
        xp.bincount(index, weights=term.reshape(-1), minlength=n_groups * n_bins).reshape(*groups, n_bins)
        for term in (weight, weight * double(confidence), weight * double(correct))
    )
    return CalibrationBins(edges, *sums)


def _equal_mass_edges(top: TopLabel, edges: Array) -> Array:
    """Replace the inner edges by the smallest confidences that reach a share b / B of the mass."""
    confidence, order = sort(top.confidence)
    mass = top.weight[order].cumsum(0)
    n_bins = len(edges) - 1
    wanted = mass[-1] * arange(mass, n_bins)[1:] / n_bins
    inner = confidence[namespace(mass).clip(search(mass, wanted), None, len(mass) - 1)]
    return namespace(edges).concatenate([edges[:1], inner, edges[-1:]])


def wilson_interval(
    share: NDArray[np.float64], count: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's 95 % confidence interval of a probability, from the share of successes in `count` trials.

    It stays within [0, 1] and, unlike the normal approximation, has a positive width at shares of 0 and 1.

    Example:
        >>> low, high = wilson_interval(np.array([1.0]), np.array([10.0]))
        >>> low.round(3), high.round(3)
        (array([0.722]), array([1.]))
    """
    # (p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    z2 = Z_95**2 / count
    half = np.sqrt(z2 * share * (1 - share) + z2 * z2 / 4)
    return (share + z2 / 2 - half) / (1 + z2), (share + z2 / 2 + half) / (1 + z2)

"""Calibration errors as functions of `CalibrationBins`, with any batch dimensions."""

import math
from typing import NamedTuple

from jaxtyping import Float

from mirrorshot.metrics.backend import erf
from mirrorshot.metrics.bins import CalibrationBins
from mirrorshot.softmax.arrays import Array, at_least, namespace
from mirrorshot.types import InvalidInputError


def expected_calibration_error(bins: CalibrationBins) -> Float[Array, "*batch"]:
    """Expected calibration error (ECE): mean distance of accuracy and confidence of bins, weighted by counts.

    Example:
        >>> import torch
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> expected_calibration_error(bins)
        tensor(0.3500, dtype=torch.float64)
    """
    _check_bins(bins)
    # sum_b (n_b / n) |acc_b - conf_b|
    return abs(bins.correct_sum - bins.confidence_sum).sum(-1) / bins.counts.sum(-1)


def maximum_calibration_error(bins: CalibrationBins, min_count: int = 0) -> Float[Array, "*batch"]:
    """Maximum calibration error (MCE): largest distance of accuracy and confidence of a bin.

    Empty bins are ignored, and bins with less than `min_count` predictions, whose distance is mostly noise.

    Example:
        >>> import torch
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> maximum_calibration_error(bins)
        tensor(0.6000, dtype=torch.float64)
    """
    _check_bins(bins)
    xp = namespace(bins.counts)
    fullest = float(xp.amax(bins.counts, -1).min())
    if not fullest >= min_count:
        raise InvalidInputError(
            f"Expected a bin of at least `min_count` = {min_count} predictions, but the fullest has {fullest}."
        )
    use = (bins.counts > 0) & (bins.counts >= min_count)
    gap = abs(bins.correct_sum - bins.confidence_sum) / xp.where(use, bins.counts, 1.0)
    return xp.amax(xp.where(use, gap, 0.0), -1)


def class_calibration_error(bins: CalibrationBins) -> Float[Array, ""]:
    """Class-wise ECE of `class_calibration_bins`: the mean of the ECE of each class.

    Kull et al., "Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with Dirichlet
    calibration", 2019, https://arxiv.org/abs/1910.12656. It measures all probabilities, not only the largest. Labels
    0 .. C - 1 stand for other classes in each few-shot task, so it says nothing about a particular class.

    Example:
        >>> import torch
        >>> from mirrorshot.metrics import class_calibration_bins
        >>> bins = class_calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> round(float(class_calibration_error(bins)), 4)
        0.35
    """
    return expected_calibration_error(bins).mean()


def debiased_squared_error(bins: CalibrationBins) -> Float[Array, "*batch"]:
    """Squared calibration error minus its expected noise: zero on average for calibrated bins, so possibly negative.

    Kumar, Liang, Ma, "Verified Uncertainty Calibration", 2019, https://arxiv.org/abs/1909.10155 (definition 5.2);
    earlier Bröcker, "Estimating reliability and resolution of probability forecasts through decomposition of the
    empirical score", 2012, https://doi.org/10.1007/s00382-011-1191-1. As in the authors' code, bins with less than two
    predictions are ignored. Weights must be 0 or 1.

    Example:
        >>> import torch
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.5, 0.5]]).expand(4, 2), torch.tensor([0, 0, 1, 1]))
        >>> round(float(debiased_squared_error(bins)), 4)  # the plain one is zero
        -0.0833
    """
    _check_bins(bins)
    xp, use = namespace(bins.counts), bins.counts >= 2
    counts = xp.where(use, bins.counts, 2.0)
    accuracy = bins.correct_sum / counts
    # sum_b (n_b / n) [(conf_b - acc_b)^2 - acc_b (1 - acc_b) / (n_b - 1)]
    error = ((bins.confidence_sum - bins.correct_sum) / counts) ** 2 - accuracy * (1 - accuracy) / (counts - 1)
    return xp.where(use, counts * error, 0.0).sum(-1) / bins.counts.sum(-1)


def debiased_calibration_error(bins: CalibrationBins, norm: int = 2) -> Float[Array, "*batch"]:
    """Calibration error minus its bias, which grows with the number of bins; at least zero.

    `norm=2` is the root of `debiased_squared_error`; it is comparable with a root mean square, not with an ECE.
    `norm=1` is the ECE minus its bias for normal errors of the accuracies, `2 ECE - E[ECE]`, as in Kumar et al.'s code
    (there by random draws, here by the mean of a folded normal). Weights must be 0 or 1.

    Example:
        >>> import torch
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1]]).expand(100, 2), torch.arange(100) % 2)
        >>> round(float(debiased_calibration_error(bins)), 4), round(float(debiased_calibration_error(bins, 1)), 4)
        (0.3968, 0.4)
    """
    if norm not in (1, 2):
        raise InvalidInputError(f"Expected `norm` to be 1 or 2, but got {norm}.")
    xp = namespace(bins.counts)
    if norm == 2:
        return xp.sqrt(at_least(debiased_squared_error(bins), 0.0))
    _check_bins(bins)
    counts = _no_zeros(bins.counts)
    accuracy = bins.correct_sum / counts
    gap = abs((bins.confidence_sum - bins.correct_sum) / counts)
    expected = _folded_normal_mean(gap, xp.sqrt(at_least(accuracy * (1 - accuracy) / counts, 0.0)))
    return at_least(((2 * gap - expected) * bins.counts).sum(-1), 0.0) / bins.counts.sum(-1)


class BrierDecomposition(NamedTuple):
    """Parts of the Brier score of the top label, see `brier_decomposition`.

    Attributes:
        reliability: mean squared distance of confidence and accuracy; 0 is calibrated.
        resolution: variance of the accuracies of the bins; higher is better.
        uncertainty: accuracy times error rate, which does not depend on the probabilities.
    """

    reliability: Float[Array, "*batch"]
    resolution: Float[Array, "*batch"]
    uncertainty: Float[Array, "*batch"]

    @property
    def score(self) -> Float[Array, "*batch"]:
        """Mean of `(mean confidence of the bin - [prediction is correct])^2`."""
        return self.reliability - self.resolution + self.uncertainty


def brier_decomposition(bins: CalibrationBins) -> BrierDecomposition:
    """Split the Brier score of the top label into reliability - resolution + uncertainty.

    Murphy, "A New Vector Partition of the Probability Score", 1973,
    https://doi.org/10.1175/1520-0450(1973)012<0595:ANVPOT>2.0.CO;2.

    The event is "the predicted class is correct", its forecast the confidence. This differs from `brier`, which sums
    over all classes. The sum is exact if the mean confidence of its bin replaces each confidence.

    Example:
        >>> import torch
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> [round(float(part), 4) for part in brier_decomposition(bins)]
        [0.185, 0.25, 0.25]
    """
    _check_bins(bins)
    total, counts = bins.counts.sum(-1), _no_zeros(bins.counts)
    average = bins.correct_sum.sum(-1) / total
    # REL = sum_b (n_b / n) (conf_b - acc_b)^2;  RES = sum_b (n_b / n) (acc_b - acc)^2;  UNC = acc (1 - acc)
    reliability = ((bins.confidence_sum - bins.correct_sum) ** 2 / counts).sum(-1) / total
    excess = bins.correct_sum - bins.counts * average[..., None]
    return BrierDecomposition(reliability, (excess**2 / counts).sum(-1) / total, average * (1 - average))


def _check_bins(bins: CalibrationBins) -> None:
    if not bool((bins.counts.sum(-1) > 0).all()):
        raise InvalidInputError("Expected `bins` to hold at least one prediction, but all of them are empty.")


def _no_zeros(counts: Array) -> Array:
    return namespace(counts).where(counts > 0, counts, 1.0)


def _folded_normal_mean(mean: Array, sd: Array) -> Array:
    """E|X| of X ~ N(mean, sd^2), for mean >= 0."""
    xp = namespace(sd)
    ratio = xp.where(sd > 0, mean / xp.where(sd > 0, sd, 1.0), 0.0) / math.sqrt(2)
    # sd sqrt(2 / pi) exp(-mean^2 / (2 sd^2)) + mean erf(mean / (sd sqrt(2)))
    value = sd * math.sqrt(2 / math.pi) * xp.exp(-(ratio**2)) + mean * erf(ratio)
    return xp.where(sd > 0, value, mean)

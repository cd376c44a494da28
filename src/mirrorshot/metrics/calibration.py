"""More about calibration: bins of equal mass, each class by itself, errors without bias, the parts of the Brier score.

All start from `CalibrationBins`, so that each works on the bins of one call, of a stream, or of 1,000 resamples.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.linalg import one_hot
from mirrorshot.metrics._terms import TopLabel, checked, top_label, weight_of
from mirrorshot.metrics.functional import (
    CalibrationBins,
    bin_predictions,
    check_bins,
    equal_width_edges,
    expected_calibration_error,
)
from mirrorshot.types import InvalidInputError


class BrierDecomposition(NamedTuple):
    """Parts of the Brier score of the top label, see `brier_decomposition`.

    Attributes:
        reliability: mean squared distance of confidence and accuracy; 0 is calibrated.
        resolution: how much the accuracies of the bins differ; more is better.
        uncertainty: accuracy times error rate; no merit of the probabilities.
    """

    reliability: Float[Tensor, "*batch"]
    resolution: Float[Tensor, "*batch"]
    uncertainty: Float[Tensor, "*batch"]

    @property
    def score(self) -> Float[Tensor, "*batch"]:
        """Mean of `(mean confidence of the bin - [prediction is right])^2`."""
        return self.reliability - self.resolution + self.uncertainty


def brier_decomposition(bins: CalibrationBins) -> BrierDecomposition:
    """Split the Brier score of the top label into reliability - resolution + uncertainty.

    Murphy, "A New Vector Partition of the Probability Score", 1973,
    https://doi.org/10.1175/1520-0450(1973)012<0595:ANVPOT>2.0.CO;2.

    The event is "the predicted class is right", its forecast the confidence. This is not `brier`, which sums over all
    classes. The parts add up exactly if each confidence is replaced by the mean of its bin; what confidences do within
    a bin is in none of them.

    Args:
        bins: of `calibration_bins` or `adaptive_calibration_bins`.

    Example:
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> [round(float(part), 4) for part in brier_decomposition(bins)]
        [0.185, 0.25, 0.25]
    """
    check_bins(bins)
    total = bins.counts.sum(-1)
    average = bins.correct_sum.sum(-1) / total
    counts = _no_zeros(bins.counts)
    # REL = sum_b (n_b / n) (conf_b - acc_b)^2;  RES = sum_b (n_b / n) (acc_b - acc)^2;  UNC = acc (1 - acc)
    reliability = ((bins.confidence_sum - bins.correct_sum).square() / counts).sum(-1) / total
    excess = bins.correct_sum - bins.counts * average[..., None]
    resolution = (excess.square() / counts).sum(-1) / total
    return BrierDecomposition(reliability, resolution, average * (1 - average))


def debiased_squared_error(bins: CalibrationBins) -> Float[Tensor, "*batch"]:
    """Squared calibration error without the part that is noise: on average zero for calibrated bins, so also negative.

    Kumar, Liang, Ma, "Verified Uncertainty Calibration", 2019, https://arxiv.org/abs/1909.10155 (definition 5.2);
    earlier Bröcker, "Estimating reliability and resolution of probability forecasts through decomposition of the
    empirical score", 2012, https://doi.org/10.1007/s00382-011-1191-1. As in the authors' code, a bin with less than two
    predictions adds nothing.

    Args:
        bins: their counts must be numbers of predictions, so weights 0 and 1 only.

    Example:
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.5, 0.5]]).expand(4, 2), torch.tensor([0, 0, 1, 1]))
        >>> round(float(debiased_squared_error(bins)), 4)  # the plain one is zero
        -0.0833
    """
    check_bins(bins)
    use = bins.counts >= 2
    counts = torch.where(use, bins.counts, 2.0)
    accuracy = bins.correct_sum / counts
    # sum_b (n_b / n) [(conf_b - acc_b)^2 - acc_b (1 - acc_b) / (n_b - 1)]
    error = ((bins.confidence_sum - bins.correct_sum) / counts).square() - accuracy * (1 - accuracy) / (counts - 1)
    return torch.where(use, counts * error, 0.0).sum(-1) / bins.counts.sum(-1)


def debiased_calibration_error(bins: CalibrationBins, norm: int = 2) -> Float[Tensor, "*batch"]:
    """Calibration error less its bias, which makes the plain one grow with the number of bins; zero if less than that.

    Args:
        bins: their counts must be numbers of predictions, so weights 0 and 1 only.
        norm: 2 is the root of `debiased_squared_error`, to be compared with a root of mean squares and not with an ECE.
            1 is the ECE less its bias, if accuracies of bins scatter normally: `2 ECE - E[ECE]`, as in Kumar et al.'s
            code (there with random draws, here the mean of a folded normal).

    Example:
        >>> from mirrorshot.metrics import calibration_bins
        >>> bins = calibration_bins(torch.tensor([[0.9, 0.1]]).expand(100, 2), torch.arange(100) % 2)
        >>> round(float(debiased_calibration_error(bins)), 4), round(float(debiased_calibration_error(bins, 1)), 4)
        (0.3968, 0.4)
    """
    if norm not in (1, 2):
        raise InvalidInputError(f"Expected `norm` to be 1 or 2, but got {norm}.")
    if norm == 2:
        return debiased_squared_error(bins).clamp(min=0.0).sqrt()
    check_bins(bins)
    counts = _no_zeros(bins.counts)
    accuracy = bins.correct_sum / counts
    gap = ((bins.confidence_sum - bins.correct_sum) / counts).abs()
    expected = _folded_normal_mean(gap, (accuracy * (1 - accuracy) / counts).clamp(min=0.0).sqrt())
    return ((2 * gap - expected) * bins.counts).sum(-1).clamp(min=0.0) / bins.counts.sum(-1)


def adaptive_calibration_bins(
    prob: Float[Tensor, "*batch M C"],
    y: Int[Tensor, "*batch M"],
    n_bins: int = 15,
    weight: Float[Tensor, "*batch M"] | None = None,
) -> CalibrationBins:
    """Sort the predictions of all tasks into confidence bins of equal mass, for the ECE and all other errors of bins.

    Nguyen, O'Connor, "Posterior calibration and exploratory analysis for natural language processing models", 2015,
    https://arxiv.org/abs/1508.05154.

    Design note: the edges are quantiles of the confidences, so that equal confidences share a bin, and the result does
    not depend on the order of predictions. Where there are ties, bins are not exactly equal, and some
    may be empty. Rejected: to cut the sorted list into equal pieces.

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        n_bins: number of bins.
        weight: how often each query counts; zero is padding. None: once.

    Example:
        >>> prob = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
        >>> bins = adaptive_calibration_bins(prob, torch.tensor([0, 0, 1, 1]), n_bins=2)
        >>> bins.edges, bins.counts.tolist()
        (tensor([0.0000, 0.7000, 1.0000]), [2.0, 2.0])
    """
    return equal_mass_bins(top_label(*checked(prob, y, weight)), n_bins)


def equal_mass_bins(top: TopLabel, n_bins: int) -> CalibrationBins:
    """Bins of equal mass of pooled predictions, for calls and streams."""
    edges = equal_width_edges(n_bins, top.confidence).clone()
    confidence, order = top.confidence.sort()
    mass = top.weight[order].cumsum(0)
    # the smallest confidence at which a share b / B of the mass is reached
    wanted = mass[-1] * torch.arange(1, n_bins, dtype=mass.dtype, device=mass.device) / n_bins
    edges[1:-1] = confidence[torch.searchsorted(mass, wanted).clamp(max=len(mass) - 1)]
    return bin_predictions(*top, edges)


def class_calibration_bins(
    prob: Float[Tensor, "*batch M C"],
    y: Int[Tensor, "*batch M"],
    n_bins: int = 15,
    weight: Float[Tensor, "*batch M"] | None = None,
) -> CalibrationBins:
    """Sort the probabilities of each class, predicted or not, into bins of equal width: fields of shape (C, B).

    Args:
        prob: class probabilities.
        y: labels 0 .. C - 1.
        n_bins: number of bins.
        weight: how often each query counts; zero is padding. None: once.

    Example:
        >>> class_calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_bins=2).counts
        tensor([[0., 2.],
                [2., 0.]], dtype=torch.float64)
    """
    prob, y, weight = checked(prob, y, weight)
    rows, label = prob.flatten(0, -2), y.flatten()
    happened = one_hot(label, rows.shape[-1], torch.float64).mT
    share = weight_of(weight, y).flatten()[:, None].expand_as(rows)
    return bin_predictions(rows.T, happened.T, share.T, equal_width_edges(n_bins, rows))


def class_calibration_error(bins: CalibrationBins) -> Float[Tensor, ""]:
    """Class-wise ECE: the mean over the classes of the calibration error of their probabilities.

    Kull et al., "Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with Dirichlet
    calibration", 2019, https://arxiv.org/abs/1910.12656. In few-shot tasks the class is the place 0 .. C - 1 within the
    task, which means another class in the next one: the error of all probabilities, not only the largest.

    Args:
        bins: of `class_calibration_bins`.

    Example:
        >>> bins = class_calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> round(float(class_calibration_error(bins)), 4)
        0.35
    """
    return expected_calibration_error(bins).mean()


def _no_zeros(counts: Tensor) -> Tensor:
    """Counts to divide by; the sums of an empty bin are zero anyway."""
    return torch.where(counts > 0, counts, 1.0)


def _folded_normal_mean(mean: Tensor, sd: Tensor) -> Tensor:
    """E|X| of X ~ N(mean, sd^2), for mean >= 0."""
    ratio = torch.where(sd > 0, mean / torch.where(sd > 0, sd, 1.0), 0.0) / math.sqrt(2)
    # sd sqrt(2 / pi) exp(-mean^2 / (2 sd^2)) + mean erf(mean / (sd sqrt(2)))
    value = sd * math.sqrt(2 / math.pi) * (-ratio.square()).exp() + mean * ratio.erf()
    return torch.where(sd > 0, value, mean)

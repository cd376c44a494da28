"""Metrics of the order of predictions by confidence: risk-coverage curves and areas under ROC curves.

Results are means over all orders of equal scores.
"""

import math
from typing import NamedTuple

from jaxtyping import Float, Int

from mirrorshot.metrics.backend import cast, digamma, search, sort
from mirrorshot.metrics.inputs import TopLabel, check_weight, top_label
from mirrorshot.softmax.arrays import Array, arange, at_least, at_most, double, full, namespace
from mirrorshot.types import InvalidInputError, check_at_least


class RiskCoverage(NamedTuple):
    """Error rate (`risk`) of the most confident share (`coverage`, ascending to 1) of the predictions."""

    coverage: Float[Array, " n"]
    risk: Float[Array, " n"]


def auroc(
    positive: Float[Array, "..."],
    negative: Float[Array, "..."],
    positive_weight: Float[Array, "..."] | None = None,
    negative_weight: Float[Array, "..."] | None = None,
) -> Float[Array, ""]:
    """Area under the ROC curve: probability that a positive has a higher score than a negative; a tie counts half.

    In float64; 0.5 is chance, 1 perfect separation. Weights count each score; zero is padding.

    For out-of-distribution detection, pass any confidence (the largest probability, or the negative entropy), with
    queries of the task's classes as positives and other queries as negatives.

    Example:
        >>> import torch
        >>> auroc(torch.tensor([0.9, 0.8, 0.4]), torch.tensor([0.4, 0.2]))
        tensor(0.9167, dtype=torch.float64)
    """
    above, above_weight = _pooled(positive, positive_weight, "positive")
    below, below_weight = _pooled(negative, negative_weight, "negative")
    dtype = namespace(above).promote_types(above.dtype, below.dtype)
    below, order = sort(cast(below, dtype))
    above = cast(above, dtype)
    mass = _sums_before(below_weight[order])
    less, not_greater = (mass[search(below, above, right=right)] for right in (False, True))
    # P(below < above) + P(below = above) / 2
    return (above_weight * (less + not_greater)).sum() / (2 * above_weight.sum() * mass[-1])


def correctness_auroc(
    prob: Float[Array, "*batch M C"], y: Int[Array, "*batch M"], weight: Float[Array, "*batch M"] | None = None
) -> Float[Array, ""]:
    """Area under the ROC curve of correct against wrong predictions by confidence, over all tasks.

    NaN if all predictions are correct, or all wrong.

    Example:
        >>> import torch
        >>> correctness_auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(1., dtype=torch.float64)
    """
    confidence, correct, share = top_label(prob, y, weight)
    right = correct > 0
    if bool(right.all()) or not bool(right.any()):
        return full(share, (), math.nan)
    return auroc(confidence[right], confidence[~right], share[right], share[~right])


def aurc(
    prob: Float[Array, "*batch M C"], y: Int[Array, "*batch M"], weight: Float[Array, "*batch M"] | None = None
) -> Float[Array, ""]:
    """Area under the risk-coverage curve: mean over n of the error rate of the n most confident predictions.

    Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers", 2019,
    https://arxiv.org/abs/1805.08206. Lower is better.

    Example:
        >>> import torch
        >>> aurc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.2500, dtype=torch.float64)
    """
    return _area(*_groups(top_label(prob, y, weight)))


def excess_aurc(
    prob: Float[Array, "*batch M C"], y: Int[Array, "*batch M"], weight: Float[Array, "*batch M"] | None = None
) -> Float[Array, ""]:
    """`aurc` minus that of the best order, in which all correct predictions come first; 0 is best.

    The best area is exact; Geifman et al. use its limit `r + (1 - r) log(1 - r)` for many predictions.

    Example:
        >>> import torch
        >>> excess_aurc(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([0, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    weights, errors = _groups(top_label(prob, y, weight))
    xp, wrong = namespace(weights), errors.sum()
    best = _area(xp.stack([weights.sum() - wrong, wrong]), xp.stack([0 * wrong, wrong]))
    return at_least(_area(weights, errors) - best, 0.0)  # rounding


def risk_coverage(
    prob: Float[Array, "*batch M C"],
    y: Int[Array, "*batch M"],
    weight: Float[Array, "*batch M"] | None = None,
    n_points: int = 100,
) -> RiskCoverage:
    """Error rate of the most confident predictions at `n_points` evenly spaced coverages; `aurc` is the area below.

    Example:
        >>> import torch
        >>> risk_coverage(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]), n_points=2).risk
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    check_at_least(1, n_points=n_points)
    weights, errors = _groups(top_label(prob, y, weight))
    mass, wrong = _sums_before(weights), _sums_before(errors)
    coverage = double(arange(mass, n_points + 1)[1:]) / n_points
    wanted = coverage * mass[-1]
    group = namespace(mass).clip(search(mass, wanted), 1, len(weights))
    inside = at_most((wanted - mass[group - 1]) / weights[group - 1], 1.0)
    return RiskCoverage(coverage, (wrong[group - 1] + inside * errors[group - 1]) / wanted)


def _groups(top: TopLabel) -> tuple[Array, Array]:
    """Weights and errors of groups of equal confidence, the most confident first."""
    xp = namespace(top.confidence)
    _, group = xp.unique(top.confidence, return_inverse=True)  # ascending
    group = group.max() - group
    return xp.bincount(group, weights=top.weight), xp.bincount(group, weights=top.weight * (1 - top.correct))


def _sums_before(x: Array) -> Array:
    """Sums of the first 0, 1, .. n entries."""
    return namespace(x).concatenate([full(x, (1,), 0.0), x.cumsum(0)])


def _area(weight: Array, errors: Array) -> Array:
    """Mean of the cumulative error rate over groups of equal confidence, the most confident first.

    The errors of a group are spread evenly: with weight w and error rate r, after N predictions with E errors, it adds
    `sum_{j=1..w} (E + r j) / (N + j)`. The digamma form is exact for integer weights and defined for all others.
    """
    rate = errors / namespace(weight).where(weight > 0, weight, 1.0)
    n_before, errors_before = weight.cumsum(0) - weight, errors.cumsum(0) - errors
    # sum_j (E + r j) / (N + j) = r w + (E - r N) (psi(N + w + 1) - psi(N + 1))
    harmonic = digamma(n_before + weight + 1) - digamma(n_before + 1)
    return (errors + (errors_before - rate * n_before) * harmonic).sum() / weight.sum()


def _pooled(score: Array, weight: Array | None, name: str) -> tuple[Array, Array]:
    """Scores and float64 weights (n,), without padding."""
    xp = namespace(score)
    if math.prod(score.shape) == 0:
        raise InvalidInputError(f"Expected at least one score in `{name}`, but its shape is {tuple(score.shape)}.")
    if weight is not None:
        check_weight(weight, score, name, f"{name}_weight")
    share = xp.ones_like(score, dtype=xp.float64) if weight is None else double(weight)
    score, share = score[share > 0], share[share > 0]
    n_bad = int(xp.isnan(score).sum())
    if n_bad:
        raise InvalidInputError(f"Expected `{name}` to be numbers, but got NaN in {n_bad} of them.")
    return score, share

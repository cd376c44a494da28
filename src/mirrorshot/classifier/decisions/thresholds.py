"""Thresholds for label sets with a coverage, and for accepted predictions with a risk.

In all functions `weight` is the number of points for which each point stands, `top` the probability of its predicted
label, and `wrong` whether that label is wrong.
"""

import math

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from mirrorshot.softmax.arrays import NDArray


def scores_needed(coverage: float) -> int:
    """Return the fewest scores with which a conformal set of that coverage can leave out a label.

    Example:
        >>> scores_needed(0.9), scores_needed(0.5)
        (9, 1)
    """
    return math.ceil(1.0 / (1.0 - coverage) - 1e-9) - 1


def conformal_threshold(
    score: Float[NDArray[np.float64], " N"],
    weight: Float[NDArray[np.float64], " N"],
    coverage: float,
    *,
    interpolate: bool = True,
) -> float:
    """Return the conformal quantile: the score that a share `coverage` of exchangeable new points reaches.

    A new point falls with equal probability between any two of the `n` sorted scores (large is typical), so a share
    `j / (n + 1)` lies below the j-th. The position `(n + 1) (1 - coverage)` is seldom an integer, so the threshold is
    interpolated between two scores. Without `interpolate` it is the lower score, as usual, which covers at least
    `coverage`, and up to `1 / (n + 1)` more: much for few examples.

    Example:
        >>> import numpy as np
        >>> round(conformal_threshold(np.arange(1.0, 20.0), np.ones(19), 0.9), 6)
        2.0
    """
    order = score.argsort(stable=True)
    rank = weight[order].cumsum(0)
    position = (1.0 - coverage) * (float(rank[-1]) + 1.0)
    upper = min(int((rank < position - 1e-9).sum()), len(order) - 1)
    lower = max(upper - 1, 0)
    # the j-th of equal points has rank j: within the weight of one example the score is constant
    size = float(weight[order[upper]])
    share = min(max((position - float(rank[upper]) + size) / min(size, 1.0), 0.0), 1.0)
    share = share if interpolate or share >= 1.0 - 1e-9 else 0.0
    low, high = float(score[order[lower]]), float(score[order[upper]])
    return low + share * (high - low)


def expected_risk_threshold(
    top: Float[NDArray[np.float64], " N"], weight: Float[NDArray[np.float64], " N"], target_risk: float
) -> tuple[float, float]:
    """Return the lowest threshold of `top` above which the expected error rate is at most `target_risk`, and that rate.

    A calibrated prediction of probability p is wrong with probability 1 - p. The threshold is the lowest `t` with

        mean of (1 - p_i) over the points with p_i >= t  <=  target_risk,

    or `1 - target_risk` if that is lower, because a point that reaches it keeps to the target by itself. If no point
    reaches the threshold, the rate is `target_risk`.

    Example:
        >>> import numpy as np
        >>> threshold, risk = expected_risk_threshold(np.array([0.99, 0.9, 0.7, 0.4]), np.ones(4), 0.1)
        >>> round(threshold, 3), round(risk, 3)
        (0.9, 0.055)
    """
    order = (-top).argsort(stable=True)
    expected = (weight * (1.0 - top))[order].cumsum(0) / weight[order].cumsum(0)
    passed = (expected <= target_risk + 1e-12) & _ends(top[order])
    if not passed.any():
        return 1.0 - target_risk, target_risk
    last = int(np.flatnonzero(passed)[-1])
    return min(float(top[order[last]]), 1.0 - target_risk), float(expected[last])


def errors_tail(
    top: Float[NDArray[np.float64], " N"],
    wrong: Bool[NDArray[np.bool_], " N"],
    weight: Float[NDArray[np.float64], " N"],
) -> float:
    """Return the probability of at least the observed number of errors, if the probabilities are right.

    It is the binomial tail at the mean of `1 - p`; for points of different `p` the number of errors varies less.

    Example:
        >>> import numpy as np
        >>> top = np.full(10, 0.9)
        >>> round(errors_tail(top, np.arange(10) < 4, np.ones(10)), 3)
        0.013
    """
    n, e = float(weight.sum()), float((weight * wrong).sum())
    if e == 0.0:
        return 1.0
    rate = float((weight * (1.0 - top)).sum()) / n
    return float(special.betainc(e, n - e + 1.0, rate))


def examples_needed(target_risk: float, delta: float) -> int:
    """Return the fewest examples, all predicted correctly, for which `risk_threshold` can find a threshold.

    Example:
        >>> examples_needed(0.05, 0.05)
        59
    """
    return math.ceil(math.log(delta) / math.log1p(-target_risk) - 1e-9)


def risk_threshold(
    top: Float[NDArray[np.float64], " N"],
    wrong: Bool[NDArray[np.bool_], " N"],
    weight: Float[NDArray[np.float64], " N"],
    target_risk: float,
    delta: float,
) -> tuple[float, float]:
    """Return the lowest threshold of `top` with an error rate of at most `target_risk`, and the bound of that rate.

    Of `k` points above a threshold `e` are wrong; the bound is the exact upper confidence bound of Clopper and Pearson,
    which fails with probability `delta`. Thresholds are tested from the highest that could pass down to the first that
    fails, so the confidence holds for all tests together (fixed sequence testing). If none passes, the threshold is
    infinite and the bound one.

    Example:
        >>> import numpy as np
        >>> top, wrong = np.linspace(0.3, 0.99, 40), np.arange(40) < 3
        >>> threshold, risk = risk_threshold(top, wrong, np.ones(40), 0.1, 0.1)
        >>> round(threshold, 3), round(risk, 3)
        (0.335, 0.099)
    """
    order = (-top).argsort(stable=True)
    k = weight[order].cumsum(0)
    e = (weight * wrong)[order].cumsum(0)
    exact = special.betaincinv(e + 1.0, np.maximum(k - e, 1e-9), 1.0 - delta)
    bound = np.where(k - e > 1e-9, exact, 1.0)
    ends = _ends(top[order])
    passed = ends & (bound <= target_risk + 1e-12)
    failed = ends & ~passed & (k >= examples_needed(target_risk, delta) - 1e-9)
    passed = passed & (failed.cumsum(0) == 0)
    if not passed.any():
        return math.inf, 1.0
    last = int(np.flatnonzero(passed)[-1])
    return float(top[order[last]]), float(bound[last])


def _ends(ordered: Float[NDArray[np.float64], " N"]) -> Bool[NDArray[np.bool_], " N"]:
    """Return the possible positions of a threshold: points of equal probability are accepted together."""
    return np.append(ordered[1:] < ordered[:-1], np.ones(min(len(ordered), 1), dtype=np.bool_))

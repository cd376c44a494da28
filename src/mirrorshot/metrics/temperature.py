"""Temperature scaling, fitted by the negative log-likelihood.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", 2017, https://arxiv.org/abs/1706.04599.
Fit the temperature on validation tasks, never on tasks whose calibration is reported.
"""

import math

from jaxtyping import Float, Int

from mirrorshot.metrics.backend import cast, softmax
from mirrorshot.metrics.inputs import checked_scores
from mirrorshot.softmax.arrays import Array, detach, double, log_softmax, namespace, take_along_last
from mirrorshot.types import InvalidInputError

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
_TOLERANCE = 1e-12  # of log T
_MAX_STEPS = 100  # bisection alone needs 43


def fit_temperature(
    log_prob: Float[Array, "*batch C"], y: Int[Array, "*batch"], weight: Float[Array, "*batch"] | None = None
) -> float:
    """Find the temperature T that minimises the negative log-likelihood of `softmax(log_prob / T)`.

    T above 1 makes predictions less certain, T below 1 more certain. The predicted classes stay the same.

    Design note: the NLL is convex in 1 / T, so a root of its slope is the minimum. Newton's method in log T needs a few
    steps; a step that leaves the interval around the root is replaced by bisection. Rejected: a general optimiser
    (tolerances to choose), and a grid.

    Args:
        log_prob: log-probabilities or any scores; `-inf` for classes that a task does not have.
        y: labels 0 .. C - 1.
        weight: how often each prediction counts; zero is padding. None: once.

    Returns:
        T, from 0.01 to 100. The lower end if every prediction is correct, the upper end if predictions are worse than
        guessing; 1 if all predictions are uniform. Predictions that exclude the right class have an infinite NLL at
        every T and are ignored.

    Example:
        >>> import torch
        >>> log_prob = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]).log()
        >>> T = fit_temperature(log_prob, torch.tensor([0, 0, 1, 1]))  # sure to 90 %, right in 75 %
        >>> round(T, 6), apply_temperature(log_prob[0], T).exp()
        (2.0, tensor([0.7500, 0.2500]))
    """
    scores, right, share = _as_rows(*checked_scores(detach(log_prob), y, weight))
    low, high = -math.log(MAX_TEMPERATURE), -math.log(MIN_TEMPERATURE)  # of log(1 / T)
    at_low, at_high = _slope(scores, right, share, low)[0], _slope(scores, right, share, high)[0]
    if at_low == 0.0 == at_high:
        return 1.0
    if at_low >= 0.0:
        return MAX_TEMPERATURE
    if at_high <= 0.0:
        return MIN_TEMPERATURE
    return math.exp(-_root(scores, right, share, low, high))


def apply_temperature(log_prob: Float[Array, "*batch C"], temperature: float) -> Float[Array, "*batch C"]:
    """Log-probabilities after temperature scaling, `log softmax(log_prob / temperature)`.

    Example:
        >>> import torch
        >>> apply_temperature(torch.tensor([0.8, 0.2]).log(), 0.5).exp()  # 16 : 1
        tensor([0.9412, 0.0588])
    """
    if not (temperature > 0.0 and math.isfinite(temperature)):
        raise InvalidInputError(f"Expected `temperature` to be positive and finite, but got {temperature}.")
    return log_softmax(log_prob / temperature)


def _as_rows(log_prob: Array, y: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Scores (n, C) with largest value 0, scores of the right class (n,), and weights (n,) that sum to one."""
    xp = namespace(log_prob)
    scores, label, share = double(log_prob).reshape(-1, log_prob.shape[-1]), y.reshape(-1), weight.reshape(-1)
    scores = scores - xp.amax(scores, -1)[:, None]
    right = take_along_last(scores, cast(label, xp.int64))
    use = (share > 0) & xp.isfinite(right)
    if not bool(use.any()):
        raise InvalidInputError(
            f"Expected predictions that give the right class a probability, but none of {len(label)} does. "
            "Check that `y` and the classes of `log_prob` go together."
        )
    scores, right, share = scores[use], right[use], share[use]
    return scores, right, share / share.sum()


def _slope(scores: Array, right: Array, share: Array, log_inverse: float) -> tuple[float, float]:
    """Derivative of the NLL in 1 / T, and its derivative in log(1 / T)."""
    inverse = math.exp(log_inverse)
    prob = softmax(inverse * scores)
    finite = namespace(scores).where(scores == -math.inf, 0.0, scores)  # their probability is zero
    mean = (prob * finite).sum(-1)
    var = (prob * (finite - mean[:, None]) ** 2).sum(-1)
    # with b = 1 / T: d NLL / d b = E_p[score] - score of the right class; d^2 NLL / d b^2 = Var_p[score]
    return float(share @ (mean - right)), inverse * float(share @ var)


def _root(scores: Array, right: Array, share: Array, low: float, high: float) -> float:
    point = 0.0  # T = 1
    for _ in range(_MAX_STEPS):
        slope, change = _slope(scores, right, share, point)
        low, high = (point, high) if slope < 0.0 else (low, point)
        step = -slope / change if change > 0.0 else math.inf
        following = point + step if low <= point + step <= high else (low + high) / 2
        if abs(following - point) <= _TOLERANCE:
            return following
        point = following
    return point

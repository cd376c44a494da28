"""Input checks of all metrics."""

import math
from typing import NamedTuple

from jaxtyping import Float

from mirrorshot.metrics.backend import cast, is_integer
from mirrorshot.softmax.arrays import Array, arange, double, finfo, is_floating, namespace
from mirrorshot.types import InvalidInputError

_SUM_TOLERANCE = 1e-4  # of sums of probabilities; 4 eps in half precision


class TopLabel(NamedTuple):
    """The predicted class of each query, pooled over tasks, without padding."""

    confidence: Float[Array, " n"]  # its probability, in the dtype of the probabilities
    correct: Float[Array, " n"]  # 1 if it is correct, else 0, in float64
    weight: Float[Array, " n"]  # of the query, in float64


def top_label(prob: Array, y: Array, weight: Array | None) -> TopLabel:
    """Check predictions and reduce each to its most probable class."""
    prob, y, share = checked(prob, y, weight)
    real = share > 0
    return TopLabel(namespace(prob).amax(prob, -1)[real], double(prob.argmax(-1) == y)[real], share[real])


def checked(prob: Array, y: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    """Check and return probabilities, labels and float64 weights; padding becomes certain, correct predictions."""
    prob, y, share = _checked_shapes("prob", prob, y, weight)
    low = float(prob.min())
    if not low >= 0.0:  # NaN included
        raise InvalidInputError(f"Expected `prob` not to be negative, but its smallest value is {low}.")
    total = prob.sum(-1)
    off = float(abs(total - 1).max())
    if not off <= max(_SUM_TOLERANCE, 4 * finfo(prob).eps):
        raise InvalidInputError(
            "Expected `prob` to sum to 1 over its last dimension, "
            f"but got sums from {float(total.min()):.6g} to {float(total.max()):.6g}. "
            "Apply a softmax to scores first."
        )
    return prob, y, share


def checked_scores(log_prob: Array, y: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    """Check log-probabilities or scores, which may be -inf for some classes; otherwise as `checked`."""
    log_prob, y, share = _checked_shapes("log_prob", log_prob, y, weight)
    xp = namespace(log_prob)
    bad = (xp.isnan(log_prob) | (log_prob == math.inf)).any(-1) | (log_prob == -math.inf).all(-1)
    if bool(bad.any()):
        raise InvalidInputError(
            "Expected `log_prob` to be numbers, or -inf for some of the classes, "
            f"but got NaN, infinity or only -inf in {int(bad.sum())} of {math.prod(y.shape)} predictions."
        )
    return log_prob, y, share


def _checked_shapes(name: str, scores: Array, y: Array, weight: Array | None) -> tuple[Array, Array, Array]:
    xp, shape = namespace(scores), tuple(scores.shape)
    if scores.ndim < 2 or shape[:-1] != tuple(y.shape):
        raise InvalidInputError(
            f"Expected `{name}` of shape (..., M, C) and `y` of shape (..., M), but got {shape} and {tuple(y.shape)}."
        )
    if math.prod(shape) == 0:
        raise InvalidInputError(f"Expected at least one prediction, but `{name}` has shape {shape}.")
    if not is_floating(scores) or not is_integer(y):
        raise InvalidInputError(
            f"Expected `{name}` to be floating point and `y` integer, but got {scores.dtype} and {y.dtype}."
        )
    if weight is not None:
        check_weight(weight, y)
        real, sure = weight > 0, cast(arange(scores, shape[-1]) == 0, scores.dtype)
        scores, y = xp.where(real[..., None], scores, sure), xp.where(real, y, 0)
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= shape[-1]:
        raise InvalidInputError(
            f"Expected labels `y` from 0 to {shape[-1] - 1}, the columns of `{name}`, "
            f"but got labels from {low} to {high}."
        )
    return scores, y, xp.ones_like(y, dtype=xp.float64) if weight is None else double(weight)


def check_weight(weight: Array, of: Array, name: str = "y", weight_name: str = "weight") -> None:
    """Raise if weights have another shape than `of`, are negative or not finite, or are all zero."""
    if weight.shape != of.shape:
        raise InvalidInputError(
            f"Expected `{weight_name}` of the shape of `{name}`, {tuple(of.shape)}, but got {tuple(weight.shape)}."
        )
    if not bool((weight >= 0).all()) or not bool(namespace(weight).isfinite(weight).all()):
        raise InvalidInputError(
            f"Expected `{weight_name}` to be finite and not negative, "
            f"but got values from {float(weight.min())} to {float(weight.max())}."
        )
    if not bool((weight > 0).any()):
        raise InvalidInputError(
            f"Expected at least one positive `{weight_name}`, but all {math.prod(weight.shape)} are zero."
        )

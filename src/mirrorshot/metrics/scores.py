"""Scores averaged over the queries of each task: accuracy, negative log-likelihood, Brier score.

The score of a task whose queries are all padding is NaN.
"""

from typing import Any

from jaxtyping import Float, Int

from mirrorshot.metrics.backend import cast, quietly
from mirrorshot.metrics.inputs import checked
from mirrorshot.softmax.arrays import Array, arange, double, namespace, take_along_last


def accuracy(
    prob: Float[Array, "*batch M C"], y: Int[Array, "*batch M"], weight: Float[Array, "*batch M"] | None = None
) -> Float[Array, "*batch"]:
    """Share of queries whose most probable class (the first, if several) is correct.

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    prob, y, share = checked(prob, y, weight)
    return _mean(right_terms(prob, y), share)


def nll(
    prob: Float[Array, "*batch M C"], y: Int[Array, "*batch M"], weight: Float[Array, "*batch M"] | None = None
) -> Float[Array, "*batch"]:
    """Negative log-likelihood: mean of `-log p(right class)`, in nats; infinite if a right class has probability zero.

    Example:
        >>> import torch
        >>> nll(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    prob, y, share = checked(prob, y, weight)
    return _mean(nll_terms(prob, y), share)


def brier(
    prob: Float[Array, "*batch M C"], y: Int[Array, "*batch M"], weight: Float[Array, "*batch M"] | None = None
) -> Float[Array, "*batch"]:
    """Brier score: mean of `sum_c (p_c - [c is right])^2`, between 0 and 2.

    Example:
        >>> import torch
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.2500)
    """
    prob, y, share = checked(prob, y, weight)
    return _mean(brier_terms(prob, y), share)


def right_terms(prob: Array, y: Array) -> Array:
    """1 if the most probable class is correct, else 0."""
    return cast(prob.argmax(-1) == y, _wide(prob))


@quietly
def nll_terms(prob: Array, y: Array) -> Array:
    """`-log p(right class)` of each query."""
    return -namespace(prob).log(_prob_of_label(prob, y))


def brier_terms(prob: Array, y: Array) -> Array:
    """`sum_c (p_c - [c is right])^2` of each query."""
    # sum_c (p_c - t_c)^2 = sum_c p_c^2 - 2 p_y + 1, in a form without cancellation at p_y = 1
    right = _prob_of_label(prob, y)
    is_other = y[..., None] != arange(prob, prob.shape[-1])
    return (1 - right) ** 2 + (cast(prob, right.dtype) ** 2 * is_other).sum(-1)


def _prob_of_label(prob: Array, y: Array) -> Array:
    return cast(take_along_last(prob, cast(y, namespace(y).int64)), _wide(prob))


def _wide(prob: Array) -> Any:
    """Return the dtype of `prob`, at least float32: a mean in half precision has three digits."""
    xp = namespace(prob)
    return xp.promote_types(prob.dtype, xp.float32)


@quietly
def _mean(values: Array, weight: Array) -> Array:
    return cast((weight * double(values)).sum(-1) / weight.sum(-1), values.dtype)

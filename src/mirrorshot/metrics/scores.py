"""Scores averaged over the queries of each task: accuracy, negative log-likelihood, Brier score.

A task whose queries are all padding has the score NaN.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.metrics.inputs import checked


def accuracy(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], weight: Float[Tensor, "*batch M"] | None = None
) -> Float[Tensor, "*batch"]:
    """Share of queries whose most probable class (the first, if several) is the right one.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    prob, y, share = checked(prob, y, weight)
    return _mean(right_terms(prob, y), share)


def nll(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], weight: Float[Tensor, "*batch M"] | None = None
) -> Float[Tensor, "*batch"]:
    """Negative log-likelihood: mean of `-log p(right class)`, in nats; infinite if a right class has probability zero.

    Example:
        >>> nll(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]))
        tensor(0.6931)
    """
    prob, y, share = checked(prob, y, weight)
    return _mean(nll_terms(prob, y), share)


def brier(
    prob: Float[Tensor, "*batch M C"], y: Int[Tensor, "*batch M"], weight: Float[Tensor, "*batch M"] | None = None
) -> Float[Tensor, "*batch"]:
    """Brier score: mean of `sum_c (p_c - [c is right])^2`, between 0 and 2.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
        tensor(0.2500)
    """
    prob, y, share = checked(prob, y, weight)
    return _mean(brier_terms(prob, y), share)


def right_terms(prob: Tensor, y: Tensor) -> Tensor:
    """1 where the most probable class is the right one, else 0."""
    return (prob.argmax(-1) == y).to(_wide(prob.dtype))


def nll_terms(prob: Tensor, y: Tensor) -> Tensor:
    """-log p(right class) of each query."""
    return -_prob_of_label(prob, y).log()


def brier_terms(prob: Tensor, y: Tensor) -> Tensor:
    """Squared distance of the probabilities of each query from the right answer."""
    # sum_c (p_c - t_c)^2 = sum_c p_c^2 - 2 p_y + 1; written without the cancellation at p_y = 1
    right = _prob_of_label(prob, y)
    others = prob.to(right.dtype).square().scatter(-1, y.long()[..., None], 0.0).sum(-1)
    return (1 - right).square() + others


def _prob_of_label(prob: Tensor, y: Tensor) -> Tensor:
    return prob.gather(-1, y.long()[..., None])[..., 0].to(_wide(prob.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a mean in half precision would have three digits."""
    return torch.promote_types(dtype, torch.float32)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return ((weight * values.double()).sum(-1) / weight.sum(-1)).to(values.dtype)

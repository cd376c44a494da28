"""What all metrics start from: checked predictions, padding made harmless, and one number for each prediction."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.types import InvalidInputError

_SUM_TOLERANCE = 1e-4  # how far probabilities may be from summing to one; a few roundings if that is more


class TopLabel(NamedTuple):
    """The predicted class of each prediction, pooled over tasks; padding is left out.

    Attributes:
        confidence: its probability, in the type of the probabilities; (n,).
        correct: 1 if it is the right one, else 0; (n,), float64.
        weight: how often it counts; (n,), float64.
    """

    confidence: Float[Tensor, " n"]
    correct: Float[Tensor, " n"]
    weight: Float[Tensor, " n"]


def checked(prob: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check predictions. Those of weight zero may be anything; they come back as sure and right."""
    _check_shapes(prob, y, weight)
    if weight is not None:
        _check_weight(weight)
        real = weight > 0
        sure = (torch.arange(prob.shape[-1], device=prob.device) == 0).to(prob.dtype)
        prob, y = torch.where(real[..., None], prob, sure), torch.where(real, y, 0)
    _check_probabilities(prob)
    _check_labels(y, prob.shape[-1])
    return prob, y, weight


def weight_of(weight: Tensor | None, y: Tensor) -> Tensor:
    """Weights in float64, in the shape of `y`."""
    return torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()


def right_terms(prob: Tensor, y: Tensor) -> Tensor:
    """1 where the most probable class is the right one, else 0."""
    return (prob.argmax(-1) == y).to(_wide(prob.dtype))


def nll_terms(prob: Tensor, y: Tensor) -> Tensor:
    """-log p(right class)."""
    return -_prob_of_label(prob, y).log()


def brier_terms(prob: Tensor, y: Tensor) -> Tensor:
    """Squared distance of the probabilities from the right answer."""
    # sum_c (p_c - t_c)^2 = sum_c p_c^2 - 2 p_y + 1; written without the cancellation at p_y = 1
    right = _prob_of_label(prob, y)
    others = prob.to(right.dtype).square().scatter(-1, y.long()[..., None], 0.0).sum(-1)
    return (1 - right).square() + others


def top_label(prob: Tensor, y: Tensor, weight: Tensor | None) -> TopLabel:
    """Confidence of each checked prediction, and whether it was right."""
    share = weight_of(weight, y).flatten()
    confidence, label = prob.max(-1)
    real = share > 0
    return TopLabel(confidence.flatten()[real], (label == y).double().flatten()[real], share[real])


def _prob_of_label(prob: Tensor, y: Tensor) -> Tensor:
    return prob.gather(-1, y.long()[..., None])[..., 0].to(_wide(prob.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """At least float32: a mean in half precision would have three digits."""
    return torch.promote_types(dtype, torch.float32)


def _check_shapes(prob: Tensor, y: Tensor, weight: Tensor | None) -> None:
    if prob.ndim < 2 or prob.shape[:-1] != y.shape:
        raise InvalidInputError(
            "Expected `prob` of shape (..., M, C) and `y` of shape (..., M), "
            f"but got {tuple(prob.shape)} and {tuple(y.shape)}."
        )
    if weight is not None and weight.shape != y.shape:
        raise InvalidInputError(
            f"Expected `weight` of the shape of `y`, {tuple(y.shape)}, but got {tuple(weight.shape)}."
        )
    if prob.numel() == 0:
        raise InvalidInputError(f"Expected at least one prediction, but `prob` has shape {tuple(prob.shape)}.")
    if not prob.is_floating_point() or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidInputError(
            f"Expected `prob` to be floating point and `y` integer, but got {prob.dtype} and {y.dtype}."
        )


def _check_weight(weight: Tensor) -> None:
    if not bool((weight >= 0).all()) or not bool(weight.isfinite().all()):
        raise InvalidInputError(
            "Expected `weight` to be finite and not negative, "
            f"but got values from {float(weight.min())} to {float(weight.max())}."
        )
    if not bool((weight > 0).any()):
        raise InvalidInputError(f"Expected at least one positive `weight`, but all {weight.numel()} are zero.")


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


def _check_labels(y: Tensor, n_classes: int) -> None:
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= n_classes:
        raise InvalidInputError(
            f"Expected labels `y` from 0 to {n_classes - 1}, the columns of `prob`, "
            f"but got labels from {low} to {high}."
        )

"""The softmax moments as a differentiable torch function."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.softmax.integrals import Latents, pull_back
from mirrorshot.softmax.native import integrate_moments


class SoftmaxIntegrals(torch.autograd.Function):
    """(mean, var) (P, C) -> E[p] (P, C), E[p (1 - p)] (P, C), E[log sum exp] (P,)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, max_std: float) -> tuple[Tensor, Tensor, Tensor]:
        """Integrate with a rule for standard deviations up to `max_std`."""
        ctx.save_for_backward(mean, var)
        ctx.max_std = max_std
        return integrate_moments(mean, var, max_std)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Integrate the gradients in means and variances over the same grids."""
        mean, var = ctx.saved_tensors
        return (*pull_back(Latents.make(mean, var, ctx.max_std), *grads), None)

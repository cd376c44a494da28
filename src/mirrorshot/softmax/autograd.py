"""The softmax moments as a function that torch can differentiate."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.softmax.integrals import Latents, pull_back
from mirrorshot.softmax.native import integrate_moments


class SoftmaxIntegrals(torch.autograd.Function):
    """(mean, var) (P, C) -> E[p] (P, C), E[p (1 - p)] (P, C), E[log sum exp] (P,)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, max_std: float, refine: float) -> tuple[Tensor, Tensor, Tensor]:
        """Integrate with a rule for latents up to `max_std`, `refine` times as fine as necessary."""
        ctx.save_for_backward(mean, var)
        ctx.options = max_std, refine
        return integrate_moments(mean, var, max_std, refine)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in means and variances: integrals over the same grids."""
        return (*pull_back(Latents.make(*ctx.saved_tensors, *ctx.options), *grads), None, None)

"""Expectations of the logistic-softmax `sigma(f_c) / sum_j sigma(f_j)` and of `log sigma(f)`, by quadrature."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_N_STD = 5.5  # the nodes of a latent cover this many standard deviations
_N_NODES = 48
_LEFT, _RIGHT = 8.0, 3.2  # margins of the grid: an exponential tail on the left, zero on the right


def logistic_softmax_prob(
    mean: Float[Tensor, "T C M"], var: Float[Tensor, "T C M"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T C M"]:
    """Class probabilities `E[sigma(f_c) / sum_j sigma(f_j)]` under independent Gaussians, by quadrature.

    With `1 / s = int exp(-u s) du`, the expectation of the quotient becomes one integral over `u` of products of
    expectations over single latents, `E exp(-u sigma_j)` and `E[sigma_c exp(-u sigma_c)]`. Both are trapezoid rules
    with a fixed number of nodes (over `log u` and over the latent): no random draws, no synchronisation. Errors are
    below 1e-6 for standard deviations up to 6, and grow to 1e-4 at 10.

    Example:
        >>> prob = logistic_softmax_prob(torch.zeros(1, 4, 1), torch.ones(1, 4, 1), torch.ones(1, 4).bool())
        >>> prob.flatten().round(decimals=4).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    exists = class_mask[..., None]
    t, spacing = _grid(mean.detach(), var.detach().sqrt(), exists)
    t, std = t[:, None], var.clamp(min=1e-12).sqrt()
    z = torch.linspace(-_N_STD, _N_STD, _N_NODES, dtype=mean.dtype, device=mean.device)
    density = torch.softmax(-z.square() / 2, 0)
    damped = mass = mean.new_zeros(())
    for node, share in zip(z, density, strict=True):
        log_s = _log_sigmoid(mean + std * node).masked_fill(~exists, -torch.inf)
        us = torch.exp((t + log_s[..., None]).clamp(max=60.0))  # exp(-e^60) is zero
        part = share * torch.exp(-us)
        damped, mass = damped + part, mass + us * part
    log_damped = damped.clamp(min=torch.finfo(mean.dtype).tiny).log()
    integrand = mass * torch.exp(log_damped.sum(1, keepdim=True) - log_damped)
    # left of the grid the integrand falls as exp(t): the sum is a geometric series
    prob = spacing[:, None] * (integrand.sum(-1) + integrand[..., 0] / torch.expm1(spacing)[:, None])
    return prob / prob.sum(1, keepdim=True)


def _grid(mean: Tensor, std: Tensor, exists: Tensor) -> tuple[Float[Tensor, "T M U"], Float[Tensor, "T M"]]:
    """Return nodes `log u` from the least to the largest value of the sum of the sigmoids, and their spacing."""
    ends = [_log_sigmoid(mean + sign * _N_STD * std).masked_fill(~exists, -torch.inf) for sign in (-1, 1)]
    low, high = ends[0].amax(1), ends[1].logsumexp(1)
    start, width = -high - _LEFT, high - low + _LEFT + _RIGHT
    steps = torch.linspace(0, 1, _N_NODES, dtype=mean.dtype, device=mean.device)
    return start[..., None] + width[..., None] * steps, width / (_N_NODES - 1)


def mean_log_sigmoid(mean: Float[Tensor, "T C M"], var: Float[Tensor, "T C M"]) -> Float[Tensor, "T C M"]:
    """`E log sigma(f)` under Gaussians, on the same nodes of the latent."""
    z = torch.linspace(-_N_STD, _N_STD, _N_NODES, dtype=mean.dtype, device=mean.device)
    f = mean[..., None] + var.clamp(min=1e-12).sqrt()[..., None] * z
    return (_log_sigmoid(f) * torch.softmax(-z.square() / 2, 0)).sum(-1)


def _log_sigmoid(x: Tensor) -> Tensor:
    return -torch.logaddexp(torch.zeros_like(x), -x)

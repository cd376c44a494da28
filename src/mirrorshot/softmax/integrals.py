"""The integrals behind `likelihoods`: moments of a softmax on grids of `u`, in chunks of points, and their gradients.

Latents up to a standard deviation of `WIDE_STD` share a fine grid of fixed spacing; wider ones get cells of their own.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.softmax.quadrature import (
    EULER_GAMMA,
    WIDE_NODES,
    WIDE_STD,
    Ratios,
    Rule,
    choose_rule,
    grid_start,
    gumbel_ratios,
    wide_ratios,
)

CHUNK_ELEMENTS = 2**21
"""Largest number of elements of one working array; about ten such arrays live at a time (170 MB in float64)."""


class SoftmaxIntegrals(torch.autograd.Function):
    """(mean, var) (P, C) -> E[p] (P, C), E[p(1-p)] (P, C), E[log sum exp] (P,)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, max_std: float, refine: float) -> tuple[Tensor, Tensor, Tensor]:
        """The integrals, with a rule for latents up to `max_std`, `refine` times as fine as need be."""
        rule = choose_rule(max_std, mean.shape[-1], mean.dtype, refine)
        # softmax ignores a common shift; taken out, large means do not cost the grid its digits
        top = mean.amax(-1)
        mean = mean - top[:, None]
        ctx.save_for_backward(mean, var)
        ctx.rule, ctx.wide, ctx.refine = rule, max_std > WIDE_STD, refine
        prob, curvature, logsumexp = in_chunks(
            lambda part, integrate: integrate(mean[part], var[part].sqrt(), rule, refine), var, rule, ctx.wide
        )
        return prob, curvature, logsumexp + top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in means and variances: integrals over the same grids."""
        mean, var = ctx.saved_tensors

        def pull_back(part: Any, integrate: Any) -> tuple[Tensor, ...]:
            F, ratios = grid_of(integrate)(mean[part], var[part].sqrt(), ctx.rule, ctx.refine)[1:]
            beyond = 0.0 if integrate is integrate_wide else beyond_grid(ctx.rule)
            return _pull_back(F, ratios, beyond, *(g[part] for g in grads))

        return (*in_chunks(pull_back, var, ctx.rule, ctx.wide), None, None)


def in_chunks(
    compute: Callable[[Any, Any], tuple[Tensor, ...]], var: Tensor, rule: Rule, wide: bool
) -> tuple[Tensor, ...]:
    """What `compute` makes of the parts that `_chunks` names, put together."""
    parts = _chunks(var, rule, wide)
    pieces = [compute(part, integrate) for part, integrate in parts]
    if len(pieces) == 1:
        return pieces[0]
    wholes = [piece.new_empty(len(var), *piece.shape[1:]) for piece in pieces[0]]
    for (part, _), some in zip(parts, pieces, strict=True):
        for whole, piece in zip(wholes, some, strict=True):
            whole[part] = piece
    return tuple(wholes)


def _chunks(var: Tensor, rule: Rule, wide: bool) -> list[tuple[Any, Any]]:
    """Parts of the points (slices or indices) with the integrator of each."""
    n, c = var.shape
    per_point = c * max(rule.n_nodes * rule.n_hermite, WIDE_NODES if wide else 0)
    size = max(1, CHUNK_ELEMENTS // per_point)
    if not wide:
        return [(slice(i, i + size), _integrate_fine) for i in range(0, max(n, 1), size)]
    is_wide = (var > WIDE_STD**2).any(-1)
    parts: list[tuple[Any, Any]] = []
    for chosen, integrate in ((is_wide, integrate_wide), (~is_wide, _integrate_fine)):
        parts += [(part, integrate) for part in chosen.nonzero()[:, 0].split(size) if len(part)]
    return parts


def grid_of(integrate: Any) -> Callable[..., tuple[Tensor, Tensor, Ratios]]:
    """What makes the grid of an integrator."""
    return _wide_grid if integrate is integrate_wide else _fine_grid


def _fine_grid(mean: Tensor, std: Tensor, rule: Rule, refine: float, order: int = 3) -> tuple[Tensor, Tensor, Ratios]:
    """Start of the grid, weighted F = h prod_j G_j (P, U) and the ratios."""
    start = grid_start(mean, std, rule)
    ratios = gumbel_ratios(mean, std, start, rule, order)
    return start, rule.spacing * ratios.log_cdf.sum(1).exp(), ratios


def beyond_grid(rule: Rule) -> float:
    """Beyond the grid all integrands of E[p] and of 1 - F are A e^{-u}: a geometric series of this sum."""
    return math.exp(-rule.spacing) / (1 - math.exp(-rule.spacing))


def _integrate_fine(mean: Tensor, std: Tensor, rule: Rule, refine: float) -> tuple[Tensor, Tensor, Tensor]:
    h = rule.spacing
    start, F, ratios = _fine_grid(mean, std, rule, refine, order=1)
    r = ratios.first
    mass = F[:, None] * r  # (P, C, U)
    beyond = beyond_grid(rule)
    prob = mass.sum(-1) + beyond * mass[..., -1]
    others = r.sum(1, keepdim=True) - r
    curvature = (mass * others.clamp(min=0.0)).sum(-1)
    survival = -torch.expm1(ratios.log_cdf.sum(1))  # 1 - F
    logsumexp = start + h * (0.5 + survival[:, 1:].sum(-1) + beyond * survival[:, -1]) - EULER_GAMMA
    return prob, torch.minimum(curvature, prob * (1 - prob).clamp(min=0.0)), logsumexp


def _wide_grid(mean: Tensor, std: Tensor, rule: Rule, refine: float, order: int = 3) -> tuple[Tensor, Tensor, Ratios]:
    """Grid `u` (P, U) with a spacing of its own per point, weighted F and the ratios."""
    sigma = torch.sqrt(std * std + math.pi**2 / 6)
    centre = mean + EULER_GAMMA
    low = (centre - rule.n_std * sigma).amax(-1)
    high = (centre + rule.n_std * sigma).amax(-1)
    steps = torch.linspace(0, 1, int(WIDE_NODES * refine), dtype=mean.dtype, device=mean.device)
    u = low[:, None] + (high - low)[:, None] * steps
    ratios = wide_ratios(mean, std, u, order)
    return u, ((high - low) / (len(steps) - 1))[:, None] * ratios.log_cdf.sum(1).exp(), ratios


def integrate_wide(mean: Tensor, std: Tensor, rule: Rule, refine: float) -> tuple[Tensor, Tensor, Tensor]:
    """Integrals over cells rather than nodes: each cell's share of dF is split by the growth of `log G_j`.

    The shares telescope: probabilities sum to one whatever the spacing, and a latent that is narrow against the
    spacing is not lost between two nodes.
    """
    u, _, ratios = _wide_grid(mean, std, rule, refine, order=1)
    h = u[:, 1:] - u[:, :-1]
    log_F = ratios.log_cdf.sum(1)
    F = log_F.exp()
    growth = (ratios.log_cdf[..., 1:] - ratios.log_cdf[..., :-1]).clamp(min=0.0)  # (P, C, U - 1)
    total = growth.sum(1)
    tiny = torch.finfo(mean.dtype).tiny
    share = growth / total.clamp(min=tiny)[:, None]
    cell = F[:, 1:] - F[:, :-1]
    mass = cell[:, None] * share
    prob = mass.sum(-1)
    prob = prob / prob.sum(-1, keepdim=True)
    curvature = (mass * (1 - share) * (total / h).clamp(max=1.0)[:, None]).sum(-1)
    logsumexp = u[:, 0] + (h * (1 - 0.5 * (F[:, 1:] + F[:, :-1]))).sum(-1) - EULER_GAMMA
    return prob, torch.minimum(curvature, prob * (1 - prob).clamp(min=0.0)), logsumexp


def _pull_back(F: Tensor, ratios: Ratios, beyond: float, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Vector-Jacobian product with cotangents `a` of E[p], `b` of E[p(1-p)], `g` of E[log sum exp].

    From dG_j/dm_j = -G_j' and dG_j/dv_j = G_j''/2, with r, q, t the first three derivative ratios:
    E[p_c p_j] = int F r_c r_j.
    """
    r, q, t = ratios.first, ratios.second, ratios.third
    assert q is not None
    assert t is not None
    F = F[:, None]
    R = r.sum(1, keepdim=True)
    a_, b_ = a[..., None], b[..., None]
    # E[p_j (1 - p_j)] pulled back from the log-sum-exp and from E[p]
    others = (R - r).clamp(min=0.0)
    prob = (F * r).sum(-1) + beyond * (F * r)[..., -1]
    curvature = (F * r * others).sum(-1)
    ar = (a_ * r).sum(1, keepdim=True)
    spread = a_ * R - ar  # sum_c r_c (a_j - a_c)
    grad_mean = g[:, None] * prob + (F * r * spread).sum(-1)
    grad_var = 0.5 * g[:, None] * curvature - 0.5 * (F * q * spread).sum(-1)
    # L = sum_{c < j} (b_c + b_j) E[p_c p_j]
    br = (b_ * r).sum(1, keepdim=True)
    partners = b_ * others + br - b_ * r  # sum_{j != k} (b_k + b_j) r_j
    pairs = br * R - (b_ * r * r).sum(1, keepdim=True)
    rest = pairs - r * partners  # the pairs without class k
    grad_mean = grad_mean - (F * (q * partners + r * rest)).sum(-1)
    grad_var = grad_var + 0.5 * (F * (t * partners + q * rest)).sum(-1)
    return grad_mean, grad_var

"""Integrals over grids of `u` behind the softmax moments, with their first and second derivatives.

Points whose standard deviations are all below `WIDE_STD` share a fine grid of fixed spacing (`FineGrid`); the others
get cells of their own (`WideGrid`). Points are processed in chunks, so memory does not grow with their number.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
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


class FineGrid(NamedTuple):
    """A grid of fixed spacing from `start` (P,), with the weighted F = h prod_j G_j (P, U) and the ratios."""

    start: Float[Tensor, " P"]
    F: Float[Tensor, "P U"]
    ratios: Ratios
    spacing: float

    @property
    def tail(self) -> float:
        """Factor of the last node: beyond it all integrands of E[p] and of 1 - F are a geometric series A e^{-u}."""
        return math.exp(-self.spacing) / (1 - math.exp(-self.spacing))

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """`E[p]` (P, C), `E[p (1 - p)]` (P, C) and `E[log sum exp]` (P,)."""
        r = self.ratios.derivatives[0]
        mass = self.F[:, None] * r  # (P, C, U)
        prob = mass.sum(-1) + self.tail * mass[..., -1]
        others = r.sum(1, keepdim=True) - r
        curvature = (mass * others.clamp(min=0.0)).sum(-1)
        survival = -torch.expm1(self.ratios.log_cdf.sum(1))  # 1 - F
        above = 0.5 + survival[:, 1:].sum(-1) + self.tail * survival[:, -1]
        return prob, _at_most_bernoulli(curvature, prob), self.start + self.spacing * above - EULER_GAMMA


class WideGrid(NamedTuple):
    """Cells of a grid `u` (P, U) with a spacing of its own per point, with the weighted F and the ratios."""

    u: Float[Tensor, "P U"]
    F: Float[Tensor, "P U"]
    ratios: Ratios

    @property
    def tail(self) -> float:
        """Nothing is left beyond the grid."""
        return 0.0

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The moments of `FineGrid`, where each cell's share of dF is split by the growth of `log G_j`.

        The shares telescope: probabilities sum to one whatever the spacing, and a latent that is narrow against the
        spacing is not lost between two nodes.
        """
        h = self.u[:, 1:] - self.u[:, :-1]
        log_cdf = self.ratios.log_cdf
        F = log_cdf.sum(1).exp()
        growth = (log_cdf[..., 1:] - log_cdf[..., :-1]).clamp(min=0.0)  # (P, C, U - 1)
        total = growth.sum(1)
        share = growth / total.clamp(min=torch.finfo(h.dtype).tiny)[:, None]
        mass = (F[:, 1:] - F[:, :-1])[:, None] * share
        prob = mass.sum(-1)
        prob = prob / prob.sum(-1, keepdim=True)
        curvature = (mass * (1 - share) * (total / h).clamp(max=1.0)[:, None]).sum(-1)
        logsumexp = self.u[:, 0] + (h * (1 - 0.5 * (F[:, 1:] + F[:, :-1]))).sum(-1) - EULER_GAMMA
        return prob, _at_most_bernoulli(curvature, prob), logsumexp


Grid = FineGrid | WideGrid


def _at_most_bernoulli(curvature: Tensor, prob: Tensor) -> Tensor:
    """`E[p (1 - p)] <= E[p] (1 - E[p])`, also after rounding."""
    return torch.minimum(curvature, prob * (1 - prob).clamp(min=0.0))


def _fine_grid(mean: Tensor, std: Tensor, rule: Rule, refine: float, order: int) -> FineGrid:
    start = grid_start(mean, std, rule)
    ratios = gumbel_ratios(mean, std, start, rule, order)
    return FineGrid(start, rule.spacing * ratios.log_cdf.sum(1).exp(), ratios, rule.spacing)


def _wide_grid(mean: Tensor, std: Tensor, rule: Rule, refine: float, order: int) -> WideGrid:
    sigma = torch.sqrt(std * std + math.pi**2 / 6)
    centre = mean + EULER_GAMMA
    low = (centre - rule.n_std * sigma).amax(-1)
    high = (centre + rule.n_std * sigma).amax(-1)
    steps = torch.linspace(0, 1, int(WIDE_NODES * refine), dtype=mean.dtype, device=mean.device)
    u = low[:, None] + (high - low)[:, None] * steps
    ratios = wide_ratios(mean, std, u, order)
    return WideGrid(u, ((high - low) / (len(steps) - 1))[:, None] * ratios.log_cdf.sum(1).exp(), ratios)


class Latents(NamedTuple):
    """Independent Gaussians (P, C), shifted to a largest mean of zero, with the grids to integrate them on."""

    mean: Float[Tensor, "P C"]
    var: Float[Tensor, "P C"]
    rule: Rule
    refine: float
    may_be_wide: bool

    @classmethod
    def make(cls, mean: Tensor, var: Tensor, max_std: float, refine: float = 1.0) -> "Latents":
        """Take out the largest mean, which the softmax ignores and which would cost the grid its digits."""
        rule = choose_rule(max_std, mean.shape[-1], mean.dtype, refine)
        return cls(mean - mean.amax(-1, keepdim=True), var, rule, refine, max_std > WIDE_STD)

    def integrate(self, compute: Callable[[Grid, Any], tuple[Tensor, ...]], order: int) -> tuple[Tensor, ...]:
        """Concatenate the results of `compute` on the grid of each chunk of points; it also gets their index."""
        chunks = self._chunks()
        pieces = []
        for index, grid in chunks:
            mean, std = self.mean[index], self.var[index].sqrt()
            pieces.append(compute(grid(mean, std, self.rule, self.refine, order), index))
        if len(pieces) == 1:
            return pieces[0]
        wholes = tuple(piece.new_empty(len(self.var), *piece.shape[1:]) for piece in pieces[0])
        for (index, _), some in zip(chunks, pieces, strict=True):
            for whole, piece in zip(wholes, some, strict=True):
                whole[index] = piece
        return wholes

    def _chunks(self) -> list[tuple[Any, Callable[..., Grid]]]:
        """Chunks of the points (slices or indices), each with the function that makes its grid."""
        n, c = self.var.shape
        per_point = c * max(self.rule.n_nodes * self.rule.n_hermite, WIDE_NODES if self.may_be_wide else 0)
        size = max(1, CHUNK_ELEMENTS // per_point)
        if not self.may_be_wide:
            return [(slice(i, i + size), _fine_grid) for i in range(0, max(n, 1), size)]
        is_wide = (self.var > WIDE_STD**2).any(-1)
        return [
            (index, grid)
            for chosen, grid in ((is_wide, _wide_grid), (~is_wide, _fine_grid))
            for index in chosen.nonzero()[:, 0].split(size)
            if len(index)
        ]


class SoftmaxIntegrals(torch.autograd.Function):
    """(mean, var) (P, C) -> E[p] (P, C), E[p (1 - p)] (P, C), E[log sum exp] (P,)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, max_std: float, refine: float) -> tuple[Tensor, Tensor, Tensor]:
        """Integrate with a rule for latents up to `max_std`, `refine` times as fine as necessary."""
        latents = Latents.make(mean, var, max_std, refine)
        ctx.save_for_backward(latents.mean, var)
        ctx.options = latents[2:]
        prob, curvature, logsumexp = latents.integrate(lambda grid, _: grid.moments(), order=1)
        return prob, curvature, logsumexp + mean.amax(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in means and variances: integrals over the same grids."""
        latents = Latents(*ctx.saved_tensors, *ctx.options)
        pulled = latents.integrate(lambda grid, index: _pull_back(grid, *(g[index] for g in grads)), order=3)
        return (*pulled, None, None)


def _pull_back(grid: Grid, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Vector-Jacobian product with cotangents `a` of E[p], `b` of E[p(1-p)], `g` of E[log sum exp].

    From dG_j/dm_j = -G_j' and dG_j/dv_j = G_j''/2, with r, q, t the first three derivative ratios:
    E[p_c p_j] = int F r_c r_j.
    """
    r, q, t = grid.ratios.derivatives
    F = grid.F[:, None]
    R = r.sum(1, keepdim=True)
    a_, b_ = a[..., None], b[..., None]
    # E[p_j (1 - p_j)] pulled back from the log-sum-exp and from E[p]
    others = (R - r).clamp(min=0.0)
    prob = (F * r).sum(-1) + grid.tail * (F * r)[..., -1]
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


def class_pairs(mean: Tensor, var: Tensor, max_std: float) -> tuple[Tensor, ...]:
    """`E[p]` (P, C) and the matrices (P, C, C) of `SoftmaxHessian` for latents (P, C)."""
    return Latents.make(mean, var, max_std).integrate(lambda grid, _: _pairs(grid), order=3)


def _pairs(grid: Grid) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r, q, t = grid.ratios.derivatives
    F = grid.F[:, None]
    Fr, Fq = F * r, F * q
    prob = Fr.sum(-1) + grid.tail * Fr[..., -1]
    mean_mean, mean_var, var_var = (Fr @ r.mT).neg_(), (Fr @ q.mT).mul_(0.5), (Fq @ q.mT).mul_(-0.5)
    own = (r.sum(1, keepdim=True) - r).clamp_(min=0.0).mul_(t).mul_(F).sum(-1).mul_(0.5)
    diagonals = [matrix.diagonal(dim1=-2, dim2=-1).zero_() for matrix in (mean_mean, mean_var, var_var)]
    diagonals[0].copy_(-mean_mean.sum(-2))
    diagonals[1].copy_(-mean_var.sum(-2))
    diagonals[2].copy_(own)
    if isinstance(grid, WideGrid):
        prob, curvature, _ = grid.moments()
        diagonals[0].copy_(curvature)
    return prob, mean_mean, mean_var, var_var

"""Integrals over grids of `u` for the softmax moments and their first and second derivatives.

Points with standard deviations up to `WIDE_STD` have a fine grid of fixed spacing (`FineGrid`); the others have cells
of their own size (`WideGrid`). Points are processed in chunks, so that memory does not grow with their number.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.softmax.arrays import Array, at_least, at_most, counts, namespace, new_empty, set_diagonal, tiny
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
"""Largest number of elements of one working array; about ten such arrays exist at a time (170 MB in float64)."""


class FineGrid(NamedTuple):
    """A grid of fixed spacing from `start` (P,), with the weighted `F = h prod_j G_j` (P, U) and the ratios."""

    start: Float[Array, " P"]
    F: Float[Array, "P U"]
    ratios: Ratios
    spacing: float

    @property
    def tail(self) -> float:
        """Factor of the last node: beyond it all integrands of E[p] and of 1 - F are a geometric series A e^{-u}."""
        return math.exp(-self.spacing) / (1 - math.exp(-self.spacing))

    def moments(self) -> tuple[Array, Array, Array]:
        """Return `E[p]` (P, C), `E[p (1 - p)]` (P, C) and `E[log sum exp]` (P,)."""
        r = self.ratios.derivatives[0]
        mass = self.F[:, None] * r  # (P, C, U)
        prob = mass.sum(-1) + self.tail * mass[..., -1]
        others = r.sum(1, keepdims=True) - r
        curvature = (mass * at_least(others, 0.0)).sum(-1)
        survival = -namespace(r).expm1(self.ratios.log_cdf.sum(1))  # 1 - F
        above = 0.5 + survival[:, 1:].sum(-1) + self.tail * survival[:, -1]
        return prob, _at_most_bernoulli(curvature, prob), self.start + self.spacing * above - EULER_GAMMA


class WideGrid(NamedTuple):
    """A grid `u` (P, U) with its own spacing for each point, with the weighted F and the ratios."""

    u: Float[Array, "P U"]
    F: Float[Array, "P U"]
    ratios: Ratios

    @property
    def tail(self) -> float:
        """Zero: nothing is left beyond the grid."""
        return 0.0

    def moments(self) -> tuple[Array, Array, Array]:
        """Return the moments of `FineGrid`; the dF of each cell is split in proportion to the growth of `log G_j`.

        The shares telescope: probabilities sum to one for any spacing, and no latent is lost between two nodes, however
        narrow it is.
        """
        h = self.u[:, 1:] - self.u[:, :-1]
        log_cdf = self.ratios.log_cdf
        F = namespace(h).exp(log_cdf.sum(1))
        growth = at_least(log_cdf[..., 1:] - log_cdf[..., :-1], 0.0)  # (P, C, U - 1)
        total = growth.sum(1)
        share = growth / at_least(total, tiny(h))[:, None]
        mass = (F[:, 1:] - F[:, :-1])[:, None] * share
        prob = mass.sum(-1)
        prob = prob / prob.sum(-1, keepdims=True)
        curvature = (mass * (1 - share) * at_most(total / h, 1.0)[:, None]).sum(-1)
        logsumexp = self.u[:, 0] + (h * (1 - 0.5 * (F[:, 1:] + F[:, :-1]))).sum(-1) - EULER_GAMMA
        return prob, _at_most_bernoulli(curvature, prob), logsumexp


Grid = FineGrid | WideGrid


def _at_most_bernoulli(curvature: Array, prob: Array) -> Array:
    """Enforce `E[p (1 - p)] <= E[p] (1 - E[p])` despite rounding."""
    return namespace(prob).minimum(curvature, prob * at_least(1 - prob, 0.0))


def _fine_grid(mean: Array, std: Array, rule: Rule, order: int) -> FineGrid:
    start = grid_start(mean, std, rule)
    ratios = gumbel_ratios(mean, std, start, rule, order)
    return FineGrid(start, rule.spacing * namespace(mean).exp(ratios.log_cdf.sum(1)), ratios, rule.spacing)


def _wide_grid(mean: Array, std: Array, rule: Rule, order: int) -> WideGrid:
    xp = namespace(mean)
    sigma = xp.sqrt(std * std + math.pi**2 / 6)
    centre = mean + EULER_GAMMA
    low, high = xp.amax(centre - rule.n_std * sigma, -1), xp.amax(centre + rule.n_std * sigma, -1)
    width = (high - low)[:, None]
    u = low[:, None] + width * (counts(mean, WIDE_NODES) / (WIDE_NODES - 1))
    ratios = wide_ratios(mean, std, u, order)
    return WideGrid(u, width / (WIDE_NODES - 1) * xp.exp(ratios.log_cdf.sum(1)), ratios)


class Latents(NamedTuple):
    """Independent Gaussians (P, C), shifted to a largest mean of zero, with the rule for their grids."""

    mean: Float[Array, "P C"]
    var: Float[Array, "P C"]
    rule: Rule
    may_be_wide: bool

    @classmethod
    def make(cls, mean: Array, var: Array, max_std: float) -> "Latents":
        """Subtract the largest mean, which the softmax ignores and which would cost digits of the grid."""
        rule = choose_rule(max_std, mean.shape[-1], mean.dtype)
        return cls(mean - namespace(mean).amax(mean, -1, keepdims=True), var, rule, max_std > WIDE_STD)

    def integrate(self, compute: Callable[[Grid, Any], tuple[Array, ...]], order: int) -> tuple[Array, ...]:
        """Call `compute` with the grid and the index of each chunk of points, and join the results."""
        chunks = self._chunks()
        pieces = []
        for index, grid in chunks:
            mean, std = self.mean[index], namespace(self.var).sqrt(self.var[index])
            pieces.append(compute(grid(mean, std, self.rule, order), index))
        if len(pieces) == 1:
            return pieces[0]
        wholes = tuple(new_empty(piece, (len(self.var), *piece.shape[1:])) for piece in pieces[0])
        for (index, _), some in zip(chunks, pieces, strict=True):
            for whole, piece in zip(wholes, some, strict=True):
                whole[index] = piece
        return wholes

    def _chunks(self) -> list[tuple[Any, Callable[..., Grid]]]:
        n, c = self.var.shape
        per_point = c * max(self.rule.n_nodes * self.rule.n_hermite, WIDE_NODES if self.may_be_wide else 0)
        size = max(1, CHUNK_ELEMENTS // per_point)
        if not self.may_be_wide:
            return [(slice(i, i + size), _fine_grid) for i in range(0, max(n, 1), size)]
        is_wide = (self.var > WIDE_STD**2).any(-1)
        indices = [
            (namespace(is_wide).argwhere(chosen)[:, 0], grid)
            for chosen, grid in ((is_wide, _wide_grid), (~is_wide, _fine_grid))
        ]
        return [(index[i : i + size], grid) for index, grid in indices for i in range(0, len(index), size)]


def integrate_moments(mean: Array, var: Array, max_std: float) -> tuple[Array, Array, Array]:
    """Return `E[p]` (P, C), `E[p (1 - p)]` (P, C) and `E[log sum exp]` (P,) for latents (P, C)."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        latents = Latents.make(mean, var, max_std)
        prob, curvature, logsumexp = latents.integrate(lambda grid, _: grid.moments(), order=1)
        return prob, curvature, logsumexp + namespace(mean).amax(mean, -1)


def pull_back(latents: Latents, a: Array, b: Array, g: Array) -> tuple[Array, ...]:
    """Return the gradients in means and variances from those of `E[p]`, `E[p (1 - p)]` and `E[log sum exp]`."""
    return latents.integrate(lambda grid, index: _pull_back(grid, a[index], b[index], g[index]), order=3)


def _pull_back(grid: Grid, a: Array, b: Array, g: Array) -> tuple[Array, Array]:
    """Vector-Jacobian product with cotangents `a` of E[p], `b` of E[p(1-p)], `g` of E[log sum exp].

    With r, q, t the first three derivative ratios: `dG_j/dm_j = -G_j'`, `dG_j/dv_j = G_j''/2` and, for c != j,
    `E[p_c p_j] = int F r_c r_j`.
    """
    r, q, t = grid.ratios.derivatives
    F = grid.F[:, None]
    R = r.sum(1, keepdims=True)
    a_, b_ = a[..., None], b[..., None]
    # E[p_j (1 - p_j)] pulled back from the log-sum-exp and from E[p]
    others = at_least(R - r, 0.0)
    prob = (F * r).sum(-1) + grid.tail * (F * r)[..., -1]
    curvature = (F * r * others).sum(-1)
    ar = (a_ * r).sum(1, keepdims=True)
    spread = a_ * R - ar  # sum_c r_c (a_j - a_c)
    grad_mean = g[:, None] * prob + (F * r * spread).sum(-1)
    grad_var = 0.5 * g[:, None] * curvature - 0.5 * (F * q * spread).sum(-1)
    # L = sum_{c < j} (b_c + b_j) E[p_c p_j]
    br = (b_ * r).sum(1, keepdims=True)
    partners = b_ * others + br - b_ * r  # sum_{j != k} (b_k + b_j) r_j
    pairs = br * R - (b_ * r * r).sum(1, keepdims=True)
    rest = pairs - r * partners  # the pairs without class k
    grad_mean = grad_mean - (F * (q * partners + r * rest)).sum(-1)
    grad_var = grad_var + 0.5 * (F * (t * partners + q * rest)).sum(-1)
    return grad_mean, grad_var


def class_pairs(mean: Array, var: Array, max_std: float) -> tuple[Array, ...]:
    """Return `E[p]` (P, C) and the matrices (P, C, C) of `SoftmaxHessian` for latents (P, C)."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return Latents.make(mean, var, max_std).integrate(lambda grid, _: _pairs(grid), order=3)


def _pairs(grid: Grid) -> tuple[Array, Array, Array, Array]:
    r, q, t = grid.ratios.derivatives
    F = grid.F[:, None]
    Fr, Fq = F * r, F * q
    prob = Fr.sum(-1) + grid.tail * Fr[..., -1]
    r_, q_ = r.swapaxes(-1, -2), q.swapaxes(-1, -2)
    mean_mean, mean_var, var_var = -(Fr @ r_), 0.5 * (Fr @ q_), -0.5 * (Fq @ q_)
    own = 0.5 * (at_least(r.sum(1, keepdims=True) - r, 0.0) * t * F).sum(-1)
    for matrix in (mean_mean, mean_var):
        set_diagonal(matrix, namespace(matrix).zeros_like(prob))
        set_diagonal(matrix, -matrix.sum(-2))
    set_diagonal(var_var, own)
    if isinstance(grid, WideGrid):
        prob, curvature, _ = grid.moments()
        set_diagonal(mean_mean, curvature)
    return prob, mean_mean, mean_var, var_var

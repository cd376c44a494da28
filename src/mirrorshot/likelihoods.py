"""The softmax likelihood under a factorised Gaussian, without samples.

For independent `f_c ~ N(m_c, v_c)` and `p = softmax(f)`, `softmax_moments` returns `E[p]`, `E[p^2]` and
`E[log sum exp f]` from one-dimensional integrals (see `quadrature`). With `F = prod_j G_j` and `r_j = G_j'/G_j`:

    E[p_c]             = int F r_c du
    E[p_c (1 - p_c)]   = int F r_c sum_{j != c} r_j du           (hence E[p_c^2])
    E[log sum exp f]   = int u dF - gamma_Euler

All integrands are positive, so probabilities and curvatures are never negative, and `sum_c E[p_c] = 1` is a
free check. Gradients are integrals of the same kind and are written out (no graph is kept). The work is cut
into chunks of points, so memory does not grow with the number of points.

Accuracy (asserted in `tests/test_likelihoods.py`): float64, 2 to 100 classes, 1e-6 for variances up to 4 and 1e-4
up to 100; float32, 1e-5 for variances up to 4.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.quadrature import (
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
from mirrorshot.types import InvalidInputError

CHUNK_ELEMENTS = 2**21
"""Largest number of elements of one working array; about ten such arrays live at a time (170 MB in float64)."""


class SoftmaxMoments(NamedTuple):
    """Moments of `p = softmax(f)` under independent Gaussians.

    Attributes:
        prob: `E[p_c]`, shape (..., C).
        prob_sq: `E[p_c^2]`, shape (..., C).
        logsumexp: `E[log sum_c exp f_c]`, shape (...).
    """

    prob: Float[Tensor, "*batch C"]
    prob_sq: Float[Tensor, "*batch C"]
    logsumexp: Float[Tensor, "*batch"]

    @property
    def curvature(self) -> Float[Tensor, "*batch C"]:
        """`E[p_c (1 - p_c)]`, never negative: the site precision of one mirror step."""
        return self.prob - self.prob_sq

    @property
    def error(self) -> Float[Tensor, "*batch"]:
        """Free error estimate: how far the probabilities are from summing to one."""
        return (1.0 - self.prob.sum(-1)).abs()


def softmax_moments(
    mean: Float[Tensor, "*batch C"],
    var: Float[Tensor, "*batch C"],
    mask: Bool[Tensor, "*#batch C"] | None = None,
    *,
    max_std: float | None = None,
) -> SoftmaxMoments:
    """Expectations of the softmax under independent Gaussians by deterministic quadrature.

    Args:
        mean: means of the latents; the last dimension is the classes.
        var: their variances, not negative.
        mask: classes that exist; the others have probability zero. None: all.
        max_std: a promise that no standard deviation exceeds this number. It saves the one look at the values
            (on a GPU: a synchronisation) that otherwise checks them and chooses the nodes.

    Returns:
        `SoftmaxMoments`, differentiable once with respect to `mean` and `var`.

    Example:
        >>> import torch
        >>> moments = softmax_moments(torch.zeros(1, 4), torch.ones(1, 4))
        >>> moments.prob
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if mean.shape != var.shape or mean.ndim == 0:
        raise InvalidInputError(
            f"Expected `mean` and `var` of one shape (..., C), but got {tuple(mean.shape)} and {tuple(var.shape)}."
        )
    if max_std is None:
        max_std = _checked_max_std(mean.detach(), var.detach())
    shape = mean.shape
    mean, var = _without_absent(mean, var, mask, max_std)
    flat = mean.reshape(-1, shape[-1]), var.reshape(-1, shape[-1])
    prob, curvature, logsumexp = _SoftmaxIntegrals.apply(*flat, max_std, 1.0)  # type: ignore[no-untyped-call]
    prob, curvature = prob.reshape(shape), curvature.reshape(shape)
    return SoftmaxMoments(prob, prob - curvature, logsumexp.reshape(shape[:-1]))


def _without_absent(mean: Tensor, var: Tensor, mask: Tensor | None, max_std: float) -> tuple[Tensor, Tensor]:
    """Put classes that do not exist certainly far below all others: they have probability zero and no influence."""
    if mask is None or (mask.device.type == "cpu" and bool(mask.all())):  # a GPU would have to wait for the answer
        return mean, var
    highest = mean.detach().masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
    return torch.where(mask, mean, highest - (1000.0 + 20.0 * max_std)), torch.where(mask, var, 0.0)


def log_predictive(
    mean: Float[Tensor, "*batch C"],
    var: Float[Tensor, "*batch C"],
    mask: Bool[Tensor, "*#batch C"] | None = None,
    *,
    temperature: float | Float[Tensor, "*#batch"] = 1.0,
    max_std: float | None = None,
) -> Float[Tensor, "*batch C"]:
    """Logarithm of the class probabilities (paper eq. 15a), raised to `1 / temperature` and normalised.

    A probability below the smallest positive number of the type is reported as that number.
    """
    prob = softmax_moments(mean, var, mask, max_std=max_std).prob
    log_prob = prob.clamp(min=torch.finfo(prob.dtype).tiny).log()
    if mask is not None:
        log_prob = log_prob.masked_fill(~mask, -torch.inf)
    scale = temperature[..., None] if isinstance(temperature, Tensor) else temperature
    return torch.log_softmax(log_prob / scale, -1)


def softmax_moments_error(mean: Float[Tensor, "*batch C"], var: Float[Tensor, "*batch C"]) -> Float[Tensor, "*batch"]:
    """Estimate the quadrature error per point: the largest change of any moment when the nodes are doubled."""
    max_std = _checked_max_std(mean, var)
    flat = mean.reshape(-1, mean.shape[-1]), var.reshape(-1, mean.shape[-1])
    coarse, fine = (
        _SoftmaxIntegrals.apply(*flat, max_std, refine)  # type: ignore[no-untyped-call]
        for refine in (1.0, 2.0)
    )
    prob, curvature, logsumexp = (a - b for a, b in zip(coarse, fine, strict=True))
    change = [prob.abs().amax(-1), (prob - curvature).abs().amax(-1), logsumexp.abs()]
    return torch.stack(change).amax(0).reshape(mean.shape[:-1])


class SoftmaxHessian(NamedTuple):
    """Second derivatives of `E[log sum exp f]` in means and variances, for every pair of classes, each (..., C, C).

    Attributes:
        prob: `E[p_c]`, shape (..., C); the diagonal of `mean_mean` is `E[p_c (1 - p_c)]`.
        mean_mean: `dE[p_c] / dm_j`.
        mean_var: `dE[p_c] / dv_j`.
        var_var: twice the derivative in two variances, `dE[p_c (1 - p_c)] / dv_j`.
    """

    prob: Float[Tensor, "*batch C"]
    mean_mean: Float[Tensor, "*batch C C"]
    mean_var: Float[Tensor, "*batch C C"]
    var_var: Float[Tensor, "*batch C C"]

    @property
    def curvature(self) -> Float[Tensor, "*batch C"]:
        """`E[p_c (1 - p_c)]`, never negative."""
        return self.mean_mean.diagonal(dim1=-2, dim2=-1)

    def pull_back(
        self, prob_bar: Float[Tensor, "*batch C"], curvature_bar: Float[Tensor, "*batch C"]
    ) -> tuple[Float[Tensor, "*batch C"], Float[Tensor, "*batch C"]]:
        """Gradients in means and variances from gradients of `E[p]` and `E[p (1 - p)]`.

        Example:
            >>> import torch
            >>> zero, first = torch.zeros(3), torch.tensor([1.0, 0.0, 0.0])
            >>> softmax_hessian(zero, zero, max_std=1.0).pull_back(first, zero)[0].sign()
            tensor([ 1., -1., -1.])
        """
        a, b = prob_bar[..., None], curvature_bar[..., None]
        grad_mean = (a * self.mean_mean + 2 * b * self.mean_var.mT).sum(-2)
        return grad_mean, (a * self.mean_var + b * self.var_var).sum(-2)


def softmax_hessian(
    mean: Float[Tensor, "*batch C"],
    var: Float[Tensor, "*batch C"],
    mask: Bool[Tensor, "*#batch C"] | None = None,
    *,
    max_std: float,
) -> SoftmaxHessian:
    """How `E[p]` and `E[p (1 - p)]` answer to every mean and variance; arguments as in `softmax_moments`.

    With r, q, t the first three derivative ratios of `G`, and `c != j`:

        dE[p_c] / dm_j = -int F r_c r_j du,  dE[p_c] / dv_j = 1/2 int F r_c q_j du,
        dE[p_c (1 - p_c)] / dv_j = -1/2 int F q_c q_j du.

    The diagonals follow from `sum_c p_c = 1` and from the softmax ignoring a common shift.

    Example:
        >>> import torch
        >>> softmax_hessian(torch.zeros(2), torch.zeros(2), max_std=1.0).mean_mean.round(decimals=4)
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """
    shape = mean.shape
    mean, var = _without_absent(mean, var, mask, max_std)
    mean, var = (mean - mean.amax(-1, keepdim=True)).reshape(-1, shape[-1]), var.reshape(-1, shape[-1])
    rule = choose_rule(max_std, shape[-1], mean.dtype, 1.0)

    def pairs(part: Any, integrate: Any) -> tuple[Tensor, ...]:
        args = mean[part], var[part].sqrt(), rule, 1.0
        prob, *matrices = _pairs(*_grid(integrate)(*args)[1:], rule)
        if integrate is _integrate_wide:
            prob, curvature, _ = integrate(*args)
            matrices[0].diagonal(dim1=-2, dim2=-1).copy_(curvature)
        return prob, *matrices

    prob, *matrices = _in_chunks(pairs, var, rule, max_std > WIDE_STD)
    return SoftmaxHessian(prob.reshape(shape), *(matrix.reshape(*shape, shape[-1]) for matrix in matrices))


def _pairs(F: Tensor, ratios: Ratios, rule: Rule) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r, q, t = ratios.first, ratios.second, ratios.third
    assert q is not None
    assert t is not None
    Fr, Fq = F[:, None] * r, F[:, None] * q
    prob = Fr.sum(-1) + _beyond(rule) * Fr[..., -1]
    mean_mean, mean_var, var_var = (Fr @ r.mT).neg_(), (Fr @ q.mT).mul_(0.5), (Fq @ q.mT).mul_(-0.5)
    own = (r.sum(1, keepdim=True) - r).clamp_(min=0.0).mul_(t).mul_(F[:, None]).sum(-1).mul_(0.5)
    for matrix in (mean_mean, mean_var, var_var):
        matrix.diagonal(dim1=-2, dim2=-1).zero_()
    mean_mean.diagonal(dim1=-2, dim2=-1).copy_(-mean_mean.sum(-2))
    mean_var.diagonal(dim1=-2, dim2=-1).copy_(-mean_var.sum(-2))
    var_var.diagonal(dim1=-2, dim2=-1).copy_(own)
    return prob, mean_mean, mean_var, var_var


def _checked_max_std(mean: Tensor, var: Tensor) -> float:
    if mean.numel() == 0:
        return 0.0
    low, high, finite = torch.stack([var.amin(), var.amax(), mean.sum().isfinite().to(var.dtype)]).tolist()
    if not finite and not bool(mean.isfinite().all()):
        raise InvalidInputError("Expected finite `mean`, but got NaN or infinity.")
    if not low >= 0.0 or math.isinf(high):
        raise InvalidInputError(f"Expected `var` to be finite and not negative, but its range is [{low}, {high}].")
    return math.sqrt(high)


class _SoftmaxIntegrals(torch.autograd.Function):
    """(mean, var) (P, C) -> E[p] (P, C), E[p(1-p)] (P, C), E[log sum exp] (P,)."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, max_std: float, refine: float) -> tuple[Tensor, Tensor, Tensor]:
        rule = choose_rule(max_std, mean.shape[-1], mean.dtype, refine)
        # softmax ignores a common shift; taken out, large means do not cost the grid its digits
        top = mean.amax(-1)
        mean = mean - top[:, None]
        ctx.save_for_backward(mean, var)
        ctx.rule, ctx.wide, ctx.refine = rule, max_std > WIDE_STD, refine
        prob, curvature, logsumexp = _in_chunks(
            lambda part, integrate: integrate(mean[part], var[part].sqrt(), rule, refine), var, rule, ctx.wide
        )
        return prob, curvature, logsumexp + top

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mean, var = ctx.saved_tensors

        def pull_back(part: Any, integrate: Any) -> tuple[Tensor, ...]:
            F, ratios = _grid(integrate)(mean[part], var[part].sqrt(), ctx.rule, ctx.refine)[1:]
            beyond = 0.0 if integrate is _integrate_wide else _beyond(ctx.rule)
            return _pull_back(F, ratios, beyond, *(g[part] for g in grads))

        return (*_in_chunks(pull_back, var, ctx.rule, ctx.wide), None, None)


def _in_chunks(
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
    for chosen, integrate in ((is_wide, _integrate_wide), (~is_wide, _integrate_fine)):
        parts += [(part, integrate) for part in chosen.nonzero()[:, 0].split(size) if len(part)]
    return parts


def _grid(integrate: Any) -> Callable[..., tuple[Tensor, Tensor, Ratios]]:
    return _wide_grid if integrate is _integrate_wide else _fine_grid


def _fine_grid(mean: Tensor, std: Tensor, rule: Rule, refine: float, order: int = 3) -> tuple[Tensor, Tensor, Ratios]:
    """Start of the grid, weighted F = h prod_j G_j (P, U) and the ratios."""
    start = grid_start(mean, std, rule)
    ratios = gumbel_ratios(mean, std, start, rule, order)
    return start, rule.spacing * ratios.log_cdf.sum(1).exp(), ratios


def _beyond(rule: Rule) -> float:
    """Beyond the grid all integrands of E[p] and of 1 - F are A e^{-u}: a geometric series of this sum."""
    return math.exp(-rule.spacing) / (1 - math.exp(-rule.spacing))


def _integrate_fine(mean: Tensor, std: Tensor, rule: Rule, refine: float) -> tuple[Tensor, Tensor, Tensor]:
    h = rule.spacing
    start, F, ratios = _fine_grid(mean, std, rule, refine, order=1)
    r = ratios.first
    mass = F[:, None] * r  # (P, C, U)
    beyond = _beyond(rule)
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


def _integrate_wide(mean: Tensor, std: Tensor, rule: Rule, refine: float) -> tuple[Tensor, Tensor, Tensor]:
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

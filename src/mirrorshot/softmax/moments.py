"""Moments of the softmax under a factorised Gaussian, without samples.

For independent `f_c ~ N(m_c, v_c)` and `p = softmax(f)`, `softmax_moments` returns `E[p]`, `E[p^2]` and
`E[log sum exp f]` from one-dimensional integrals (see `quadrature`). With `F = prod_j G_j` and `r_j = G_j'/G_j`:

    E[p_c]             = int F r_c du
    E[p_c (1 - p_c)]   = int F r_c sum_{j != c} r_j du           (hence E[p_c^2])
    E[log sum exp f]   = int u dF - gamma_Euler

All integrands are positive, so probabilities and curvatures are never negative, and `sum_c E[p_c] = 1` is a
free check. Gradients are integrals of the same kind and are written out (no graph is kept); see `integrals`.

Accuracy (asserted in `tests/softmax/test_moments.py`): float64, 2 to 100 classes, 1e-6 for variances up to 4 and 1e-4
up to 100; float32, 1e-5 for variances up to 4.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mirrorshot.softmax.integrals import SoftmaxIntegrals, class_pairs
from mirrorshot.types import InvalidInputError


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
        max_std: upper bound of all standard deviations, if the caller knows one. None: the values are checked and
            their maximum is read back (on a GPU, a synchronisation).

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
    prob, curvature, logsumexp = SoftmaxIntegrals.apply(*flat, max_std, 1.0)  # type: ignore[no-untyped-call]
    prob, curvature = prob.reshape(shape), curvature.reshape(shape)
    return SoftmaxMoments(prob, prob - curvature, logsumexp.reshape(shape[:-1]))


def _without_absent(mean: Tensor, var: Tensor, mask: Tensor | None, max_std: float) -> tuple[Tensor, Tensor]:
    """Put absent classes far below all others, with certainty: they get probability zero and no influence."""
    if mask is None or (mask.device.type == "cpu" and bool(mask.all())):  # not on a GPU: a synchronisation
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
        SoftmaxIntegrals.apply(*flat, max_std, refine)  # type: ignore[no-untyped-call]
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
        """Gradients in means and variances from gradients of `E[p]` and `E[p (1 - p)]`."""
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
    """Derivatives of `E[p]` and `E[p (1 - p)]` in every mean and variance; arguments as in `softmax_moments`.

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
    prob, *matrices = class_pairs(mean.reshape(-1, shape[-1]), var.reshape(-1, shape[-1]), max_std)
    return SoftmaxHessian(prob.reshape(shape), *(matrix.reshape(*shape, shape[-1]) for matrix in matrices))


def _checked_max_std(mean: Tensor, var: Tensor) -> float:
    if mean.numel() == 0:
        return 0.0
    low, high, finite = torch.stack([var.amin(), var.amax(), mean.sum().isfinite().to(var.dtype)]).tolist()
    if not finite and not bool(mean.isfinite().all()):
        raise InvalidInputError("Expected finite `mean`, but got NaN or infinity.")
    if not low >= 0.0 or math.isinf(high):
        raise InvalidInputError(f"Expected `var` to be finite and not negative, but its range is [{low}, {high}].")
    return math.sqrt(high)

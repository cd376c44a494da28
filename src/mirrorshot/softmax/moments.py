"""Moments of the softmax under a factorised Gaussian, without samples.

For independent `f_c ~ N(m_c, v_c)` and `p = softmax(f)`, `softmax_moments` returns `E[p]`, `E[p^2]` and
`E[log sum exp f]` from one-dimensional integrals (see `quadrature`). With `F = prod_j G_j` and `r_j = G_j'/G_j`:

    E[p_c]             = int F r_c du
    E[p_c (1 - p_c)]   = int F r_c sum_{j != c} r_j du           (hence E[p_c^2])
    E[log sum exp f]   = int u dF - gamma_Euler

All integrands are positive, so probabilities and curvatures are never negative, and `sum_c E[p_c] = 1` is a check
without cost. Gradients are integrals of the same kind, written out in `integrals`.

Accuracy (asserted in `tests/softmax/test_moments.py`): float64, 2 to 100 classes, 1e-6 for variances up to 4 and 1e-4
up to 100; float32, 1e-5 for variances up to 4.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from mirrorshot.softmax.arrays import (
    Array,
    at_least,
    detach,
    diagonal,
    is_on_cpu,
    is_tensor,
    log_softmax,
    namespace,
    tiny,
)
from mirrorshot.softmax.native import class_pairs, integrate_moments
from mirrorshot.types import InvalidInputError


class SoftmaxMoments(NamedTuple):
    """Moments of `p = softmax(f)` under independent Gaussians.

    Attributes:
        prob: `E[p_c]`, shape (..., C).
        prob_sq: `E[p_c^2]`, shape (..., C).
        logsumexp: `E[log sum_c exp f_c]`, shape (...).
    """

    prob: Float[Array, "*batch C"]
    prob_sq: Float[Array, "*batch C"]
    logsumexp: Float[Array, "*batch"]

    @property
    def curvature(self) -> Float[Array, "*batch C"]:
        """`E[p_c (1 - p_c)]`, never negative: the site precision of one mirror step."""
        return self.prob - self.prob_sq

    @property
    def error(self) -> Float[Array, "*batch"]:
        """Error estimate: the distance of the sum of the probabilities from one."""
        return abs(1.0 - self.prob.sum(-1))


def softmax_moments(
    mean: Float[Array, "*batch C"],
    var: Float[Array, "*batch C"],
    mask: Bool[Array, "*#batch C"] | None = None,
    *,
    max_std: float | None = None,
) -> SoftmaxMoments:
    """Return the moments of the softmax under independent Gaussians, by deterministic quadrature.

    Args:
        mean: means of the latents, arrays or tensors; the last dimension is the classes.
        var: their variances, not negative.
        mask: classes that exist; the others have probability zero. None: all.
        max_std: upper bound of all standard deviations. None: the values are checked and their maximum is read back,
            which on a GPU is a synchronisation.

    Returns:
        `SoftmaxMoments`; for tensors, differentiable once with respect to `mean` and `var`.

    Example:
        >>> softmax_moments(np.zeros((1, 4)), np.ones((1, 4))).prob.round(6)
        array([[0.25, 0.25, 0.25, 0.25]])
    """
    if mean.shape != var.shape or mean.ndim == 0:
        raise InvalidInputError(
            f"Expected `mean` and `var` of one shape (..., C), but got {tuple(mean.shape)} and {tuple(var.shape)}."
        )
    if max_std is None:
        max_std = _checked_max_std(detach(mean), detach(var))
    shape = mean.shape
    mean, var = _without_absent(mean, var, mask, max_std)
    flat = mean.reshape(-1, shape[-1]), var.reshape(-1, shape[-1])
    prob, curvature, logsumexp = _integrals(*flat, max_std)
    prob, curvature = prob.reshape(shape), curvature.reshape(shape)
    return SoftmaxMoments(prob, prob - curvature, logsumexp.reshape(shape[:-1]))


def _integrals(mean: Array, var: Array, max_std: float) -> tuple[Array, Array, Array]:
    if not is_tensor(mean):
        return integrate_moments(mean, var, max_std)
    from mirrorshot.softmax.autograd import SoftmaxIntegrals

    apply: Callable[..., tuple[Array, Array, Array]] = SoftmaxIntegrals.apply
    return apply(mean, var, max_std)


def _without_absent(mean: Array, var: Array, mask: Array | None, max_std: float) -> tuple[Array, Array]:
    """Put absent classes far below all others with variance zero: they get probability zero and have no influence."""
    if mask is None or (is_on_cpu(mask) and bool(mask.all())):  # on a GPU this would be a synchronisation
        return mean, var
    xp = namespace(mean)
    highest = xp.amax(xp.where(mask, detach(mean), -math.inf), -1, keepdims=True)
    return xp.where(mask, mean, highest - (1000.0 + 20.0 * max_std)), xp.where(mask, var, 0.0)


def log_predictive(
    mean: Float[Array, "*batch C"],
    var: Float[Array, "*batch C"],
    mask: Bool[Array, "*#batch C"] | None = None,
    *,
    temperature: float | Float[Array, "*#batch"] = 1.0,
) -> Float[Array, "*batch C"]:
    """Return the logarithm of the class probabilities (paper eq. 15a), raised to `1 / temperature` and normalised.

    Probabilities are at least the smallest normal number of the type before they are raised.
    """
    prob = softmax_moments(mean, var, mask).prob
    xp = namespace(prob)
    log_prob = xp.log(at_least(prob, tiny(prob)))
    if mask is not None:
        log_prob = xp.where(mask, log_prob, -math.inf)
    scale = temperature if isinstance(temperature, float | int) else temperature[..., None]
    return log_softmax(log_prob / scale)


class SoftmaxHessian(NamedTuple):
    """Second derivatives of `E[log sum exp f]` in means and variances, for every pair of classes, each (..., C, C).

    Attributes:
        prob: `E[p_c]`, shape (..., C); the diagonal of `mean_mean` is `E[p_c (1 - p_c)]`.
        mean_mean: `dE[p_c] / dm_j`.
        mean_var: `dE[p_c] / dv_j`.
        var_var: twice the derivative in two variances, `dE[p_c (1 - p_c)] / dv_j`.
    """

    prob: Float[Array, "*batch C"]
    mean_mean: Float[Array, "*batch C C"]
    mean_var: Float[Array, "*batch C C"]
    var_var: Float[Array, "*batch C C"]

    @property
    def curvature(self) -> Float[Array, "*batch C"]:
        """`E[p_c (1 - p_c)]`, never negative."""
        return diagonal(self.mean_mean)

    def pull_back(
        self, prob_bar: Float[Array, "*batch C"], curvature_bar: Float[Array, "*batch C"]
    ) -> tuple[Float[Array, "*batch C"], Float[Array, "*batch C"]]:
        """Return the gradients in means and variances from those of `E[p]` and `E[p (1 - p)]`."""
        a, b = prob_bar[..., None], curvature_bar[..., None]
        grad_mean = (a * self.mean_mean + 2 * b * self.mean_var.swapaxes(-1, -2)).sum(-2)
        return grad_mean, (a * self.mean_var + b * self.var_var).sum(-2)


def softmax_hessian(
    mean: Float[Array, "*batch C"],
    var: Float[Array, "*batch C"],
    mask: Bool[Array, "*#batch C"] | None = None,
    *,
    max_std: float,
) -> SoftmaxHessian:
    """Return the derivatives of `E[p]` and `E[p (1 - p)]` in every mean and variance.

    Arguments are as in `softmax_moments`. With r, q, t the first three derivative ratios of `G`, and `c != j`:

        dE[p_c] / dm_j = -int F r_c r_j du,  dE[p_c] / dv_j = 1/2 int F r_c q_j du,
        dE[p_c (1 - p_c)] / dv_j = -1/2 int F q_c q_j du.

    The diagonals of the first two follow from `sum_c p_c = 1`; that of the third is
    `1/2 int F t_c sum_{j != c} r_j du`.

    Example:
        >>> softmax_hessian(np.zeros(2), np.zeros(2), max_std=1.0).mean_mean.round(6)
        array([[ 0.25, -0.25],
               [-0.25,  0.25]])
    """
    shape = mean.shape
    mean, var = _without_absent(detach(mean), detach(var), mask, max_std)
    prob, *matrices = class_pairs(mean.reshape(-1, shape[-1]), var.reshape(-1, shape[-1]), max_std)
    return SoftmaxHessian(prob.reshape(shape), *(matrix.reshape(*shape, shape[-1]) for matrix in matrices))


def _checked_max_std(mean: Array, var: Array) -> float:
    if math.prod(mean.shape) == 0:
        return 0.0
    xp = namespace(mean)
    with np.errstate(over="ignore", invalid="ignore"):
        low, high, total = xp.stack([xp.amin(var), xp.amax(var), mean.sum()]).tolist()
    if not math.isfinite(total) and not bool(xp.isfinite(mean).all()):
        raise InvalidInputError("Expected finite `mean`, but got NaN or infinity.")
    if not low >= 0.0 or math.isinf(high):
        raise InvalidInputError(f"Expected `var` to be finite and not negative, but its range is [{low}, {high}].")
    return math.sqrt(high)

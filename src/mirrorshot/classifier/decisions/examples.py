"""Effects of single examples: on latents at new points, and predictions without them."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from mirrorshot.gp.gaussian import loo_latent
from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.weight_space import Posterior
from mirrorshot.softmax.arrays import Array


def contributions(posterior: Posterior, K_cross: Float[Array, "T _ N M"]) -> Float[Array, "T C N M"]:
    """What each example adds to the latent means at new points: `k(x_i, x) alpha_ci`, whose sum over i is the mean."""
    return K_cross * posterior.alpha[..., None]


def loo_latents(
    posterior: Posterior,
    fraction: Float[Array, "T N"] | None = None,
    *,
    leak: Float[Array, "T C N"] | None = None,
    prior_mean: Float[Array, "T C N"] | None = None,
) -> tuple[Float[Array, "T N C"], Float[Array, "T N C"]]:
    """Mean and variance of the latent of every class at each example, predicted without it.

    Args:
        posterior: the posterior with all examples.
        fraction: which part of each example is left out, as in `loo_latent`. None: all of it.
        leak: added to the means, see `selection.centre_leak`.
        prior_mean: mean of the prior, added to the means too; None is zero.
    """
    mean, var = loo_latent(posterior, fraction)
    for shift in (leak, prior_mean):
        mean = mean if shift is None else mean + shift
    return mean.mT, var.mT


class Effects(NamedTuple):
    """What each example does to the latents at new points, each (T, C, N, M).

    Attributes:
        mean: what it adds to the mean; the mean without it is lower by that.
        var: what it takes off the variance; the variance without it is higher by that.
    """

    mean: Float[Array, "T C N M"]
    var: Float[Array, "T C N M"]


def effects(
    posterior: Posterior, K_cross: Float[Array, "T _ N M"], fraction: Float[Array, "T N"] | None = None
) -> Effects:
    """What would change at new points without one example, in closed form, the other sites held.

    With `k_i(x)` the posterior covariance of the point and example i, and `r_i = 1 - w_i Sigma_ii` its slack:
    `k_i alpha_i / r_i` for the mean and `k_i^2 w_i / r_i` for the variance.

    Args:
        posterior: of the examples.
        K_cross: prior covariance of examples and new points.
        fraction: which part of each example is left out, as in `loo_latent`. None: all of it.
    """
    w = posterior.sites.precision
    part = 1.0 if fraction is None else fraction[:, None, :]
    covariance = posterior.covariance_with(K_cross)
    left = (part / ((1 - part) + part * posterior.slack))[..., None]
    return Effects(covariance * posterior.alpha[..., None] * left, covariance * covariance * w[..., None] * left)


def kept_without(
    y: Int[Array, " N"], weight: Float[Array, " N"], removed: Float[Array, " N"], n_way: int
) -> Bool[Array, " N"]:
    """Whether the class of an example still has one when the weight `removed` of it is left out.

    Example:
        >>> import numpy as np
        >>> kept_without(np.array([0, 0, 1]), np.ones(3), np.ones(3), 2)
        array([ True,  True, False])
    """
    counts = (one_hot(y, n_way, weight.dtype) * weight).sum(-1)
    return counts[y] - removed > 1e-9

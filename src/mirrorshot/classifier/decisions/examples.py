"""Effects of single examples: contributions to latents, and predictions without an example.

In all functions `fraction` is the part of each example to leave out, as in `gp.gaussian.loo_latent`; None: all of it.
"""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from mirrorshot.gp.gaussian import loo_latent
from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.weight_space import Posterior
from mirrorshot.softmax.arrays import Array


def contributions(posterior: Posterior, K_cross: Float[Array, "T _ N M"]) -> Float[Array, "T C N M"]:
    """Return each example's part `k(x_i, x) alpha_ci` of the latent means at new points; their sum is the mean."""
    return K_cross * posterior.alpha[..., None]


def loo_latents(
    posterior: Posterior,
    fraction: Float[Array, "T N"] | None = None,
    *,
    leak: Float[Array, "T C N"] | None = None,
    prior_mean: Float[Array, "T C N"] | None = None,
) -> tuple[Float[Array, "T N C"], Float[Array, "T N C"]]:
    """Return mean and variance of the latents at each example, predicted without it.

    `leak` (see `selection.centre_leak`) and `prior_mean` are added to the means.
    """
    mean, var = loo_latent(posterior, fraction)
    for shift in (leak, prior_mean):
        mean = mean if shift is None else mean + shift
    return mean.mT, var.mT


class Effects(NamedTuple):
    """The effect of each example on the latents at new points, each (T, C, N, M).

    Attributes:
        mean: its part of the mean, which is lower by that without it.
        var: its reduction of the variance, which is higher by that without it.
    """

    mean: Float[Array, "T C N M"]
    var: Float[Array, "T C N M"]


def effects(
    posterior: Posterior, K_cross: Float[Array, "T _ N M"], fraction: Float[Array, "T N"] | None = None
) -> Effects:
    """Return the effect of each example at new points in closed form, with the other sites held.

    With `k_i(x)` the posterior covariance of the point and example i, and `r_i = 1 - w_i Sigma_ii` its slack:
    `k_i alpha_i / r_i` for the mean and `k_i^2 w_i / r_i` for the variance.
    """
    w = posterior.sites.precision
    part = 1.0 if fraction is None else fraction[:, None, :]
    covariance = posterior.covariance_with(K_cross)
    left = (part / ((1 - part) + part * posterior.slack))[..., None]
    return Effects(covariance * posterior.alpha[..., None] * left, covariance * covariance * w[..., None] * left)


def kept_without(
    y: Int[Array, " N"], weight: Float[Array, " N"], removed: Float[Array, " N"], n_way: int
) -> Bool[Array, " N"]:
    """Whether the class of each example keeps a positive weight when the weight `removed` of that example is left out.

    Example:
        >>> import numpy as np
        >>> kept_without(np.array([0, 0, 1]), np.ones(3), np.ones(3), 2)
        array([ True,  True, False])
    """
    counts = (one_hot(y, n_way, weight.dtype) * weight).sum(-1)
    return counts[y] - removed > 1e-9

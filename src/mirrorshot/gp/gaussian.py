"""Gaussian sites, and conditioning a Gaussian-process prior on them.

A site is a factor `exp(b f - w f^2 / 2)` per (task, class, point), stored as `shift` b and `precision` w >= 0. With
`S = diag(sqrt w)`, the posterior follows from one factorisation `B = I + S K S = L L^T`. `K` is never inverted and may
be singular. A site with zero shift and precision has no influence, so padding has zero sites.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int

from mirrorshot.gp.linalg import cholesky_of_shifted, inverse_lower, solve_lower, times
from mirrorshot.softmax.arrays import Array, at_least, diagonal, namespace, zeros
from mirrorshot.types import NumericalError


class GaussianSites(NamedTuple):
    """Natural parameters of the Gaussian approximation of the likelihood, shapes (T, C, N)."""

    shift: Float[Array, "T C N"]
    precision: Float[Array, "T C N"]

    @classmethod
    def zeros_like(cls, K: Float[Array, "T _ N N"], n_way: int) -> "GaussianSites":
        """Zero sites: conditioning on them gives the prior."""
        nothing = zeros(K, (K.shape[0], n_way, K.shape[-1]))
        return cls(nothing, nothing)


@runtime_checkable
class SolvedTasks(Protocol):
    """Posterior of a batch of tasks for predictions: `GaussianPosterior`, `WeightPosterior` or `steps.Solution`."""

    @property
    def sites(self) -> GaussianSites:
        """Sites of the posterior."""

    @property
    def mean(self) -> Float[Array, "T C N"]:
        """Posterior mean `m`."""

    @property
    def alpha(self) -> Float[Array, "T C N"]:
        """`K^-1 m = b - w m`."""

    def explained(self, K_cross: Float[Array, "T _ N M"]) -> Float[Array, "T C M"]:
        """Reduction of the prior variance at new points, `k*^T S B^-1 S k*`."""


@runtime_checkable
class Marginals(SolvedTasks, Protocol):
    """Posterior with the marginals that leave-one-out predictions need."""

    @property
    def var(self) -> Float[Array, "T C N"]:
        """Posterior variance."""

    @property
    def slack(self) -> Float[Array, "T C N"]:
        """`1 - w var`."""


class GaussianPosterior(NamedTuple):
    """The prior conditioned on sites.

    Attributes:
        mean: posterior mean `m`, shape (T, C, N).
        var: posterior variance, the diagonal of `Sigma`, shape (T, C, N).
        alpha: `K^-1 m = b - w m`, shape (T, C, N).
        chol: `L` of `I + S K S = L L^T`, shape (T, C, N, N).
        gain: `V = L^-1 S K`, shape (T, C, N, N); the data reduce the prior covariance by `V^T V`.
        slack: the diagonal of `(I + S K S)^-1 = 1 - w var`, shape (T, C, N).
        info: LAPACK's status of the factorisation, shape (T, C); zero is success.
    """

    sites: GaussianSites
    mean: Float[Array, "T C N"]
    var: Float[Array, "T C N"]
    alpha: Float[Array, "T C N"]
    chol: Float[Array, "T C N N"]
    gain: Float[Array, "T C N N"]
    slack: Float[Array, "T C N"]
    info: Int[Array, "T C"]

    def gain_at(self, K_cross: Float[Array, "T _ N M"]) -> Float[Array, "T C N M"]:
        """`G = L^-1 S k*`; the data reduce the prior covariance of new points by `G^T G`."""
        return solve_lower(self.chol, root_of(self.sites.precision)[..., None] * K_cross)

    def explained(self, K_cross: Float[Array, "T _ N M"]) -> Float[Array, "T C M"]:
        """Reduction of the prior variance at new points, `|L^-1 S k*|^2`."""
        gain = self.gain_at(K_cross)
        return (gain * gain).sum(-2)

    def covariance_with(self, K_cross: Float[Array, "T _ N M"]) -> Float[Array, "T C N M"]:
        """Posterior covariance of the points with new points."""
        return K_cross - self.gain.mT @ self.gain_at(K_cross)

    def check(self) -> "GaussianPosterior":
        """Raise `NumericalError` if a factorisation failed: `K` is indefinite, or too large for its precision."""
        if bool((self.info != 0).any()):
            task, label = namespace(self.info).argwhere(self.info != 0)[0].tolist()
            raise NumericalError(
                f"Expected `K` to be positive semi-definite, but I + S K S has no Cholesky factor in task {task}, "
                f"class {label}. Check that `K` comes from one kernel on one set of points; in float32 its largest "
                "eigenvalue should stay below 1e7 (use float64 beyond)."
            )
        return self


def root_of(precision: Array) -> Array:
    """`sqrt(w)`, whose gradient is zero instead of infinite where `w` is zero."""
    xp, positive = namespace(precision), precision > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, precision, 1.0)), 0.0)


def condition(K: Float[Array, "T _ N N"], sites: GaussianSites) -> GaussianPosterior:
    """Condition `f_c ~ N(0, K_c)` on the sites (paper eq. 8); differentiable in `K` and the sites.

    `K` is positive semi-definite: (T, 1, N, N), shared by the classes, or (T, C, N, N).

    Example:
        >>> import numpy as np
        >>> sites = GaussianSites(np.array([[[1.0]]]), np.array([[[1.0]]]))
        >>> posterior = condition(np.array([[[[1.0]]]]), sites)
        >>> round(posterior.mean.item(), 6), round(posterior.var.item(), 6)
        (0.5, 0.5)
    """
    b, w = sites
    root = root_of(w)
    L, info = cholesky_of_shifted(K, root)
    L_inv = inverse_lower(L)
    slack = (L_inv * L_inv).sum(-2)
    prior = diagonal(K)
    # alpha = b - S B^-1 S K b
    Kb = times(K, b)
    alpha = b - root * times(L_inv.mT, times(L_inv, root * Kb))
    mean = times(K, alpha)
    # Sigma_ii = K_ii - |L^-1 S k_i|^2 = (1 - slack_i) / w_i: each form is accurate where the other cancels
    V = L_inv @ (root[..., None] * K)
    xp = namespace(K)
    weak = prior - (V * V).sum(-2)
    is_strong = w * prior > 1.0
    strong = (1.0 - slack) / xp.where(is_strong, w, 1.0)
    var = at_least(xp.where(is_strong, strong, weak), 0.0)
    return GaussianPosterior(sites, mean, var, alpha, L, V, slack, info)


def covariance(K: Float[Array, "T _ N N"], posterior: GaussianPosterior) -> Float[Array, "T C N N"]:
    """Full posterior covariance `K - V^T V`."""
    return K - posterior.gain.mT @ posterior.gain


def kl_to_prior(posterior: GaussianPosterior) -> Float[Array, "T C"]:
    """KL divergence of the posterior of each class from its prior.

    `1/2 (tr B^-1 - N + m^T K^-1 m) + sum log diag L`, where `tr B^-1 - N = -sum_i w_i Sigma_ii`.
    """
    fit = posterior.mean * posterior.alpha - posterior.sites.precision * posterior.var
    log_det = namespace(fit).log(diagonal(posterior.chol))
    return (0.5 * fit + log_det).sum(-1)


def predict_latent(
    posterior: SolvedTasks, K_cross: Float[Array, "T _ N M"], prior_var: Float[Array, "T _ M"]
) -> tuple[Float[Array, "T C M"], Float[Array, "T C M"]]:
    """Mean and variance of the latents at new points (paper eq. 15b): `k*^T alpha` and `k** - k*^T S B^-1 S k*`."""
    return times(K_cross.mT, posterior.alpha), at_least(prior_var - posterior.explained(K_cross), 0.0)


def loo_latent(
    posterior: Marginals, fraction: Float[Array, "T N"] | None = None
) -> tuple[Float[Array, "T C N"], Float[Array, "T C N"]]:
    """Leave-one-out (cavity) mean and variance at every point, in closed form.

    `fraction` is the part of each point's site to remove; None removes it all. A point of weight `a` stands for `a`
    equal points: to leave out one of them, remove `1 / a`.
    """
    part = 1.0 if fraction is None else fraction[:, None, :]
    # 1 - part * w * var, with 1 - w * var = slack
    var = posterior.var / ((1 - part) + part * posterior.slack)
    return posterior.mean - part * var * posterior.alpha, var

"""Upper bounds of the distance to the optimum, computed from the gradient.

Write `q_c = N(m_c, A_c A_c^T)` with `m_c = L u_c`, `A_c = L R_c` and `K_c = L L^T`, all triangular. Then
`f = L u + L R eps` is linear in `(u, R)` and the softmax is log-concave, so the expected log-likelihood is concave, and

    KL = 1/2 |u|^2 + 1/2 |R|^2 - log det R - N/2

is strongly convex with modulus one. So the bound `F = E log p - KL` has a unique optimum `F*`, and everywhere

    F* - F <= 1/2 |grad|^2        |u - u*|^2 + |R - R*|^2 <= |grad|^2

With the residuals `r = g_m - alpha` and `d = w - E[p (1 - p)]` of the sites, the gradients are `L^T r` and (the lower
triangle of) `L^T diag(d) L R`, and

    |grad|^2 <= sum_c r_c^T K_c r_c + d_c^T (K_c * Sigma_c) d_c

needs no factor of `K`. The mean of a latent is linear in `u`, so its error is at most `sqrt(k**) |grad|`, as is the
error of its standard deviation. This holds for exact expectations; errors of the quadrature add to it.
"""

from jaxtyping import Float

from mirrorshot.gp.gaussian import covariance
from mirrorshot.gp.linalg import times
from mirrorshot.gp.objective import Problem, State
from mirrorshot.softmax.arrays import Array, at_least, diagonal, namespace


def gap_bound(problem: Problem, state: State) -> Float[Array, " T"]:
    """Upper bound of each task's gap, in nats."""
    r = state.grad_mean - state.posterior.alpha
    d = state.posterior.sites.precision - state.curvature
    Sigma = covariance(problem.K, state.posterior)
    squared = (r * times(problem.K, r)).sum((-2, -1)) + (d * times(problem.K * Sigma, d)).sum((-2, -1))
    return 0.5 * at_least(squared, 0.0)


def latent_error(problem: Problem, gap: Float[Array, " T"]) -> Float[Array, " T"]:
    """Bound the error of latent means, given `gap_bound`, where the prior variance is at most the largest in `K`."""
    return namespace(gap).sqrt(2.0 * gap * _largest_variance(problem))


def site_error(problem: Problem, state: State) -> Float[Array, " T"]:
    """Approximate largest error of leave-one-out latents.

    Sites may be wrong in directions that a singular prior excludes. The posterior ignores these, a cavity does not.
    """
    xp = namespace(state.elbo)
    r = xp.amax(abs(state.grad_mean - state.posterior.alpha), axis=(-2, -1))
    d = xp.amax(abs(state.posterior.sites.precision - state.curvature), axis=(-2, -1))
    return _largest_variance(problem) * xp.maximum(r, d)


def _largest_variance(problem: Problem) -> Float[Array, " T"]:
    return namespace(problem.K).amax(diagonal(problem.K), axis=(-2, -1))

"""Newton's method for the fixed point of the mirror step, from sites close to it.

At the optimum every site equals its own target. Newton's method solves that equation. It converges fast near the
solution and, unlike a line search, is not limited by the rounding of the bound. With `dm = Sigma a`, `a = db - m dw`
and `dv = -(Sigma * Sigma) dw`, a step solves

    a + (dE[p]/dm - c) dm + dE[p]/dv dv = y - E[p] - alpha        dw - dc/dm dm - dc/dv dv = c - w

where `c = E[p (1 - p)]`. The left side is self-adjoint in the Fisher metric (see `quasi_newton`), so conjugate
gradients in that metric solve it, with two covariance products per iteration and no further expectation. Derivatives
are computed in float32, which is accurate enough, and so is the whole first step from a distant start.
"""

import math
from typing import NamedTuple

from jaxtyping import Float, Int

from mirrorshot.gp.certificate import gap_bound, latent_error, site_error
from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition, covariance
from mirrorshot.gp.objective import Problem, evaluate, make_problem
from mirrorshot.gp.quasi_newton import Direction
from mirrorshot.softmax.arrays import Array, as_type, at_least, namespace, single
from mirrorshot.softmax.moments import SoftmaxHessian, softmax_hessian
from mirrorshot.softmax.quadrature import WIDE_STD

_MAX_STEPS = 12
_CG_STEPS = 60
_CG_TOLERANCE = 1e-4
_ARRIVED = 2e-8  # proven error of the latents at which to stop
_ACCEPTED = 1e-7  # largest proven error of a result, where rounding allows no better
_REUSE = 1e-3  # slope in nats; after a step with a smaller one the derivatives are reused


class NewtonInfo(NamedTuple):
    """Diagnostics of `newton_solve`.

    Attributes:
        elbo: the bound at the solution, in nats.
        n_steps: number of steps.
        gap: upper bound of the gap in nats (`certificate.gap_bound`).
    """

    elbo: float
    n_steps: int
    gap: float


class Metric(NamedTuple):
    """The left side of the linear system of one task."""

    cov: Float[Array, "C N N"]  # posterior covariances
    cov_sq: Float[Array, "C N N"]  # their elementwise squares
    hessian: SoftmaxHessian  # weighted expectations (N, C), and their derivatives, each (N, C, C)
    curvature: Float[Array, "C N"]  # weighted `E[p (1 - p)]`

    def marginals(self, x: Direction) -> Direction:
        """Changes of means and variances for a change of the sites."""
        return (self.cov @ x[0][..., None])[..., 0], -(self.cov_sq @ x[1][..., None])[..., 0]

    def apply(self, x: Direction, moved: Direction) -> Direction:
        """Left side of the system for a change of the sites and its `marginals`."""
        _, mm, mv, vv = self.hessian
        m, v = (part.mT[..., None] for part in moved)  # (N, C, 1)
        first = (mm @ m + mv @ v)[..., 0].mT - self.curvature * moved[0]
        second = (2.0 * mv.mT @ m + vv @ v)[..., 0].mT
        return x[0] + first, x[1] - second


def newton_solve(
    K: Float[Array, "1 _ N N"],
    y: Int[Array, "1 N"],
    start: GaussianSites,
    *,
    n_way: int,
    weight: Float[Array, "1 N"],
    is_near: bool,
    prior_mean: Float[Array, "1 C N"] | None = None,
) -> tuple[GaussianPosterior, NewtonInfo] | None:
    """Solve one task in float64 from sites close to its solution, and certify the result.

    Arguments are as in `mirror_descent`; `is_near` promises that half of the digits of the start are correct. The
    result is certified (`certificate`): latent means have an error of at most 1e-7, and mostly 2e-8, at every point
    whose prior variance is at most the largest in `K`. The error of leave-one-out latents is approximately as small.
    Returns None without a certificate, or if prior standard deviations exceed `WIDE_STD`, where the derivatives are not
    accurate.
    """
    problem = make_problem(K, y, n_way, weight, None, None, validate=False, prior_mean=prior_mean)
    if problem.max_std > WIDE_STD:
        return None
    xp = namespace(K)
    sites = start if is_near else _rough_step(problem, start)
    if sites is None:
        return None
    best: tuple[GaussianPosterior, NewtonInfo] | None = None
    metric: Metric | None = None
    error, gain = math.inf, math.inf
    for step in range(_MAX_STEPS):
        state = evaluate(problem, sites)
        posterior, gap = state.posterior, gap_bound(problem, state)
        before, error = error, float(xp.maximum(latent_error(problem, gap), site_error(problem, state))[0])
        if error <= min(before, _ACCEPTED):
            best = posterior, NewtonInfo(float(state.elbo[0]), step + (not is_near), float(gap[0]))
        if not error > _ARRIVED or (best is not None and error > 0.25 * before):
            break
        if metric is None or gain > _REUSE:
            metric = _metric(problem, posterior)
        residual = single((state.grad_mean - posterior.alpha)[0]), single((state.curvature - sites.precision)[0])
        taken = _conjugate_gradients(metric, residual)
        if taken is None or not taken[1] < 4.0 * gain:
            break
        (a, w), gain = taken
        sites = _moved(posterior, a, w)
    return best


def _rough_step(problem: Problem, start: GaussianSites) -> GaussianSites | None:
    """One step in float32; None if the bound is convex along the gradient."""
    posterior = condition(single(problem.K), GaussianSites(*map(single, start)))
    metric = _metric(problem, posterior)
    taken = _conjugate_gradients(metric, _rough_residual(problem, posterior, metric))
    return None if taken is None else _moved(posterior._replace(sites=start), *taken[0])


def _moved(posterior: GaussianPosterior, a: Array, w: Array) -> GaussianSites:
    shift = posterior.sites.shift + a + single(posterior.mean) * w
    return GaussianSites(shift, at_least(posterior.sites.precision + w, 0.0))


def _metric(problem: Problem, posterior: GaussianPosterior) -> Metric:
    seen = posterior.mean if problem.prior_mean is None else posterior.mean + problem.prior_mean
    mean, var = (single(part[0].mT) for part in (seen, posterior.var))
    weight = single(problem.weight[0, :, None])
    prob, *pairs = softmax_hessian(mean, var, max_std=problem.max_std)
    hessian = SoftmaxHessian(weight * prob, *(weight[..., None] * part for part in pairs))
    cov = single(covariance(as_type(problem.K, posterior.gain), posterior)[0])
    return Metric(cov, cov * cov, hessian, hessian.curvature.mT)


def _rough_residual(problem: Problem, posterior: GaussianPosterior, metric: Metric) -> Direction:
    """Right side of the system in float32, from the expectations in the metric."""
    labelled = single((problem.weight[:, None, :] * problem.Y)[0])
    first = labelled - metric.hessian.prob.mT - posterior.alpha[0]
    return first, metric.curvature - posterior.sites.precision[0]


def _conjugate_gradients(metric: Metric, right: Direction) -> tuple[Direction, float] | None:
    """Newton step and slope of the bound along it; None if the bound is convex along the gradient (too far away)."""
    a = w = namespace(right[0]).zeros_like(right[0])
    r = p = right
    p_moved = metric.marginals(p)
    first = size = _inner(r, p_moved)
    slope = 0.0
    for _ in range(_CG_STEPS):
        Tp = metric.apply(p, p_moved)
        bend = _inner(Tp, p_moved)
        if not bend > 0.0:
            break
        rate = size / bend
        a, w, slope = a + rate * p[0], w + rate * p[1], slope + rate * size
        r = (r[0] - rate * Tp[0], r[1] - rate * Tp[1])
        r_moved = metric.marginals(r)
        before, size = size, _inner(r, r_moved)
        if not size > _CG_TOLERANCE**2 * first:
            break
        p = (r[0] + size / before * p[0], r[1] + size / before * p[1])
        p_moved = (r_moved[0] + size / before * p_moved[0], r_moved[1] + size / before * p_moved[1])
    # in directions that the prior excludes, the metric is zero and the left side is the identity: add the residual
    return ((a + r[0], w + r[1]), slope) if slope > 0.0 else None


def _inner(x: Direction, moved: Direction) -> float:
    """Fisher inner product of two changes of the sites, the second given by its marginals."""
    return float((x[0] * moved[0]).sum() - 0.5 * (x[1] * moved[1]).sum())

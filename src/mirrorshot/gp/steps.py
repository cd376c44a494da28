"""Mirror descent with a fixed number of steps of one size (paper eq. 9).

Two loops take the same step, `towards` the target of the sites (`objective.site_target`):

- `fixed_descent` records the bound after every step, and autograd can differentiate it.
- `solve` is the inner loop of training. It evaluates the bound once, shares work between equal points and classes,
  stores only inputs of the gradients in `bound`, and on a GPU uses fused kernels (`fused`) that a CUDA graph can
  record, with the same results up to rounding. `fixed_descent` needs the state of every step and can do none of this.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp.gaussian import GaussianSites, condition, covariance
from mirrorshot.gp.objective import Problem, State, evaluate, likelihood_gradients, mirror_target, site_target
from mirrorshot.gp.quasi_newton import MirrorInfo
from mirrorshot.softmax.moments import SoftmaxHessian, softmax_hessian, softmax_moments


def mirror_step(sites: GaussianSites, state: State, rho: float) -> GaussianSites:
    """Take one step of paper eq. 9: move the sites a fraction rho towards the gradient in the mean parameters."""
    return towards(sites, mirror_target(state), rho)


def towards(sites: GaussianSites, target: GaussianSites, rho: float) -> GaussianSites:
    """Move a fraction rho of the way from the sites to the target."""
    return GaussianSites(*((1 - rho) * now + rho * then for now, then in zip(sites, target, strict=True)))


def fixed_descent(
    problem: Problem,
    sites: GaussianSites,
    max_steps: int,
    rho: float,
    step: Callable[[GaussianSites, State, float], GaussianSites] = mirror_step,
) -> tuple[GaussianSites, MirrorInfo]:
    """Take `max_steps` steps of size `rho`; another `step` replaces the paper's update, for comparisons."""
    state = evaluate(problem, sites)
    elbo = [state.elbo.detach()]
    for _ in range(max_steps):
        sites = step(sites, state, rho)
        state = evaluate(problem, sites)
        elbo.append(state.elbo.detach())
    counts = torch.full_like(elbo[0], max_steps, dtype=torch.long)
    unknown = torch.full_like(elbo[0], torch.inf)
    info = MirrorInfo(torch.stack(elbo, 1), counts, counts + 1, unknown, torch.zeros_like(counts, dtype=torch.bool))
    return sites, info


def fixed_mirror_descent(
    problem: Problem, start: GaussianSites | None, max_steps: int, rho: float, *, is_unrolled: bool
) -> tuple[GaussianSites, MirrorInfo]:
    """Run `fixed_descent` from sites or from the prior; autograd records the steps only with `is_unrolled`."""
    frozen = problem._replace(K=problem.K.detach())
    sites = GaussianSites.zeros_like(frozen.K, problem.n_way) if start is None else start
    with torch.set_grad_enabled(is_unrolled and torch.is_grad_enabled()):
        return fixed_descent(problem if is_unrolled else frozen, sites, max_steps, rho)


class Waypoint(NamedTuple):
    """The posterior before a step, for the gradient of the step. Equal classes may share an entry (C is 1)."""

    sites: GaussianSites | None  # the sites before the step; None: the posterior is the prior
    mean: Float[Tensor, "T _ N"]  # posterior means
    var: Float[Tensor, "T _ N"]  # posterior variances
    cov: Float[Tensor, "T _ N N"]  # posterior covariances
    curvature: Float[Tensor, "T C N"]  # weighted `-2 g_v`
    hessian: SoftmaxHessian | None = None  # of the expectations, (T, N, C, C); None if fused kernels recompute it


class Solution(NamedTuple):
    """The posterior after the last step, for gradients and predictions."""

    sites: GaussianSites  # the last sites
    mean: Float[Tensor, "T C N"]  # posterior means `m`
    cov: Float[Tensor, "T C N N"]  # posterior covariances `Sigma`
    grad_mean: Float[Tensor, "T C N"]  # `g_m` at the posterior
    curvature: Float[Tensor, "T C N"]  # `-2 g_v` at the posterior
    elbo: Float[Tensor, " T"]  # the bound

    @property
    def alpha(self) -> Float[Tensor, "T C N"]:
        """`K^-1 m = b - w m`."""
        return self.sites.shift - self.sites.precision * self.mean

    def explained(self, K_cross: Float[Tensor, "T _ N M"]) -> Float[Tensor, "T C M"]:
        """Reduction of the prior variance at new points, `k*^T (W - W Sigma W) k*`; fused kernels keep no `L`."""
        scaled = self.sites.precision[..., None] * K_cross
        return (K_cross * scaled).sum(-2) - (scaled * (self.cov @ scaled)).sum(-2)


def solve(
    problem: Problem,
    start: GaussianSites | None,
    n_steps: int,
    step_size: float,
    waypoints: list[Waypoint] | None = None,
) -> Solution:
    """Take `n_steps` mirror steps (paper eq. 9) of one size and evaluate the bound; no gradients.

    A `start` of None is the prior. The list `waypoints`, if given, gets one entry per step.
    """
    with torch.no_grad():
        if can_fuse(problem.K, problem.n_way):
            from mirrorshot.gp.fused import solve_fused

            solution, path = solve_fused(problem, start, n_steps, step_size, keep=waypoints is not None)
            if waypoints is not None:
                waypoints.extend(Waypoint(*waypoint) for waypoint in path)
            return Solution(*solution)
        sites = start
        for _ in range(n_steps):
            step = _from_prior(problem, waypoints) if sites is None else _from_sites(problem, sites, waypoints)
            sites = towards(sites or GaussianSites.zeros_like(problem.K, 1), step, step_size)
        sites = sites or GaussianSites.zeros_like(problem.K, 1)
        state = evaluate(problem, GaussianSites(*(part.expand_as(problem.Y) for part in sites)))
        q, cov = state.posterior, covariance(problem.K, state.posterior)
        return Solution(q.sites, q.mean, cov, state.grad_mean, state.curvature, state.elbo)


def _from_sites(problem: Problem, sites: GaussianSites, waypoints: list[Waypoint] | None) -> GaussianSites:
    """Target of a mirror step from the sites; `waypoints` as in `solve`."""
    q = condition(problem.K, sites)
    mask = problem.class_mask[:, None, :]
    grad_mean, curvature, hessian = _gradients(problem, q.mean, q.var, mask, waypoints is not None)
    if waypoints is not None:
        waypoints.append(Waypoint(sites, q.mean, q.var, covariance(problem.K, q), curvature, hessian))
    return site_target(q.mean, grad_mean, curvature)


def _from_prior(problem: Problem, waypoints: list[Waypoint] | None) -> GaussianSites:
    """Target of a mirror step from the prior, without conditioning.

    With a stationary kernel all points have the same marginal, so the moments are evaluated once. If the classes share
    the kernel they have the same precision, so the next step factorises one matrix. Skipped on a GPU to avoid a
    synchronisation.
    """
    var = problem.K.diagonal(dim1=-2, dim2=-1)
    mean = torch.zeros_like(var)
    can_share = problem.K.device.type == "cpu" and problem.prior_mean is None and bool(problem.class_mask.all())
    mask = problem.class_mask[:, None, :]
    part = slice(1 if can_share and bool((var == var[:1, :, :1]).all()) else None)
    one_mean, one_var = (marginal[part, :, part].expand(-1, problem.n_way, -1) for marginal in (mean, var))
    grad_mean, curvature, hessian = _gradients(problem, one_mean, one_var, mask[part], waypoints is not None)
    if waypoints is not None:
        waypoints.append(Waypoint(None, mean, var, problem.K, curvature, hessian))
    return GaussianSites(grad_mean, curvature[:, :1] if can_share and problem.K.shape[1] == 1 else curvature)


def _gradients(
    problem: Problem, mean: Tensor, var: Tensor, mask: Tensor, has_hessian: bool
) -> tuple[Float[Tensor, "T C N"], Float[Tensor, "T C N"], SoftmaxHessian | None]:
    """`g_m` and `-2 g_v` at marginals (T, C, N), or (1, C, 1) for all points, and the Hessian with `has_hessian`."""
    if problem.prior_mean is not None:
        mean = mean + problem.prior_mean
    marginals = mean.mT, var.expand_as(mean).mT, mask
    hessian = softmax_hessian(*marginals, max_std=problem.max_std) if has_hessian else None
    moments = hessian or softmax_moments(*marginals, max_std=problem.max_std)
    return *likelihood_gradients(problem, moments), hessian


def can_fuse(K: Float[Tensor, "T _ N N"], n_way: int) -> bool:
    """Whether the fused kernels solve tasks with these covariances: float32, on a GPU, and small."""
    return K.device.type == "cuda" and K.dtype == torch.float32 and fits_fused(K.shape[-1], n_way)


def fits_fused(n_points: int, n_way: int) -> bool:
    """Whether the fused kernels accept tasks of that size and Triton is installed."""
    from mirrorshot.gp import fused

    return fused.is_available() and n_points <= fused.MAX_POINTS and n_way <= fused.MAX_CLASSES

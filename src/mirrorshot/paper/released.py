"""Formulas of released code that differ from the papers, written from reading that code, for comparisons only."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition
from mirrorshot.gp.objective import State, make_problem
from mirrorshot.gp.one_vs_each import one_vs_each_scores
from mirrorshot.gp.quasi_newton import MirrorInfo
from mirrorshot.gp.steps import fixed_descent, towards


def released_step(sites: GaussianSites, state: State, rho: float) -> GaussianSites:
    """Return a mirror step with `g_m - 2 g_m g_v` instead of the paper's `g_m - 2 g_v m` (eq. 10)."""
    target = GaussianSites(state.grad_mean * (1 + state.curvature), state.curvature)
    return towards(sites, target, rho)


@torch.no_grad()
def released_descent(
    K: Float[Tensor, "T _ N N"], y: Int[Tensor, "T N"], *, n_way: int, max_steps: int, step_size: float
) -> tuple[GaussianPosterior, MirrorInfo]:
    """Run the released inner loop of MD-BFSC from the prior. Its fixed point is not the optimum."""
    problem = make_problem(K, y, n_way, None, None, None, validate=True)
    start = GaussianSites.zeros_like(K, n_way)
    sites, info = fixed_descent(problem, start, max_steps, step_size, released_step)
    return condition(K, sites), info


def released_scores(
    mean: Float[Tensor, "T C M"], covariance: Float[Tensor, "T M C C"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T M C"]:
    """Return the scores of OVE with variances instead of standard deviations in the quadrature."""
    own = covariance.diagonal(dim1=-2, dim2=-1)
    var = own[..., :, None] + own[..., None, :] - 2 * covariance
    # latents of covariance -var^2 / 2, zero on the diagonal, have differences of variance var^2
    return one_vs_each_scores(mean, -0.5 * var.square(), class_mask)

"""Formulas of the released code that are not those of the paper, for comparisons and for nothing else."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.gaussian import GaussianPosterior, GaussianSites, condition
from mirrorshot.inference.mirror import fixed_descent, towards
from mirrorshot.inference.objective import State, make_problem
from mirrorshot.inference.quasi_newton import MirrorInfo


def released_step(sites: GaussianSites, state: State, rho: float) -> GaussianSites:
    """A mirror step with `g_m - 2 g_m g_v` where the paper (eq. 10) has `g_m - 2 g_v m`."""
    target = GaussianSites(state.grad_mean * (1 + state.curvature), state.curvature)
    return towards(sites, target, rho)


@torch.no_grad()
def released_descent(
    K: Float[Tensor, "T _ N N"], y: Int[Tensor, "T N"], *, n_way: int, max_steps: int, step_size: float
) -> tuple[GaussianPosterior, MirrorInfo]:
    """The inner loop of the released code, from the prior. Its fixed point is not the optimum.

    Args:
        K: prior covariances.
        y: labels.
        n_way: number of classes.
        max_steps: number of steps.
        step_size: the paper's rho.
    """
    problem = make_problem(K, y, n_way, None, None, None, validate=True)
    start = GaussianSites.zeros_like(K, n_way)
    sites, info = fixed_descent(problem, start, max_steps, step_size, released_step)
    return condition(K, sites), info

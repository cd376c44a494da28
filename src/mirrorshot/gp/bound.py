"""The training objective: the bound after a fixed number of mirror steps, as a function of the kernel.

Training solves millions of small tasks, so the number of steps is fixed, only the result is kept, and the fused kernels
on a GPU never synchronise. Gradients in `K` are written out. With `W = diag(w)` and `A = I - Sigma W`, conditioning
pulls gradients `g` of the mean and `h` of the variance back to

    K:  A^T g alpha^T + A^T diag(h) A        b:  Sigma g        w:  -m (Sigma g) - (Sigma * Sigma) h

from `dSigma = A dK A^T`, `dm = A dK alpha`, `dm = Sigma (db - m dw)` and `dv = -(Sigma * Sigma) dw`.

- **envelope** holds the sites fixed: the whole gradient at the optimum of the bound.
- **unroll** differentiates the steps, as the paper does. Far from the optimum (few steps, a large outputscale) only
  this is the gradient of the reported loss.
"""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.linalg import times
from mirrorshot.gp.mirror import Gradient
from mirrorshot.gp.objective import Problem, make_problem
from mirrorshot.gp.starts import AmortisedSites
from mirrorshot.gp.steps import Solution, Waypoint, can_fuse, solve
from mirrorshot.types import InvalidInputError


def training_elbo(
    K: Float[Tensor, "T _ N N"],
    y: Int[Tensor, "T N"],
    *,
    n_way: int,
    n_steps: int = 3,
    step_size: float = 1.0,
    start: Literal["prior"] | AmortisedSites = "prior",
    gradient: Gradient = "envelope",
    weight: Float[Tensor, "T N"] | None = None,
    class_mask: Bool[Tensor, "T C"] | None = None,
    max_std: float | None = None,
) -> Float[Tensor, " T"]:
    """Evidence lower bound (paper eq. 12) after a fixed number of mirror steps, differentiable in `K`.

    Arguments are as in `mirror_descent`; `K`, `y` and the masks are unchecked to avoid a synchronisation with a GPU.
    The sites of `start` are constants of the gradient. gradient="envelope" holds the last sites fixed, "unroll"
    differentiates the steps.

    Example:
        >>> import torch
        >>> K = (4 * torch.eye(6, dtype=torch.float64)[None, None]).requires_grad_()
        >>> bound = training_elbo(K, torch.tensor([[0, 1, 2, 0, 1, 2]]), n_way=3)
        >>> bound.sum().backward()
        >>> bound.shape, K.grad.shape
        (torch.Size([1]), torch.Size([1, 1, 6, 6]))
    """
    if not 0.0 < step_size <= 1.0 or n_steps < 0:
        raise InvalidInputError(f"Expected step_size in (0, 1] and n_steps >= 0, but got {step_size} and {n_steps}.")
    if max_std is None and can_fuse(K, n_way):
        max_std = torch.inf  # each program of the kernel computes its own
    problem = make_problem(K.detach(), y, n_way, weight, class_mask, max_std, validate=False)
    sites = None if isinstance(start, str) else start.sites(problem)
    return _Bound.apply(K, problem, sites, n_steps, step_size, gradient)  # type: ignore[no-untyped-call]


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, K: Tensor, problem: Problem, start: GaussianSites | None, n_steps: int, step_size: float, how: str
    ) -> Tensor:
        ctx.waypoints = [] if how == "unroll" else None
        ctx.solution = solve(problem, start, n_steps, step_size, ctx.waypoints)
        ctx.problem, ctx.step_size, ctx.is_shared = problem, step_size, K.shape[1] == 1
        elbo: Tensor = ctx.solution.elbo
        ctx.solution = ctx.solution._replace(elbo=None)  # the output would keep itself alive through its graph
        return elbo

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        K_bar = kernel_gradient(ctx.solution, ctx.is_shared)
        if ctx.waypoints:
            solution = ctx.solution
            # at fixed K, dELBO = (g_m - alpha) dm + (g_v + w / 2) dv
            g = solution.grad_mean - solution.alpha
            h = 0.5 * (solution.sites.precision - solution.curvature)
            sites_bar = pull_to_sites(solution.mean, solution.cov, g, h)
            K_bar = K_bar + through_steps(ctx.problem, sites_bar, ctx.waypoints, ctx.step_size, ctx.is_shared)
        return grad[:, None, None, None] * K_bar, None, None, None, None, None


def kernel_gradient(solution: Solution, is_shared: bool) -> Float[Tensor, "T _ N N"]:
    """Gradient of the bound in `K` at fixed sites; symmetric."""
    w, m = solution.sites.precision, solution.mean
    # dELBO = (g_m - (alpha - w m) / 2) dm + (w / 2 + g_v) dv - tr((W - W Sigma W) dK) / 2
    g = solution.grad_mean - 0.5 * (solution.alpha - w * m)
    h = 0.5 * (w - solution.curvature)
    A = pull_matrix(w, solution.cov)
    pulled = (A * h[..., None, :]) @ A.mT - A * (0.5 * w[..., None, :])
    through_mean = outer(g - w * times(solution.cov, g), solution.alpha, is_shared)
    return (pulled.sum(1, keepdim=True) if is_shared else pulled) + through_mean


def pull_matrix(w: Float[Tensor, "T C N"], cov: Float[Tensor, "T C N N"]) -> Float[Tensor, "T C N N"]:
    """`A^T = I - W Sigma`."""
    A = -w[..., :, None] * cov
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return A


def outer(left: Tensor, right: Tensor, is_shared: bool) -> Float[Tensor, "T _ N N"]:
    """Symmetric part of the outer products, per class or summed over the classes."""
    half = 0.5 * (left.mT @ right)[:, None] if is_shared else 0.5 * left[..., :, None] * right[..., None, :]
    return half + half.mT


def through_steps(
    problem: Problem, sites_bar: tuple[Tensor, Tensor], waypoints: list[Waypoint], rho: float, is_shared: bool
) -> Float[Tensor, "T _ N N"]:
    """Gradient in `K` through the steps, given the gradients in the last sites."""
    shift_bar, precision_bar = sites_bar
    weight = problem.weight[:, None, :]
    K_bar = torch.zeros_like(problem.K)
    for i, waypoint in reversed(list(enumerate(waypoints))):
        # b' = (1 - rho) b + rho (a (y - p) + a c m), w' = (1 - rho) w + rho a c
        b, w = rho * shift_bar, rho * precision_bar
        g, h = _moments_pull_back(problem, waypoint, -weight * b, weight * (b * waypoint.mean + w))
        g = g + waypoint.curvature * b
        K_bar = K_bar + pull_to_kernel(waypoint, g, h, is_shared)
        if i > 0:  # the start is a constant
            more = pull_to_sites(waypoint.mean, waypoint.cov, g, h)
            shift_bar, precision_bar = (1 - rho) * shift_bar + more[0], (1 - rho) * precision_bar + more[1]
    return K_bar


def pull_to_sites(mean: Tensor, cov: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in shift and precision from gradients of the posterior means and variances."""
    shift = times(cov, g)
    return shift, -mean * shift - times(cov.square(), h)


def pull_to_kernel(waypoint: Waypoint, g: Tensor, h: Tensor, is_shared: bool) -> Float[Tensor, "T _ N N"]:
    """Gradient in `K` from gradients of the posterior means and variances: A^T g alpha^T + A^T diag(h) A, symmetric."""
    if waypoint.sites is None:  # A = I and alpha = 0
        return torch.diag_embed(h.sum(1, keepdim=True) if is_shared else h)
    w = waypoint.sites.precision
    through_mean = outer(g - w * times(waypoint.cov, g), waypoint.sites.shift - w * waypoint.mean, is_shared)
    A = pull_matrix(w, waypoint.cov)
    if A.shape[1] < h.shape[1]:  # one matrix for all classes
        h = h.sum(1, keepdim=True)
    pulled = (A * h[..., None, :]) @ A.mT
    return (pulled.sum(1, keepdim=True) if is_shared else pulled) + through_mean


def _moments_pull_back(
    problem: Problem, waypoint: Waypoint, prob_bar: Float[Tensor, "T C N"], curvature_bar: Float[Tensor, "T C N"]
) -> tuple[Float[Tensor, "T C N"], Float[Tensor, "T C N"]]:
    """Gradients in means and variances from gradients of `E[p]` and `E[p (1 - p)]`."""
    if waypoint.hessian is None:
        from mirrorshot.gp.fused import moments_pull_back_fused

        return moments_pull_back_fused(waypoint.mean, waypoint.var, problem.class_mask, prob_bar, curvature_bar)
    pulled = waypoint.hessian.pull_back(prob_bar.mT, curvature_bar.mT)
    return pulled[0].mT, pulled[1].mT

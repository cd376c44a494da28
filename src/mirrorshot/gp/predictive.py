"""Predictions after a fixed number of mirror steps, differentiable in the kernel.

The loss at new points is not stationary in the sites, so its gradient goes through them. With `P = K_*`,
`A = I - Sigma W`, `B = W A`, and gradients `g` of the predictive means `P^T alpha` and `h` of the variances
`k** - P^T B P`:

    P:  alpha g^T - 2 B P diag(h)              K:  -sym(B P g alpha^T) + B P diag(h) P^T B
    b:  A P g                                  w:  -m (A P g) - (A P * A P) h

The gradient in the sites is propagated to `K` in one of two ways:

- **unroll** differentiates the steps. It is exact for their result, however far from the optimum.
- **implicit** differentiates the optimum, where the sites `u = (b, w)` are a fixed point `u = M(u, K)` of the mirror
  step. The gradient `c` in the sites is propagated to `K` through the solution of `a = c + (dM/du)^T a`, by the
  iteration `a <- (1 - rho) a + rho (c + (dM/du)^T a)`, with as many iterations as steps. The steps are damped in the
  same way, so both converge at the same rate.

Rejected: GMRES, which needs fewer iterations but synchronises after each, and unrolling all steps to the optimum, which
stores the posterior of every step.
"""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.gp.bound import outer, pull_matrix, pull_to_kernel, through_steps
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.linalg import times
from mirrorshot.gp.objective import Problem, make_problem
from mirrorshot.gp.steps import Solution, Waypoint, can_fuse, fits_fused, solve
from mirrorshot.softmax.moments import SoftmaxHessian, log_predictive, softmax_hessian
from mirrorshot.types import InvalidInputError


def training_latents(
    K: Float[Tensor, "T _ N N"],
    K_cross: Float[Tensor, "T _ N M"],
    prior_var: Float[Tensor, "T _ M"],
    y: Int[Tensor, "T N"],
    *,
    n_way: int,
    n_steps: int = 16,
    step_size: float = 0.5,
    gradient: Literal["implicit", "unroll"] = "implicit",
    weight: Float[Tensor, "T N"] | None = None,
    class_mask: Bool[Tensor, "T C"] | None = None,
) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T C M"]]:
    """Predictive means and variances at new points after `n_steps` mirror steps from the prior.

    Differentiable once in `K`, `K_cross` and `prior_var`. Arguments are as in `mirror_descent` and `predict_latent`,
    unchecked to avoid a synchronisation with a GPU. `gradient` is explained in the documentation of this module.

    Example:
        >>> import torch
        >>> K = (4 * torch.eye(3, dtype=torch.float64)[None, None]).requires_grad_()
        >>> cross, var = torch.ones(1, 1, 3, 2, dtype=torch.float64), torch.full((1, 1, 2), 4.0, dtype=torch.float64)
        >>> mean, var = training_latents(K, cross, var, torch.tensor([[0, 1, 2]]), n_way=3)
        >>> mean.shape, torch.autograd.grad(mean.square().sum() + var.sum(), K)[0].shape
        (torch.Size([1, 3, 2]), torch.Size([1, 1, 3, 3]))
    """
    if not 0.0 < step_size <= 1.0 or n_steps < 1:
        raise InvalidInputError(f"Expected step_size in (0, 1] and n_steps >= 1, but got {step_size} and {n_steps}.")
    max_std = torch.inf if can_fuse(K, n_way) else None
    problem = make_problem(K.detach(), y, n_way, weight, class_mask, max_std, validate=False)
    mean, var = _Latents.apply(K, K_cross, prior_var, problem, n_steps, step_size, gradient)  # type: ignore[no-untyped-call]
    return mean, var


def training_log_prob(
    mean: Float[Tensor, "T C M"], var: Float[Tensor, "T C M"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T M C"]:
    """Log class probabilities of latents (paper eq. 15a), differentiable once; the fused kernels do not synchronise."""
    if not (mean.device.type == "cuda" and mean.dtype == torch.float32 and fits_fused(1, mean.shape[1])):
        return log_predictive(mean.mT, var.mT, class_mask[:, None, :])
    prob: Tensor = _FusedProb.apply(mean, var, class_mask)  # type: ignore[no-untyped-call]
    log_prob = prob.clamp(min=torch.finfo(prob.dtype).tiny).log().mT
    return torch.log_softmax(log_prob.masked_fill(~class_mask[:, None, :], -torch.inf), -1)


class _Latents(torch.autograd.Function):
    """`K`, `K_cross`, `prior_var` -> predictive means and variances (T, C, M)."""

    @staticmethod
    def forward(
        ctx: Any, K: Tensor, K_cross: Tensor, prior_var: Tensor, problem: Problem, n_steps: int, rho: float, how: str
    ) -> tuple[Tensor, Tensor]:
        ctx.waypoints = [] if how == "unroll" else None
        solution = solve(problem, None, n_steps, rho, ctx.waypoints)
        mean, var = predict_latent(solution, K_cross, prior_var)
        ctx.solution, ctx.problem = solution, problem
        ctx.steps, ctx.is_shared = (n_steps, rho), K.shape[1] == 1
        ctx.save_for_backward(K_cross)
        return mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g, h = grads
        (P,) = ctx.saved_tensors
        solution: Solution = ctx.solution
        w, is_shared = solution.sites.precision, ctx.is_shared
        AP = pull_matrix(w, solution.cov).mT @ P
        BP = w[..., None] * AP
        P_bar = solution.alpha[..., None] * g[..., None, :] - 2 * BP * h[..., None, :]
        K_bar = (BP * h[..., None, :]) @ BP.mT
        if is_shared:
            P_bar, K_bar = P_bar.sum(1, keepdim=True), K_bar.sum(1, keepdim=True)
        K_bar = K_bar - outer(times(BP, g), solution.alpha, is_shared)
        b_bar = times(AP, g)
        sites_bar = b_bar, -solution.mean * b_bar - times(AP.square(), h)
        if ctx.waypoints is None:
            K_bar = K_bar + _through_fixed_point(ctx.problem, solution, sites_bar, ctx.steps, is_shared)
        else:
            K_bar = K_bar + through_steps(ctx.problem, sites_bar, ctx.waypoints, ctx.steps[1], is_shared)
        return K_bar, P_bar, h.sum(1, keepdim=True) if is_shared else h, None, None, None, None


def _through_fixed_point(
    problem: Problem, solution: Solution, c: tuple[Tensor, Tensor], steps: tuple[int, float], is_shared: bool
) -> Float[Tensor, "T _ N N"]:
    """Implicit gradient in `K`, from the gradients `c` in the sites; `steps` are the number and size of iterations."""
    n_steps, rho = steps
    J = _step_matrix(problem, solution)
    m, cov = solution.mean, solution.cov
    squared = cov.square()
    start = torch.cat(c, 1)  # (T, 2 C, N): shifts, then precisions

    def to_marginals(a: Tensor) -> tuple[Tensor, Tensor]:
        g, h = (a[:, :, None] * J).sum(1).chunk(2, 1)
        return g, h

    a = start
    for _ in range(n_steps):
        g, h = to_marginals(a)
        shift = times(cov, g)
        a = torch.lerp(a, start + torch.cat([shift, -m * shift - times(squared, h)], 1), rho)
    waypoint = Waypoint(solution.sites, m, m, cov, solution.curvature)
    return pull_to_kernel(waypoint, *to_marginals(a), is_shared)


def _step_matrix(problem: Problem, solution: Solution) -> Float[Tensor, "T S S N"]:
    """Derivatives of the `S = 2 C` numbers of the sites after a full step (rows) in means and variances (columns).

    At a point of weight `a`, `b' = a (y - p) + a c m` and `w' = a c`, with `p = E[p]` and `c = E[p (1 - p)]`.
    """
    hessian = _hessian(problem, solution)
    mm, mv, vv = (part.permute(0, 2, 3, 1) for part in (hessian.mean_mean, hessian.mean_var, hessian.var_var))
    vm = 2 * mv.transpose(1, 2)  # of E[p (1 - p)] in the means
    m = solution.mean[:, :, None]
    shifts, precisions = torch.cat([m * vm - mm, m * vv - mv], 2), torch.cat([vm, vv], 2)
    J = problem.weight[:, None, None] * torch.cat([shifts, precisions], 1)
    C = problem.n_way
    J[:, :C, :C].diagonal(dim1=1, dim2=2).add_(solution.curvature.mT)
    return J


def _hessian(problem: Problem, solution: Solution) -> SoftmaxHessian:
    """`E[p]` and second derivatives of the expectations at the posterior, (T, N, C, C)."""
    var = solution.cov.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    if can_fuse(problem.K, problem.n_way):
        from mirrorshot.gp.fused import hessian_fused

        return SoftmaxHessian(*hessian_fused(solution.mean, var, problem.class_mask))
    return softmax_hessian(solution.mean.mT, var.mT, problem.class_mask[:, None], max_std=problem.max_std)


class _FusedProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, class_mask: Tensor) -> Tensor:
        from mirrorshot.gp.fused import prob_fused

        ctx.save_for_backward(mean, var, class_mask)
        return prob_fused(mean, var, class_mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from mirrorshot.gp.fused import moments_pull_back_fused

        mean, var, class_mask = ctx.saved_tensors
        prob_bar = grads[0]
        marginals = mean.contiguous(), var.contiguous()
        return *moments_pull_back_fused(*marginals, class_mask, prob_bar, torch.zeros_like(prob_bar)), None

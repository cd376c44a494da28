"""A fixed number of mirror steps, and the bound they reach as a function of the kernel: the inner loop of training.

Training solves millions of small tasks, each to the accuracy that its gradient needs, so here the number of steps is
fixed, nothing is looked at, and nothing but the result is kept. Gradients in `K` are written out. With `W = diag(w)`
and `A = I - Sigma W`, conditioning pulls gradients `g` of the mean and `h` of the variance back to

    K:  A^T g alpha^T + A^T diag(h) A        b:  Sigma g        w:  -m (Sigma g) - (Sigma * Sigma) h

from `dSigma = A dK A^T`, `dm = A dK alpha`, `dm = Sigma (db - m dw)` and `dv = -(Sigma * Sigma) dw`.

- **envelope**: the sites are held fixed, which is the whole gradient at the optimum of the bound.
- **unroll**: the gradient of the bound that so many steps reach, the paper's. Far from the optimum (few steps, a large
  output scale) only this one is a gradient of the loss that is reported.

On a GPU the steps run in fused kernels (`fused`); the results are the same to rounding.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.gaussian import GaussianSites, condition, covariance
from mirrorshot.inference.mirror import towards
from mirrorshot.inference.objective import Problem, evaluate, make_problem
from mirrorshot.inference.starts import AmortisedSites
from mirrorshot.likelihoods import SoftmaxHessian, softmax_hessian, softmax_moments
from mirrorshot.linalg import times
from mirrorshot.types import InvalidInputError

TrainingGradient = Literal["envelope", "unroll"]


class Visit(NamedTuple):
    """Where a step was taken from: what its gradient needs. Classes that are alike may share an entry (C is 1).

    Attributes:
        sites: the sites before the step; None: none, the posterior is the prior.
        mean: posterior means, (T, C, N).
        var: posterior variances, (T, C, N).
        cov: posterior covariances, (T, C, N, N).
        curvature: weighted `-2 g_v`, (T, C, N).
        hessian: derivatives of the expectations, each (T, N, C, C); None: the fused kernels find them again.
    """

    sites: GaussianSites | None
    mean: Float[Tensor, "T _ N"]
    var: Float[Tensor, "T _ N"]
    cov: Float[Tensor, "T _ N N"]
    curvature: Float[Tensor, "T C N"]
    hessian: SoftmaxHessian | None = None


class Solution(NamedTuple):
    """The posterior after a number of steps, with everything that gradients and predictions need.

    Attributes:
        sites: the last sites.
        mean: posterior means `m`, (T, C, N).
        cov: posterior covariances `Sigma`, (T, C, N, N).
        grad_mean: `g_m` at the posterior, (T, C, N).
        curvature: `-2 g_v` at the posterior, (T, C, N).
        elbo: the bound, (T,).
    """

    sites: GaussianSites
    mean: Float[Tensor, "T C N"]
    cov: Float[Tensor, "T C N N"]
    grad_mean: Float[Tensor, "T C N"]
    curvature: Float[Tensor, "T C N"]
    elbo: Float[Tensor, " T"]

    @property
    def alpha(self) -> Float[Tensor, "T C N"]:
        """`K^-1 m = b - w m`."""
        return self.sites.shift - self.sites.precision * self.mean


def solve(
    problem: Problem, start: GaussianSites | None, n_steps: int, step_size: float, visits: list[Visit] | None = None
) -> Solution:
    """Make `n_steps` mirror steps (paper eq. 9) of one size and evaluate the bound there; no gradients.

    Args:
        problem: the tasks.
        start: sites to start from; None: those of the prior, which are zero.
        n_steps: number of steps.
        step_size: the paper's rho.
        visits: a list that is filled with where each step was taken from. None: that is not kept.
    """
    with torch.no_grad():
        if can_fuse(problem.K, problem.n_way):
            from mirrorshot.inference.fused import solve_fused

            solution, path = solve_fused(problem, start, n_steps, step_size, keep=visits is not None)
            if visits is not None:
                visits.extend(Visit(*visit) for visit in path)
            return Solution(*solution)
        sites = start
        for _ in range(n_steps):
            step = _from_prior(problem, visits) if sites is None else _from_sites(problem, sites, visits)
            sites = towards(sites or GaussianSites.zeros_like(problem.K, 1), step, step_size)
        sites = sites or GaussianSites.zeros_like(problem.K, 1)
        state = evaluate(problem, GaussianSites(*(part.expand_as(problem.Y) for part in sites)))
        q, cov = state.posterior, covariance(problem.K, state.posterior)
        return Solution(q.sites, q.mean, cov, state.grad_mean, state.curvature, state.elbo)


def _from_sites(problem: Problem, sites: GaussianSites, visits: list[Visit] | None) -> GaussianSites:
    """Where a full mirror step from the sites leads; `visits` as in `solve`."""
    q = condition(problem.K, sites)
    mask = problem.class_mask[:, None, :]
    grad_mean, curvature, hessian = _expectations(problem, q.mean, q.var, mask, visits is not None)
    if visits is not None:
        visits.append(Visit(sites, q.mean, q.var, covariance(problem.K, q), curvature, hessian))
    return GaussianSites(grad_mean + curvature * q.mean, curvature)


def _from_prior(problem: Problem, visits: list[Visit] | None) -> GaussianSites:
    """Where a full mirror step from the prior leads: nothing to condition on, and much is alike.

    With a stationary kernel all points have one marginal, and one evaluation of the moments does for them. With one
    kernel for all classes they get one precision, and the next step factorises one matrix for them. A GPU would have
    to wait for the answer, so there nobody asks.
    """
    var = problem.K.diagonal(dim1=-2, dim2=-1)
    mean = torch.zeros_like(var)
    can_share = problem.K.device.type == "cpu" and problem.prior_mean is None and bool(problem.class_mask.all())
    mask = problem.class_mask[:, None, :]
    part = slice(1 if can_share and bool((var == var[:1, :, :1]).all()) else None)
    one_mean, one_var = (marginal[part, :, part].expand(-1, problem.n_way, -1) for marginal in (mean, var))
    grad_mean, curvature, hessian = _expectations(problem, one_mean, one_var, mask[part], visits is not None)
    if visits is not None:
        visits.append(Visit(None, mean, var, problem.K, curvature, hessian))
    return GaussianSites(grad_mean, curvature[:, :1] if can_share and problem.K.shape[1] == 1 else curvature)


def _expectations(
    problem: Problem, mean: Tensor, var: Tensor, mask: Tensor, has_hessian: bool
) -> tuple[Float[Tensor, "T C N"], Float[Tensor, "T C N"], SoftmaxHessian | None]:
    """`g_m` and `-2 g_v` at marginals (T, C, N), or (1, C, 1) for all points, and their derivatives if asked for."""
    if problem.prior_mean is not None:
        mean = mean + problem.prior_mean
    marginals = mean.mT, var.expand_as(mean).mT, mask
    hessian = softmax_hessian(*marginals, max_std=problem.max_std) if has_hessian else None
    moments = hessian or softmax_moments(*marginals, max_std=problem.max_std)
    weight = problem.weight[:, None, :]
    curvature = weight * moments.curvature.mT.expand_as(problem.Y)
    return weight * (problem.Y - moments.prob.mT), curvature, hessian


def can_fuse(K: Float[Tensor, "T _ N N"], n_way: int) -> bool:
    """Whether tasks with these covariances are solved by the fused kernels: float32 on a GPU, and small."""
    return K.device.type == "cuda" and K.dtype == torch.float32 and fits_fused(K.shape[-1], n_way)


def fits_fused(n_points: int, n_way: int) -> bool:
    """Whether the fused kernels take tasks of that size; they need Triton."""
    from mirrorshot.inference import fused

    return fused.is_available() and n_points <= fused.MAX_POINTS and n_way <= fused.MAX_CLASSES


def training_elbo(
    K: Float[Tensor, "T _ N N"],
    y: Int[Tensor, "T N"],
    *,
    n_way: int,
    n_steps: int = 3,
    step_size: float = 1.0,
    start: Literal["prior"] | AmortisedSites = "prior",
    gradient: TrainingGradient = "envelope",
    weight: Float[Tensor, "T N"] | None = None,
    class_mask: Bool[Tensor, "T C"] | None = None,
    max_std: float | None = None,
) -> Float[Tensor, " T"]:
    """Evidence lower bound (paper eq. 12) after a fixed number of mirror steps, differentiable in `K`.

    Arguments are as in `mirror_descent`; they are not checked, so that a GPU need not wait.

    Args:
        K: prior covariances, (T, 1, N, N) or (T, C, N, N); symmetric positive semi-definite.
        y: labels, (T, N).
        n_way: number of classes C.
        n_steps: number of mirror steps.
        step_size: the paper's rho in (0, 1].
        start: "prior", or sites amortised over earlier tasks; these count as constants.
        gradient: "envelope" holds the sites fixed, "unroll" goes back through the steps.
        weight: weight of each point; zero marks padding.
        class_mask: which classes exist.
        max_std: promise that no prior standard deviation exceeds this; the fused kernels need none.

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
        max_std = torch.inf  # each program finds its own
    problem = make_problem(K.detach(), y, n_way, weight, class_mask, max_std, validate=False)
    sites = None if isinstance(start, str) else start.sites(problem)
    return _Bound.apply(K, problem, sites, n_steps, step_size, gradient)  # type: ignore[no-any-return, no-untyped-call]


class _Bound(torch.autograd.Function):
    """`K` (T, 1 | C, N, N) -> ELBO (T,)."""

    @staticmethod
    def forward(
        ctx: Any, K: Tensor, problem: Problem, start: GaussianSites | None, n_steps: int, step_size: float, how: str
    ) -> Tensor:
        ctx.visits = [] if how == "unroll" else None
        ctx.solution = solve(problem, start, n_steps, step_size, ctx.visits)
        ctx.problem, ctx.step_size, ctx.is_shared = problem, step_size, K.shape[1] == 1
        elbo: Tensor = ctx.solution.elbo
        ctx.solution = ctx.solution._replace(elbo=None)  # the output itself would be kept alive by its own graph
        return elbo

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        K_bar = kernel_gradient(ctx.solution, ctx.is_shared)
        if ctx.visits:
            K_bar = K_bar + _through_steps(ctx.problem, ctx.solution, ctx.visits, ctx.step_size, ctx.is_shared)
        return grad[:, None, None, None] * K_bar, None, None, None, None, None


def kernel_gradient(solution: Solution, is_shared: bool) -> Float[Tensor, "T _ N N"]:
    """Gradient of the bound in the covariance of every class, or that they share, at fixed sites; symmetric."""
    w, m = solution.sites.precision, solution.mean
    # dELBO = (g_m - (alpha - w m) / 2) dm + (w / 2 + g_v) dv - tr((W - W Sigma W) dK) / 2
    g = solution.grad_mean - 0.5 * (solution.alpha - w * m)
    h = 0.5 * (w - solution.curvature)
    A = _pull_matrix(w, solution.cov)
    pulled = (A * h[..., None, :]) @ A.mT - A * (0.5 * w[..., None, :])
    outer = _outer(g - w * times(solution.cov, g), solution.alpha, is_shared)
    return (pulled.sum(1, keepdim=True) if is_shared else pulled) + outer


def _pull_matrix(w: Float[Tensor, "T C N"], cov: Float[Tensor, "T C N N"]) -> Float[Tensor, "T C N N"]:
    """`A^T = I - W Sigma`."""
    A = -w[..., :, None] * cov
    A.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return A


def _outer(left: Tensor, right: Tensor, is_shared: bool) -> Float[Tensor, "T _ N N"]:
    """Symmetric part of the outer products, of each class or their sum."""
    half = 0.5 * (left.mT @ right)[:, None] if is_shared else 0.5 * left[..., :, None] * right[..., None, :]
    return half + half.mT


def _through_steps(
    problem: Problem, solution: Solution, visits: list[Visit], rho: float, is_shared: bool
) -> Float[Tensor, "T _ N N"]:
    """Gradient in `K` through the sites: from the last step back to the first."""
    # at fixed K, dELBO = (g_m - alpha) dm + (g_v + w / 2) dv
    g = solution.grad_mean - solution.alpha
    h = 0.5 * (solution.sites.precision - solution.curvature)
    shift_bar, precision_bar = _pull_to_sites(solution.mean, solution.cov, g, h)
    weight = problem.weight[:, None, :]
    K_bar = torch.zeros_like(problem.K)
    for i, visit in reversed(list(enumerate(visits))):
        # b' = (1 - rho) b + rho (a (y - p) + a c m), w' = (1 - rho) w + rho a c
        b, w = rho * shift_bar, rho * precision_bar
        g, h = _moments_pull_back(problem, visit, -weight * b, weight * (b * visit.mean + w))
        g = g + visit.curvature * b
        K_bar = K_bar + _pull_to_kernel(visit, g, h, is_shared)
        if i > 0:  # the start is a constant
            more = _pull_to_sites(visit.mean, visit.cov, g, h)
            shift_bar, precision_bar = (1 - rho) * shift_bar + more[0], (1 - rho) * precision_bar + more[1]
    return K_bar


def _pull_to_sites(mean: Tensor, cov: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in shift and precision from gradients of the posterior means and variances."""
    shift = times(cov, g)
    return shift, -mean * shift - times(cov.square(), h)


def _pull_to_kernel(visit: Visit, g: Tensor, h: Tensor, is_shared: bool) -> Float[Tensor, "T _ N N"]:
    """Gradient in `K` from gradients of the posterior means and variances: A^T g alpha^T + A^T diag(h) A, symmetric."""
    if visit.sites is None:  # A = I and alpha = 0
        return torch.diag_embed(h.sum(1, keepdim=True) if is_shared else h)
    w = visit.sites.precision
    outer = _outer(g - w * times(visit.cov, g), visit.sites.shift - w * visit.mean, is_shared)
    A = _pull_matrix(w, visit.cov)
    if A.shape[1] < h.shape[1]:  # one matrix for all classes
        h = h.sum(1, keepdim=True)
    pulled = (A * h[..., None, :]) @ A.mT
    return (pulled.sum(1, keepdim=True) if is_shared else pulled) + outer


def _moments_pull_back(
    problem: Problem, visit: Visit, prob_bar: Float[Tensor, "T C N"], curvature_bar: Float[Tensor, "T C N"]
) -> tuple[Float[Tensor, "T C N"], Float[Tensor, "T C N"]]:
    """Gradients in means and variances from gradients of `E[p]` and `E[p (1 - p)]`."""
    if visit.hessian is None:
        from mirrorshot.inference.fused import moments_pull_back_fused

        return moments_pull_back_fused(visit.mean, visit.var, problem.class_mask, prob_bar, curvature_bar)
    pulled = visit.hessian.pull_back(prob_bar.mT, curvature_bar.mT)
    return pulled[0].mT, pulled[1].mT


def predict_from(
    solution: Solution, K_cross: Float[Tensor, "T _ N M"], prior_var: Float[Tensor, "T _ M"]
) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T C M"]]:
    """Mean and variance of the latents at new points (paper eq. 15b): `k*^T alpha`, `k** - k*^T (W - W Sigma W) k*`."""
    w = solution.sites.precision[..., None]
    mean = (K_cross.mT @ solution.alpha[..., None])[..., 0]
    scaled = w * K_cross
    explained = (K_cross * scaled).sum(-2) - (scaled * (solution.cov @ scaled)).sum(-2)
    return mean, (prior_var - explained).clamp(min=0.0)

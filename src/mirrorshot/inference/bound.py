"""A fixed number of mirror steps, and the bound they reach as a function of the kernel: the inner loop of training.

Training solves millions of small tasks, each to the accuracy that its gradient needs, so here the number of steps is
fixed, nothing is looked at, and nothing but the result is kept. The bound's gradient in `K` holds the sites fixed
(at the optimum this is the whole gradient) and is written out. With `W = diag(w)`, `A = I - Sigma W`,

    dELBO/dK = sum_c A^T g alpha^T + A^T diag(h) A - (W - W Sigma W) / 2,
    g = g_m - (alpha - w m) / 2,     h = g_v + w / 2,

from `dSigma = A dK A^T` and `dm = A dK alpha`. It needs no graph and no second factorisation.

On a GPU the steps run in two fused kernels (`fused`); the result is the same to rounding.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from mirrorshot.gaussian import GaussianSites, covariance
from mirrorshot.inference.mirror import mirror_step
from mirrorshot.inference.objective import Problem, evaluate, make_problem
from mirrorshot.inference.starts import AmortisedSites
from mirrorshot.types import InvalidInputError


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


def solve(problem: Problem, start: GaussianSites | None, n_steps: int, step_size: float) -> Solution:
    """Make `n_steps` mirror steps (paper eq. 9) of one size and evaluate the bound there; no gradients.

    Args:
        problem: the tasks.
        start: sites to start from; None: those of the prior, which are zero.
        n_steps: number of steps.
        step_size: the paper's rho.
    """
    with torch.no_grad():
        if can_fuse(problem.K, problem.n_way):
            from mirrorshot.inference.fused import solve_fused

            return Solution(*solve_fused(problem, start, n_steps, step_size))
        sites = start or GaussianSites.zeros_like(problem.K, problem.n_way)
        for _ in range(n_steps):
            sites = mirror_step(sites, evaluate(problem, sites), step_size)
        state = evaluate(problem, sites)
        cov = covariance(problem.K, state.posterior)
        return Solution(sites, state.posterior.mean, cov, state.grad_mean, state.curvature, state.elbo)


def can_fuse(K: Float[Tensor, "T _ N N"], n_way: int) -> bool:
    """Whether tasks with these covariances are solved by fused kernels: float32 on a GPU, small, Triton installed."""
    if K.device.type != "cuda" or K.dtype != torch.float32:
        return False
    from mirrorshot.inference import fused

    return fused.is_available() and K.shape[-1] <= fused.MAX_POINTS and n_way <= fused.MAX_CLASSES


def training_elbo(
    K: Float[Tensor, "T _ N N"],
    y: Int[Tensor, "T N"],
    *,
    n_way: int,
    n_steps: int = 3,
    step_size: float = 1.0,
    start: Literal["prior"] | AmortisedSites = "prior",
    weight: Float[Tensor, "T N"] | None = None,
    class_mask: Bool[Tensor, "T C"] | None = None,
    max_std: float | None = None,
) -> Float[Tensor, " T"]:
    """Evidence lower bound (paper eq. 12) after a fixed number of mirror steps, differentiable in `K`.

    Arguments are as in `mirror_descent`; they are not checked, so that a GPU need not wait. The gradient holds the
    sites fixed: exact at the optimum, and off by the square of the distance to it before.

    Args:
        K: prior covariances, (T, 1, N, N) or (T, C, N, N); symmetric positive semi-definite.
        y: labels, (T, N).
        n_way: number of classes C.
        n_steps: number of mirror steps.
        step_size: the paper's rho in (0, 1].
        start: "prior", or sites amortised over earlier tasks.
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
    return _Bound.apply(K, problem, sites, n_steps, step_size)  # type: ignore[no-any-return, no-untyped-call]


class _Bound(torch.autograd.Function):
    """`K` (T, 1 | C, N, N) -> ELBO (T,)."""

    @staticmethod
    def forward(
        ctx: Any, K: Tensor, problem: Problem, start: GaussianSites | None, n_steps: int, step_size: float
    ) -> Tensor:
        solution = solve(problem, start, n_steps, step_size)
        ctx.save_for_backward(*solution.sites, *solution[1:5])
        ctx.is_shared = K.shape[1] == 1
        return solution.elbo

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shift, precision, mean, cov, grad_mean, curvature = ctx.saved_tensors
        gradient = grad[:, None, None, None] * kernel_gradient(
            GaussianSites(shift, precision), mean, cov, grad_mean, curvature
        )
        return (gradient.sum(1, keepdim=True) if ctx.is_shared else gradient), None, None, None, None


def kernel_gradient(
    sites: GaussianSites,
    mean: Float[Tensor, "T C N"],
    cov: Float[Tensor, "T C N N"],
    grad_mean: Float[Tensor, "T C N"],
    curvature: Float[Tensor, "T C N"],
) -> Float[Tensor, "T C N N"]:
    """Gradient of the bound in the covariance of every class, with the sites held fixed; symmetric."""
    w = sites.precision
    alpha = sites.shift - w * mean
    g = grad_mean - 0.5 * (alpha - w * mean)
    h = 0.5 * (w - curvature)
    # A^T g alpha^T with A^T = I - W Sigma
    left = g - w * (cov @ g[..., None])[..., 0]
    outer = left[..., :, None] * alpha[..., None, :]
    # A^T diag(h) A - (W - W Sigma W) / 2 = diag(h - w/2) + W Sigma W / 2 - (W Sigma H + H Sigma W) + W Sigma H Sigma W
    inner = cov @ (h[..., :, None] * cov) + 0.5 * cov
    both = w[..., :, None] * inner * w[..., None, :]
    mixed = w[..., :, None] * cov * h[..., None, :]
    rest = 0.5 * outer - mixed
    return both + rest + rest.mT + torch.diag_embed(h - 0.5 * w)


def predict_from(
    solution: Solution, K_cross: Float[Tensor, "T _ N M"], prior_var: Float[Tensor, "T _ M"]
) -> tuple[Float[Tensor, "T C M"], Float[Tensor, "T C M"]]:
    """Mean and variance of the latents at new points (paper eq. 15b): `k*^T alpha`, `k** - k*^T (W - W Sigma W) k*`."""
    w = solution.sites.precision[..., None]
    mean = (K_cross.mT @ solution.alpha[..., None])[..., 0]
    scaled = w * K_cross
    explained = (K_cross * scaled).sum(-2) - (scaled * (solution.cov @ scaled)).sum(-2)
    return mean, (prior_var - explained).clamp(min=0.0)

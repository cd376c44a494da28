"""The mirror steps of `steps.solve` as two GPU kernels per step, for tasks of up to 128 points in float32.

With one task per training step the inner loop would be hundreds of tiny kernels, limited by launch time. Instead:

- `moments` runs one program per point. It computes the softmax moments (see `softmax.quadrature`) by the trapezoidal
  rule in `u` and in `z`, whose number of nodes depends on the point's largest standard deviation, and takes the mirror
  step of the point's sites.
- `condition` runs one program per (task, class). It conditions the prior covariance on blocks of 16 points in turn:
  `Sigma <- Sigma - P M P^T` with `P = Sigma[:, block]` and `M = S (I + S Sigma_block S)^-1 S`. The inverted matrices
  have eigenvalues of at least one, so `K` may be singular. `log |I + S K S|` is the sum of the logarithms of the
  pivots. The result is kept in factors, `Sigma = K - P Q^T`.

Nothing synchronises, so a CUDA graph can record a training step.
"""

import functools
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.objective import Problem

MAX_POINTS = 128
MAX_CLASSES = 64
_BLOCK = 16
N_WARPS = {128: 4, 64: 2}  # by number of rows; tuned on a GPU


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def solve_fused(
    problem: Problem, start: GaussianSites | None, n_steps: int, step_size: float, *, keep: bool = False
) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
    """Return the fields of `steps.Solution` and, with `keep`, those of `steps.Waypoint` for every step."""
    given = (torch.zeros_like(problem.Y), torch.zeros_like(problem.Y)) if start is None else start
    sites = GaussianSites(*(s.clone(memory_format=torch.contiguous_format) for s in given))  # updated in place
    K, Y, weight = problem.K.contiguous(), problem.Y.contiguous(), problem.weight.contiguous()
    exists = problem.class_mask.contiguous().view(torch.uint8)
    path: list[tuple[Any, ...]] = []
    for i in range(n_steps):
        q = condition_fused(K, sites) if i or start is not None else None  # zero sites leave the prior as it is
        mean, var = _prior(K, Y) if q is None else (q.mean, q.var)
        before = GaussianSites(*(s.clone() for s in sites)) if keep else sites
        _, curvature, _ = _moments(mean, var, exists, Y, weight, sites, step_size)
        if keep:
            cov = K.expand(*Y.shape, -1) if q is None else q.covariance(K)
            path.append((before, mean, var, cov, weight[:, None] * curvature))
    q = condition_fused(K, sites)
    prob, curvature, expected = _moments(q.mean, q.var, exists, Y, weight, None, 0.0)
    grad_mean = weight[:, None] * (Y - prob)
    elbo = expected.sum(-1) - q.kl.sum(-1)
    return (sites, q.mean, q.covariance(K), grad_mean, weight[:, None] * curvature, elbo), path


def moments_pull_back_fused(
    mean: Tensor, var: Tensor, class_mask: Tensor, prob_bar: Tensor, curvature_bar: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients (T, C, N) in means and variances from gradients of `E[p]` and `E[p (1 - p)]`."""
    from mirrorshot.gp import triton_kernels as kernels

    T, C, N = mean.shape
    mean_bar, var_bar = torch.empty_like(mean), torch.empty_like(mean)
    exists = class_mask.contiguous().view(torch.uint8)
    kernels.moments_backward[(T * N,)](
        mean, var, exists, prob_bar.contiguous(), curvature_bar.contiguous(), mean_bar, var_bar,
        N, C, CLASSES=max(4, _power_of_two(C)), num_warps=2,
    )  # fmt: skip
    return mean_bar, var_bar


def hessian_fused(mean: Tensor, var: Tensor, class_mask: Tensor) -> tuple[Tensor, ...]:
    """Fields of `SoftmaxHessian`, (T, N, C) and (T, N, C, C): the gradients of all moments in one launch."""
    T, C, N = mean.shape
    unit = torch.eye(C, dtype=mean.dtype, device=mean.device)[:, None, :, None]  # (moment, task, class, point)
    bars = torch.cat([unit, torch.zeros_like(unit)]), torch.cat([torch.zeros_like(unit), unit])
    copies = (part.expand(2 * C, *part.shape).reshape(2 * C * T, *part.shape[1:]) for part in (mean, var, class_mask))
    many = (bar.expand(2 * C, T, C, N).reshape(2 * C * T, C, N) for bar in bars)
    in_mean, in_var = (out.view(2, C, T, C, N) for out in moments_pull_back_fused(*copies, *many))
    parts = (part.permute(1, 3, 0, 2) for part in (in_mean[0], in_var[0], in_var[1]))
    return prob_fused(mean, var, class_mask).mT, *parts


def _prior(K: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(Y), K.diagonal(dim1=-2, dim2=-1).expand_as(Y).contiguous()


class FusedPosterior(NamedTuple):
    """Means and variances (T, C, N), KL divergences (T, C), and the factors of the covariances (T, C, N', W)."""

    mean: Tensor
    var: Tensor
    kl: Tensor
    P: Tensor
    Q: Tensor

    def covariance(self, K: Tensor) -> Tensor:
        """`Sigma = K - P Q^T`, (T, C, N, N)."""
        T, C, N = self.mean.shape
        P, Q = (factor[:, :, :N].reshape(T * C, N, -1) for factor in (self.P, self.Q))
        prior = K.expand(T, C, N, N).reshape(T * C, N, N)
        return torch.baddbmm(prior, P, Q.mT, alpha=-1).reshape(T, C, N, N)


def condition_fused(K: Tensor, sites: GaussianSites) -> FusedPosterior:
    """Condition the prior on the sites."""
    from mirrorshot.gp import triton_kernels as kernels

    T, C, N = sites.shift.shape
    rows, n_blocks = max(_BLOCK, _power_of_two(N)), -(-N // _BLOCK)
    mean, var, kl = K.new_empty(T, C, N), K.new_empty(T, C, N), K.new_empty(T, C)
    P, Q = (K.new_empty(T, C, rows, n_blocks * _BLOCK) for _ in range(2))
    kernels.condition[(T * C,)](
        K, *sites, P, Q, mean, var, kl, N, C, K.shape[1],
        ROWS=rows, BLOCK=_BLOCK, N_BLOCKS=n_blocks, num_warps=N_WARPS.get(rows, 1),
    )  # fmt: skip
    return FusedPosterior(mean, var, kl, P, Q)


def _moments(
    mean: Tensor, var: Tensor, exists: Tensor, Y: Tensor, weight: Tensor, sites: GaussianSites | None, step_size: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments at the marginals of every point; `sites`, if given, take one mirror step in place."""
    from mirrorshot.gp import triton_kernels as kernels

    T, C, N = mean.shape
    prob, curvature, expected = torch.empty_like(mean), torch.empty_like(mean), mean.new_empty(T, N)
    shift, precision = sites or (mean, mean)  # unused without a step
    kernels.moments[(T * N,)](
        mean, var, exists, Y, weight, shift, precision, prob, curvature, expected,
        step_size, N, C, STEP=sites is not None, CLASSES=max(4, _power_of_two(C)), num_warps=2,
    )  # fmt: skip
    return prob, curvature, expected


def prob_fused(mean: Tensor, var: Tensor, class_mask: Tensor) -> Tensor:
    """`E[softmax]` (T, C, M) of independent Gaussians (T, C, M), for predictions."""
    T, _, M = mean.shape
    mean, exists = mean.contiguous(), class_mask.contiguous().view(torch.uint8)
    return _moments(mean, var.contiguous(), exists, mean, mean.new_zeros(T, M), None, 0.0)[0]


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()

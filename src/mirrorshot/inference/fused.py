"""The fixed mirror steps of `bound.solve` on a GPU: two kernels a step, for tasks of up to 128 points.

At one task a step the inner loop is hundreds of tiny kernels, and a GPU waits for its launches. Here a step is

- `_moments`: one program per point. Softmax moments by the quadrature of `quadrature`, as plain sums (trapezoid in `u`
  and in `z`, with as many nodes as the point's largest standard deviation asks for), then the mirror step of its sites.
- `_condition`: one program per (task, class). Starts from the prior covariance in registers and conditions it on one
  site after the other: `Sigma <- Sigma - Sigma_k Sigma_k^T w_k / (1 + w_k Sigma_kk)`. Nothing is inverted, a
  singular `K` is nothing special, and `log |I + S K S|` is the sum of the logarithms of the denominators.

Nothing is read back, so a training step can be recorded as a CUDA graph. float32 only.
"""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

from mirrorshot.gaussian import GaussianSites
from mirrorshot.inference.objective import Problem

MAX_POINTS = 128
MAX_CLASSES = 64


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def solve_fused(
    problem: Problem, start: GaussianSites, n_steps: int, step_size: float
) -> tuple[GaussianSites, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The fields of `bound.Solution` after `n_steps` steps."""
    shift, precision = (s.contiguous().clone() for s in start)
    K, Y, weight = problem.K.contiguous(), problem.Y.contiguous(), problem.weight.contiguous()
    exists = problem.class_mask.contiguous().view(torch.uint8)
    mean, cov, kl = condition_fused(K, shift, precision)
    for _ in range(n_steps):
        _moments_and_step(mean, cov, exists, Y, weight, (shift, precision), step_size)
        mean, cov, kl = condition_fused(K, shift, precision)
    prob, curvature, expected = _moments_and_step(mean, cov, exists, Y, weight, None, 0.0)
    grad_mean = weight[:, None] * (Y - prob)
    elbo = expected.sum(-1) - kl.sum(-1)
    return GaussianSites(shift, precision), mean, cov, grad_mean, weight[:, None] * curvature, elbo


def condition_fused(K: Tensor, shift: Tensor, precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior means (T, C, N), covariances (T, C, N, N) and KL divergences (T, C) for given sites."""
    from mirrorshot.inference import triton_kernels as kernels

    T, C, N = shift.shape
    mean, cov, kl = torch.empty_like(shift), shift.new_empty(T, C, N, N), shift.new_empty(T, C)
    size = max(16, _power_of_two(N))
    kernels.condition[(T * C,)](
        K, shift, precision, mean, cov, kl,
        N, C, K.shape[1], SIZE=size, num_warps=8 if size > 64 else 4 if size > 32 else 1,
    )  # fmt: skip
    return mean, cov, kl


def _moments_and_step(
    mean: Tensor, cov: Tensor, exists: Tensor, Y: Tensor, weight: Tensor, sites: Any, step_size: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments at the marginals of every point; with `sites`, which then move by one mirror step."""
    from mirrorshot.inference import triton_kernels as kernels

    T, C, N = mean.shape
    prob, curvature, expected = torch.empty_like(mean), torch.empty_like(mean), mean.new_empty(T, N)
    shift, precision = sites or (mean, mean)  # not touched without a step
    kernels.moments[(T * N,)](
        mean, cov, exists, Y, weight, shift, precision, prob, curvature, expected,
        step_size, N, C, N * N, N + 1, STEP=sites is not None, CLASSES=max(4, _power_of_two(C)), num_warps=2,
    )  # fmt: skip
    return prob, curvature, expected


def prob_fused(mean: Tensor, var: Tensor, class_mask: Tensor) -> Tensor:
    """`E[softmax]` (T, C, M) of independent Gaussians (T, C, M), for predictions."""
    from mirrorshot.inference import triton_kernels as kernels

    T, C, M = mean.shape
    prob, curvature, expected = torch.empty_like(mean), torch.empty_like(mean), mean.new_empty(T, M)
    exists = class_mask.contiguous().view(torch.uint8)
    mean, var = mean.contiguous(), var.contiguous()
    kernels.moments[(T * M,)](
        mean, var, exists, mean, expected.zero_(), mean, mean, prob, curvature, expected,
        0.0, M, C, M, 1, STEP=False, CLASSES=max(4, _power_of_two(C)), num_warps=2,
    )  # fmt: skip
    return prob


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()

"""Batched draws of Polya-Gamma variables `PG(b, c)` and of the prior, for Gibbs samplers, without synchronisation.

N. Polson, J. Scott and J. Windle, "Bayesian Inference for Logistic Models Using Polya-Gamma Latent Variables", JASA
2013, https://arxiv.org/abs/1205.0310. By definition

    PG(b, c) = 1 / (2 pi^2) sum_{k >= 1} g_k / ((k - 1/2)^2 + a^2),    a = c / (2 pi),  g_k ~ Gamma(b, 1) independent.

The first `N_TERMS` terms are drawn exactly. A shifted gamma variable with the same mean, variance and third cumulant
replaces the sum of all others. The error of the Laplace transform is at most 3e-7 for `b >= 1` and any `c` (5e-4 at
`b = 0.1`, from draws far below the mean), which no sample of practical size can detect. Rejected: Devroye's rejection
sampler, which is exact but needs integer `b` and synchronises until all draws are accepted.
"""

import functools
import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

N_TERMS = 10


def sample_polya_gamma(
    b: float | Float[Tensor, "*#batch"], c: Float[Tensor, "*batch"], generator: Generator
) -> Float[Tensor, "*batch"]:
    """Draw `PG(b, c)` for each entry of `c`, by a generator on its device.

    The shape `b` is real and not negative; draws of `b = 0` are zero. The tilt `c` has any sign.

    Example:
        >>> draws = sample_polya_gamma(1.0, torch.zeros(20_000), torch.Generator().manual_seed(0))
        >>> round(draws.mean().item(), 2)  # b / 4
        0.25
    """
    with torch.no_grad():
        # torch.tensor(b) would copy from the host
        shape = b.to(c.dtype).expand(c.shape) if isinstance(b, Tensor) else torch.full_like(c, b)
        squares = (torch.arange(N_TERMS, dtype=c.dtype, device=c.device) + 0.5).square()
        terms = _gammas(b, shape, generator) / (squares + (c / (2 * math.pi)).square()[..., None])
        shift, scale, tail_shape = tail_gamma(shape, c)
        tail = shift + scale * torch._standard_gamma(tail_shape, generator=generator)
        draws = (terms.sum(-1) + tail) / (2 * math.pi**2)
        return torch.where(shape > 0, draws, 0.0)


def _gammas(b: float | Tensor, shape: Tensor, generator: Generator) -> Float[Tensor, "*batch K"]:
    """Gamma variables of the first terms; those of shape one are exponential, which is faster to draw."""
    like = shape[..., None].expand(*shape.shape, N_TERMS)
    if not isinstance(b, Tensor) and b == 1.0:
        return torch.empty_like(like, memory_format=torch.contiguous_format).exponential_(generator=generator)
    positive = like.clamp(min=torch.finfo(shape.dtype).tiny).contiguous()
    return torch._standard_gamma(positive, generator=generator)


def tail_gamma(
    b: Float[Tensor, "*batch"], c: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Shift, scale and shape of the gamma variable that replaces `sum_{k > N_TERMS} g_k / ((k - 1/2)^2 + a^2)`.

    The n-th cumulant of that sum is `(n - 1)! b s_n` with `s_n = sum_{k > N_TERMS} ((k - 1/2)^2 + a^2)^-n`. The shift
    `b (s_1 - s_2^2 / s_3)` is not negative, by Cauchy and Schwarz.
    """
    # a zero `a` would divide by zero; below 1e-3 the sums do not change
    a = (c.abs() / (2 * math.pi)).clamp(min=1e-3)
    s1, s2, s3 = (_tail_sum(a, n) for n in (1, 2, 3))
    scale = s3 / s2
    shape = s2.pow(3) / s3.square()
    return b * (s1 - s2.square() / s3).clamp(min=0.0), scale, (b * shape).clamp(min=torch.finfo(c.dtype).tiny)


def _tail_sum(a: Tensor, n: int) -> Tensor:
    """`sum_{k > K} f(k - 1/2)`, `f(x) = (x^2 + a^2)^-n`, as the integral from K and a correction `f'(K) / 24`.

    With `x = a cot(theta)` and `phi = arctan(a / K)` the integral is `a^(1 - 2n) int_0^phi sin(theta)^(2n - 2) dtheta`,
    by a Gauss-Legendre rule; nothing cancels for any `a`.
    """
    phi = torch.atan(a / N_TERMS)
    nodes, weights = _legendre(a.dtype, a.device)
    sine = torch.sin(phi[..., None] * nodes) / a[..., None]
    integral = phi / a * (weights * sine.pow(2 * n - 2)).sum(-1)
    slope = -2 * n * N_TERMS / (N_TERMS**2 + a.square()).pow(n + 1)
    return integral + slope / 24


@functools.lru_cache(maxsize=16)
def _legendre(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(8)
    return torch.as_tensor((x + 1) / 2, dtype=dtype, device=device), torch.as_tensor(w / 2, dtype=dtype, device=device)


def prior_root(K: Float[Tensor, "T _ N N"]) -> Float[Tensor, "T _ N N"]:
    """A factor `R` with `R R^T = K`, for `draw_prior`; factorised in double precision.

    `K` may be singular, or indefinite by rounding: white noise with the variance `N eps` times the largest variance
    (1e-5 times at 85 points in single precision) is added.
    """
    noise = K.shape[-1] * torch.finfo(K.dtype).eps * K.diagonal(dim1=-2, dim2=-1).amax(-1).clamp(min=1e-30)
    eye = torch.eye(K.shape[-1], dtype=torch.float64, device=K.device)
    root: Tensor = torch.linalg.cholesky_ex(K.double() + noise.double()[..., None, None] * eye).L
    return root.to(K.dtype)


def draw_prior(root: Float[Tensor, "T _ N N"], n_way: int, generator: Generator) -> Float[Tensor, "T C N"]:
    """Draw latents from the prior, given the `prior_root` of its covariances."""
    noise = root.new_empty(len(root), n_way, root.shape[-1], 1).normal_(generator=generator)
    return (root @ noise)[..., 0]

"""Batched Gaussian-process regression in closed form.

Targets of class `c` are `y_c = mean_c + f_c + noise` with `f_c ~ N(0, K_c)`. With `S = diag(sqrt(weight / noise))` and
`B = I + S K S = L L^T`, the inverse is `(K + noise I)^-1 = S B^-1 S`. A point of weight zero has no influence, a point
of weight two counts as two equal points, and `K` may be singular. Classes that share `K` share the factorisation.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp.linalg import cholesky_of_shifted


class Regression(NamedTuple):
    """Result of `regress`."""

    alpha: Float[Tensor, "T C N"]  # `(K + noise I)^-1 (y - mean)`
    mean: Float[Tensor, " _"]  # prior mean of each class, (C,) or (1,)
    log_evidence: Float[Tensor, "T C"]  # `log N(y_c; mean_c, K_c + noise I)`


def regress(
    K: Float[Tensor, "T _ N N"],
    targets: Float[Tensor, "T C N"],
    mean: Float[Tensor, " _"],
    weight: Float[Tensor, "T N"],
    *,
    noise: float,
) -> Regression:
    """Condition on the targets; differentiable in all tensors.

    The constant prior mean is one for all classes (1,) or one for each (C,); `noise` is a variance.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> fit = regress(one[None], 2 * one, torch.zeros(1), one[0], noise=1.0)
        >>> fit.alpha.item(), round(fit.log_evidence.item(), 4)
        (1.0, -2.2655)
    """
    root = (weight.to(K.dtype) / noise).sqrt()[:, None, :]
    L, _ = cholesky_of_shifted(K, root.expand(K.shape[:-1]))
    scaled = root * (targets - mean[:, None])
    whitened = torch.linalg.solve_triangular(L, _columns(scaled, K.shape[1]), upper=False)
    alpha = root * _rows(torch.linalg.solve_triangular(L.mT, whitened, upper=True))
    # log |K + noise I| = log |B| + n log noise
    log_det = 2 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = weight.to(K.dtype).sum(-1, keepdim=True) * math.log(2 * math.pi * noise)
    return Regression(alpha, mean, -0.5 * (_rows(whitened).square().sum(-1) + log_det + constant))


def regression_mean(fit: Regression, K_cross: Float[Tensor, "T _ N M"]) -> Float[Tensor, "T C M"]:
    """Posterior mean at new points: `mean + k*^T (K + noise I)^-1 (y - mean)`."""
    return fit.mean[:, None] + _rows(K_cross.mT @ _columns(fit.alpha, K_cross.shape[1]))


def _columns(x: Float[Tensor, "T C N"], n_kernels: int) -> Float[Tensor, "T _ N _"]:
    """Classes as columns of one linear system if they share the kernel, else as separate systems."""
    return x.mT[:, None] if n_kernels == 1 else x[..., None]


def _rows(x: Float[Tensor, "T _ N _"]) -> Float[Tensor, "T C N"]:
    return x[:, 0].mT if x.shape[1] == 1 else x[..., 0]

"""Checks and preparation of features for kernels, and distances between features."""

import contextlib
import math

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.types import InvalidInputError

_ROUNDING = 4.0
"""Multiples of the machine precision that count as rounding and not as a difference."""


def as_features(x: Tensor, z: Tensor | None, centre: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Check features; half precision becomes float32, the least in which a covariance can be factorised."""
    for name, tensor in (("x", x), ("z", z)):
        if tensor is not None and (tensor.ndim != 3 or tensor.shape[-1] == 0):
            raise InvalidInputError(
                f"Expected `{name}` to be features of shape (T, N, D), but got {tuple(tensor.shape)}."
            )
        if tensor is not None and not tensor.is_floating_point():
            raise InvalidInputError(f"Expected `{name}` to be floating-point features, but got {tensor.dtype}.")
    T, _, D = x.shape
    if z is not None and (z.shape[0], z.shape[2], z.dtype) != (T, D, x.dtype):
        raise InvalidInputError(
            f"Expected `z` of shape ({T}, M, {D}) and type {x.dtype} to match `x`, "
            f"but got {tuple(z.shape)} and {z.dtype}."
        )
    if centre is not None and centre.shape not in ((T, 1, D), (1, 1, D)):
        raise InvalidInputError(f"Expected `centre` of shape ({T}, 1, {D}), but got {tuple(centre.shape)}.")
    if x.dtype in (torch.float16, torch.bfloat16):
        x, z = x.float(), None if z is None else z.float()
    return x, z


def full_precision(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """Switch autocast off: matrix products in half precision are no covariances."""
    device = x.device.type
    # the tracer of torch.compile cannot ask whether autocast is on
    is_on = torch.compiler.is_compiling() or (
        torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    )
    return torch.autocast(device, enabled=False) if is_on else contextlib.nullcontext()


def prepare(
    x: Float[Tensor, "T N D"], centre: Float[Tensor, "#T 1 D"] | None, normalise: bool
) -> Float[Tensor, "T N D"]:
    """Subtract `centre`, if given, and with `normalise` scale to unit norm. Zero vectors stay zero.

    A point that differs from the centre by rounding only counts as zero: its direction is noise.
    """
    noise: Tensor | float = 0.0
    if centre is not None:
        centre = centre.to(x.dtype)
        size = torch.maximum(x.detach().abs(), centre.detach().abs()).amax(-1, keepdim=True)
        noise = 2 * _ROUNDING * torch.finfo(x.dtype).eps * size
        x = x - centre
    return _unit(x, noise) if normalise else x


def _unit(x: Tensor, noise: Tensor | float) -> Tensor:
    """`x / |x|` without over- or underflow; zero with a zero gradient where `x` is not above the noise."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    vanishing = (largest <= noise) | (largest <= math.sqrt(torch.finfo(x.dtype).tiny))
    # the direction does not depend on the length, so a constant divisor leaves value and gradient as they are
    x = (x / largest.masked_fill(vanishing, 1.0)).masked_fill(vanishing, 0.0)
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norm.masked_fill(vanishing, 1.0)


def inner_product(x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None) -> Float[Tensor, "T 1 N M"]:
    """`x . z`, or `x . x` without `z`."""
    return (x @ (x if z is None else z).mT)[:, None]


def squared_distance(x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None) -> Float[Tensor, "T 1 N M"]:
    """`|x - z|^2`; exactly zero, with a zero gradient, where points differ by no more than rounding.

    Design note: differences (T, N, M, D) would be exact, but take D times the memory. The expanded form
    `|x|^2 + |z|^2 - 2 x.z` has an absolute error of `eps |x|^2`, so the mean of `x` is taken out first, and
    what is smaller than that error is set to zero: the square root in Matern kernels would blow it up.
    """
    # distances ignore a common shift: a constant leaves value and gradient as they are
    shift = x.detach().mean(1, keepdim=True)
    x = x - shift
    G = inner_product(x, None if z is None else z - shift)
    if z is None:
        x_sq = z_sq = G.diagonal(dim1=-2, dim2=-1)
    else:
        x_sq, z_sq = x.square().sum(-1)[:, None], (z - shift).square().sum(-1)[:, None]
    total = x_sq[..., :, None] + z_sq[..., None, :]
    distance = total - 2 * G
    # the rounding error of a sum of D terms grows as sqrt(D); 64 are summed without loss in a blocked product
    noise = _ROUNDING * max(1.0, math.sqrt(x.shape[-1] / 64)) * torch.finfo(x.dtype).eps
    return distance.masked_fill(distance <= noise * total, 0.0)


def root(square: Tensor) -> Tensor:
    """Square root with a zero gradient, not an infinite one, at zero."""
    zero = square == 0
    return square.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)

"""Checks and preparation of features, and products and distances between them, for arrays and tensors."""

import contextlib
import math
import sys

from jaxtyping import Float

from mirrorshot.softmax.arrays import (
    Array,
    as_type,
    detach,
    diagonal,
    divided,
    finfo,
    is_floating,
    is_tensor,
    namespace,
    row_norm,
    single,
    sum_of_squares,
)
from mirrorshot.types import InvalidInputError

_ROUNDING = 4.0
"""Differences below this multiple of the machine precision count as rounding."""


def as_features(x: Array, z: Array | None, centre: Array | None) -> tuple[Array, Array | None]:
    """Check features; convert half precision to float32, in which covariances can be factorised."""
    for name, array in (("x", x), ("z", z)):
        if array is not None and (array.ndim != 3 or array.shape[-1] == 0):
            raise InvalidInputError(
                f"Expected `{name}` to be features of shape (T, N, D), but got {tuple(array.shape)}."
            )
        if array is not None and not is_floating(array):
            raise InvalidInputError(f"Expected `{name}` to be floating-point features, but got {array.dtype}.")
    T, _, D = x.shape
    if z is not None and (z.shape[0], z.shape[2], z.dtype) != (T, D, x.dtype):
        raise InvalidInputError(
            f"Expected `z` of shape ({T}, M, {D}) and type {x.dtype} to match `x`, "
            f"but got {tuple(z.shape)} and {z.dtype}."
        )
    if centre is not None and centre.shape not in ((T, 1, D), (1, 1, D)):
        raise InvalidInputError(f"Expected `centre` of shape ({T}, 1, {D}), but got {tuple(centre.shape)}.")
    if x.dtype.itemsize < 4:
        x, z = single(x), None if z is None else single(z)
    return x, z


def full_precision(x: Array) -> contextlib.AbstractContextManager[None]:
    """Switch off autocast of torch: covariances in half precision may be indefinite."""
    if not is_tensor(x):
        return contextlib.nullcontext()
    torch = sys.modules["torch"]
    device = x.device.type
    # torch.compile cannot trace the query whether autocast is on
    is_on = torch.compiler.is_compiling() or (
        torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    )
    return torch.autocast(device, enabled=False) if is_on else contextlib.nullcontext()


def prepare(x: Float[Array, "T N D"], centre: Float[Array, "#T 1 D"] | None, normalise: bool) -> Float[Array, "T N D"]:
    """Subtract `centre`, if given, and with `normalise` scale to unit norm. Zero vectors stay zero.

    With `normalise`, a point that differs from the centre only by rounding becomes zero: its direction is noise.
    """
    noise: Array | float = 0.0
    if centre is not None:
        xp = namespace(x)
        centre = as_type(centre, x)
        size = xp.maximum(_largest(detach(x)), _largest(detach(centre)))
        noise = 2 * _ROUNDING * finfo(x).eps * size
        x = x - centre
    return _unit(x, noise) if normalise else x


def _unit(x: Array, noise: Array | float) -> Array:
    """`x / |x|` without overflow or underflow; zero, with a zero gradient, where `x` is below the noise."""
    xp = namespace(x)
    largest = _largest(detach(x))
    vanishing = (largest <= noise) | (largest <= math.sqrt(finfo(x).tiny))
    # the direction does not depend on the norm, so a constant divisor changes neither value nor gradient
    x = x * xp.where(vanishing, 0.0, 1.0 / xp.where(vanishing, 1.0, largest))
    return divided(x, xp.where(vanishing, 1.0, row_norm(x)))


def _largest(x: Array) -> Array:
    xp = namespace(x)
    return xp.maximum(xp.amax(x, axis=-1, keepdims=True), -xp.amin(x, axis=-1, keepdims=True))


def inner_product(x: Float[Array, "T N D"], z: Float[Array, "T M D"] | None) -> Float[Array, "T 1 N M"]:
    """`x . z`, or `x . x` without `z`, exactly symmetric."""
    if z is not None:
        return (x @ z.mT)[:, None]
    G = x @ x.mT
    return (0.5 * (G + G.mT))[:, None]  # matrix products are symmetric up to rounding only


def squared_norm(x: Float[Array, "T N D"]) -> Float[Array, "T 1 N"]:
    """`|x|^2`."""
    return sum_of_squares(x)[:, None]


def squared_distance(x: Float[Array, "T N D"], z: Float[Array, "T M D"] | None) -> Float[Array, "T 1 N M"]:
    """`|x - z|^2`; exactly zero, with a zero gradient, where points differ by no more than rounding.

    Design note: the expanded form `|x|^2 + |z|^2 - 2 x.z` has an absolute error of `eps |x|^2`. So the mean of `x` is
    subtracted first, and distances below that error are set to zero, because the square root in Matern kernels would
    amplify them. Rejected: differences (T, N, M, D), which are exact but need D times the memory.
    """
    # a constant shift changes neither distances nor gradients
    shift = detach(x).mean(1, keepdims=True)
    x = x - shift
    z = None if z is None else z - shift
    G = inner_product(x, z)
    x_sq, z_sq = (diagonal(G), diagonal(G)) if z is None else (squared_norm(x), squared_norm(z))
    total = x_sq[..., :, None] + z_sq[..., None, :]
    distance = total - 2 * G
    # the rounding error of a sum of D terms grows as sqrt(D / 64): a blocked product adds 64 terms almost exactly
    noise = _ROUNDING * max(1.0, math.sqrt(x.shape[-1] / 64)) * finfo(x).eps
    return namespace(x).where(distance <= noise * total, 0.0, distance)


def root(square: Array) -> Array:
    """Square root whose gradient at zero is zero instead of infinite."""
    xp = namespace(square)
    zero = square == 0
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, square)))

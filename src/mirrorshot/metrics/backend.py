"""Array functions of the metrics with one interface for NumPy and torch; see also `softmax.arrays`."""

from typing import Any, TypeAlias

import numpy as np
from scipy import special

from mirrorshot.softmax.arrays import Array, is_tensor, namespace

Generator: TypeAlias = Any
"""Source of random draws: a `numpy.random.Generator` or a `torch.Generator`."""

quietly = np.errstate(divide="ignore", invalid="ignore", over="ignore")
"""Decorator that silences warnings of NumPy where NaN or infinity is the correct result; torch does not warn."""


def cast(x: Array, dtype: Any) -> Array:
    """Return `x` in another dtype."""
    return x.to(dtype) if is_tensor(x) else np.asarray(x).astype(dtype, copy=False)


def is_integer(x: Array) -> bool:
    """Whether the dtype of `x` is an integer type."""
    if is_tensor(x):
        return not (x.is_floating_point() or x.is_complex() or x.dtype == namespace(x).bool)
    return x.dtype.kind in "iu"


def contiguous(x: Array) -> Array:
    """Return `x` in contiguous memory."""
    return x.contiguous() if is_tensor(x) else np.ascontiguousarray(x)


def sort(x: Array) -> tuple[Array, Array]:
    """Return the values sorted along the last dimension and their indices."""
    if is_tensor(x):
        values, order = x.sort(-1)
        return values, order
    order = np.argsort(x, -1, kind="stable")
    return np.take_along_axis(x, order, -1), order


def search(ascending: Array, values: Array, *, right: bool = False) -> Array:
    """Return the number of entries of a sorted vector below each value; with `right`, below or equal."""
    if is_tensor(ascending):
        return namespace(ascending).searchsorted(ascending.contiguous(), values.contiguous(), right=right)
    return np.searchsorted(ascending, values, side="right" if right else "left")


def softmax(x: Array) -> Array:
    """Return the softmax over the last dimension."""
    return x.softmax(-1) if is_tensor(x) else special.softmax(x, -1)


def erf(x: Array) -> Array:
    """Return the error function."""
    return x.erf() if is_tensor(x) else special.erf(x)


def digamma(x: Array) -> Array:
    """Return the logarithmic derivative of the gamma function."""
    return x.digamma() if is_tensor(x) else special.digamma(x)


def draw_below(n: int, shape: tuple[int, int], generator: Generator) -> Array:
    """Draw integers from 0 to n - 1, as an array or a tensor like the generator."""
    if isinstance(generator, np.random.Generator):
        return generator.integers(n, size=shape)
    import torch

    return torch.randint(n, shape, generator=generator, device=generator.device)


def like_array(x: Array, values: Array) -> Array:
    """Convert `values` to an array, or to a tensor on the device of `x`."""
    if not is_tensor(x):
        return np.asarray(values.cpu() if is_tensor(values) else values)
    return namespace(x).as_tensor(values, device=x.device)

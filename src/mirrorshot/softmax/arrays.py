"""One set of names for NumPy arrays and torch tensors.

Formulas are written once, as functions of arrays. `xp = namespace(x)` is `numpy` or `torch`: both have `where`, `sqrt`,
`exp`, `amax`, `concatenate`, `stack`, `einsum`, `zeros_like`, the keywords `axis` and `keepdims`, and the attribute
`mT`. This module has the functions that differ. It never imports torch: a tensor exists only if torch is loaded.

Rejected: array-api-compat. Its wrapped namespace costs a microsecond per call, in fits that take a few milliseconds.
"""

import contextlib
import sys
from typing import Any, TypeAlias, TypeVar

import numpy as np
from scipy import special

Array: TypeAlias = Any
"""A NumPy array or a torch tensor; annotations add the shape, `Float[Array, "T C N"]`."""


_Scalar = TypeVar("_Scalar", bound=np.generic)
NDArray: TypeAlias = np.ndarray[tuple[Any, ...], np.dtype[_Scalar]]
"""A NumPy array for annotations with a shape: jaxtyping cannot inspect `numpy.typing.NDArray` of NumPy 2.5."""


def is_tensor(x: object) -> bool:
    """Whether `x` is a torch tensor, without importing torch."""
    if type(x) is np.ndarray:
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def namespace(x: Array) -> Any:
    """Return the module with the functions for `x`: `numpy` or `torch`.

    Example:
        >>> namespace(np.zeros(2)).__name__
        'numpy'
    """
    return sys.modules["torch"] if is_tensor(x) else np


def like(x: Array, values: Any) -> Array:
    """Return `values` as an array of the kind, type and device of `x`."""
    if is_tensor(x):
        return sys.modules["torch"].as_tensor(values, dtype=x.dtype, device=x.device)
    return np.asarray(values, dtype=x.dtype)


def asarray(values: Any, dtype: Any, device: Any) -> Array:
    """Return `values` with a NumPy or torch type; NumPy ignores the device."""
    if isinstance(dtype, np.dtype):
        return np.asarray(values, dtype=dtype)
    return sys.modules["torch"].as_tensor(values, dtype=dtype, device=device)


def device_of(x: Array) -> Any:
    """Return the device of a tensor; None for an array."""
    return x.device if is_tensor(x) else None


def is_on_cpu(x: Array) -> bool:
    """Whether values of `x` can be read without a synchronisation."""
    return not is_tensor(x) or x.device.type == "cpu"


def new_empty(x: Array, shape: tuple[int, ...]) -> Array:
    """Return an uninitialised array of the kind, type and device of `x`."""
    return x.new_empty(shape) if is_tensor(x) else np.empty(shape, dtype=x.dtype)


def full(x: Array, shape: tuple[int, ...], value: float) -> Array:
    """Return a constant array of the kind, type and device of `x`."""
    return x.new_full(shape, value) if is_tensor(x) else np.full(shape, value, dtype=x.dtype)


def arange(x: Array, n: int) -> Array:
    """Return 0, ..., n - 1 as integers of the kind and device of `x`."""
    return sys.modules["torch"].arange(n, device=x.device) if is_tensor(x) else np.arange(n)


def counts(x: Array, n: int) -> Array:
    """Return 0, ..., n - 1 in the kind, type and device of `x`."""
    if is_tensor(x):
        return sys.modules["torch"].arange(n, dtype=x.dtype, device=x.device)
    return np.arange(n, dtype=x.dtype)


def eye(x: Array, n: int) -> Array:
    """Return the identity matrix in the kind, type and device of `x`."""
    return sys.modules["torch"].eye(n, dtype=x.dtype, device=x.device) if is_tensor(x) else np.eye(n, dtype=x.dtype)


def detach(x: Array) -> Array:
    """Return `x` without torch's graph."""
    return x.detach() if is_tensor(x) else x


def at_least(x: Array, low: float) -> Array:
    """Return the larger of `x` and a number, elementwise."""
    return x.clamp(min=low) if is_tensor(x) else np.maximum(x, low)


def at_most(x: Array, high: float) -> Array:
    """Return the smaller of `x` and a number, elementwise."""
    return x.clamp(max=high) if is_tensor(x) else np.minimum(x, high)


def diagonal(x: Array) -> Array:
    """Return the diagonals of the last two dimensions, as a view."""
    return x.diagonal(0, -2, -1)


def set_diagonal(x: Array, values: Array) -> None:
    """Overwrite the diagonals of the last two dimensions."""
    if is_tensor(x):
        x.diagonal(0, -2, -1).copy_(values)
    else:
        np.einsum("...ii->...i", x)[...] = values


def finfo(x: Array) -> Any:
    """Return `eps`, `tiny` and the rest for the type of `x`."""
    return sys.modules["torch"].finfo(x.dtype) if is_tensor(x) else np.finfo(x.dtype)


def tiny(x: Array) -> float:
    """Return the smallest normal number of the type of `x`."""
    return float(finfo(x).tiny)


def is_double(x: Array) -> bool:
    """Whether `x` has 64-bit floating-point numbers."""
    return bool(finfo(x).bits == 64)


def log_softmax(x: Array) -> Array:
    """Return the logarithm of the softmax over the last dimension."""
    if is_tensor(x):
        return x.log_softmax(-1)
    shifted = x - np.max(x, -1, keepdims=True)  # scipy.special.log_softmax takes twenty times as long on small arrays
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def logsumexp(x: Array) -> Array:
    """Return `log sum exp` over the last dimension."""
    if is_tensor(x):
        return x.logsumexp(-1)
    largest = np.max(x, -1, keepdims=True)  # scipy.special.logsumexp takes several times as long
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(x - largest).sum(-1)) + largest[..., 0]


def erfc(x: Array) -> Array:
    """Return the complementary error function."""
    return x.erfc() if is_tensor(x) else special.erfc(x)


def log_ndtr(x: Array) -> Array:
    """Return the logarithm of the normal distribution function."""
    return sys.modules["torch"].special.log_ndtr(x) if is_tensor(x) else special.log_ndtr(x)


def entropy_terms(x: Array) -> Array:
    """Return `-x log x`, zero at zero."""
    return sys.modules["torch"].special.entr(x) if is_tensor(x) else special.entr(x)


def sum_of_squares(x: Array) -> Array:
    """Return the sum of squares over the last dimension."""
    return (x * x).sum(-1) if is_tensor(x) else np.einsum("...d,...d->...", x, x)


def row_norm(x: Array) -> Array:
    """Return the Euclidean norm along the last dimension, which is kept."""
    if is_tensor(x):
        return sys.modules["torch"].linalg.vector_norm(x, dim=-1, keepdim=True)
    return np.sqrt(sum_of_squares(x))[..., None]  # several times faster than numpy.linalg.vector_norm


def divided(x: Array, by: Array) -> Array:
    """Return `x / by`; a NumPy array is overwritten, because allocation takes longer than the division."""
    return x / by if is_tensor(x) else np.divide(x, by, out=x)


def take_along_last(x: Array, index: Array) -> Array:
    """Return one entry of the last dimension for each `index`, which lacks that dimension."""
    if is_tensor(x):
        return x.gather(-1, index[..., None])[..., 0]
    return np.take_along_axis(x, index[..., None], -1)[..., 0]


def is_floating(x: Array) -> bool:
    """Whether `x` has floating-point numbers."""
    return bool(x.is_floating_point()) if is_tensor(x) else x.dtype.kind == "f"


def zeros(x: Array, shape: tuple[int, ...]) -> Array:
    """Return zeros of the kind, type and device of `x`."""
    return x.new_zeros(shape) if is_tensor(x) else np.zeros(shape, dtype=x.dtype)


def integers(x: Array, shape: tuple[int, ...]) -> Array:
    """Return 64-bit integer zeros of the kind and device of `x`."""
    if is_tensor(x):
        return x.new_zeros(shape, dtype=sys.modules["torch"].int64)
    return np.zeros(shape, dtype=np.int64)


def trues(x: Array, shape: tuple[int, ...]) -> Array:
    """Return a boolean array of true, of the kind and device of `x`."""
    if is_tensor(x):
        return x.new_ones(shape, dtype=sys.modules["torch"].bool)
    return np.ones(shape, dtype=np.bool_)


def as_type(x: Array, other: Array) -> Array:
    """Return `x` in the type of `other`, an array of the same kind."""
    return x.to(other.dtype) if is_tensor(x) else x.astype(other.dtype, copy=False)


def single(x: Array) -> Array:
    """Return `x` in single precision."""
    return x.float() if is_tensor(x) else x.astype(np.float32, copy=False)


def double(x: Array) -> Array:
    """Return `x` in double precision."""
    return x.double() if is_tensor(x) else x.astype(np.float64, copy=False)


def copied(x: Array) -> Array:
    """Return a copy of `x`."""
    return x.clone() if is_tensor(x) else x.copy()


def no_grad(x: Array) -> contextlib.AbstractContextManager[Any]:
    """Disable torch's graph inside the block."""
    return sys.modules["torch"].no_grad() if is_tensor(x) else contextlib.nullcontext()

"""Softmax expectations in C++, called through ctypes, with the NumPy and torch reference where there is no library.

The C++ code has the nodes, the forms and the tables of `quadrature` and computes in float64, whatever type comes in.
Nodes where all integrands are below 1e-14, or continue as the geometric series of the tail, are left out. It agrees
with the reference to 1e-10 in float64 and to the rounding of the reference in float32, relative to the larger of one
and the moment (`tests/softmax/test_native.py`). It has no state and releases the GIL.

Design note: a C interface needs no Python headers, so one wheel serves all versions of Python.
"""

import ctypes
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.softmax import integrals
from mirrorshot.softmax.arrays import Array, is_on_cpu, is_tensor, namespace
from mirrorshot.softmax.native.loader import library
from mirrorshot.softmax.quadrature import WIDE_NODES, WIDE_STD, Rule, choose_rule, gumbel_weights, hermite
from mirrorshot.types import InvalidInputError

_IS_SINGLE = {np.dtype(np.float64): False, np.dtype(np.float32): True, "torch.float64": False, "torch.float32": True}


class _Rule(ctypes.Structure):
    """`MirrorshotRule` of latents.hpp."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("spacing", "narrow_std", "n_std", "gamma_right")),
        *((name, ctypes.c_int64) for name in ("n_nodes", "n_hermite", "n_taps", "has_broad", "n_wide")),
        ("wide_std", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("z", "w", "taps")),
    )


def integrate_moments(
    mean: Float[Array, "P C"], var: Float[Array, "P C"], max_std: float, refine: float = 1.0
) -> tuple[Float[Array, "P C"], Float[Array, "P C"], Float[Array, " P"]]:
    """`integrals.integrate_moments`, by the library if it can."""
    n, c = mean.shape
    if not _takes(mean, var):
        return integrals.integrate_moments(mean, var, max_std, refine)
    prob, curvature, logsumexp = _call("moments", mean, var, ((n, c), (n, c), (n,)), max_std, refine)
    return prob, curvature, logsumexp


def class_pairs(mean: Float[Array, "P C"], var: Float[Array, "P C"], max_std: float) -> tuple[Array, ...]:
    """`integrals.class_pairs`, by the library if it can."""
    n, c = mean.shape
    if not _takes(mean, var):
        return integrals.class_pairs(mean, var, max_std)
    return tuple(_call("hessian", mean, var, ((n, c), *3 * ((n, c, c),)), max_std, 1.0))


def _takes(mean: Array, var: Array) -> bool:
    dtype = str(mean.dtype) if is_tensor(mean) else mean.dtype
    is_simple = dtype in _IS_SINGLE and mean.dtype == var.dtype and is_on_cpu(mean) and 0 not in mean.shape
    return is_simple and library() is not None


def _call(
    name: str, mean: Array, var: Array, shapes: tuple[tuple[int, ...], ...], max_std: float, refine: float
) -> list[Array]:
    if is_tensor(mean):
        parts = _call(name, mean.detach().numpy(), var.detach().numpy(), shapes, max_std, refine)
        return [namespace(mean).from_numpy(part) for part in parts]
    (n, c), is_single = shapes[0], _IS_SINGLE[mean.dtype]
    rule = _native_rule(choose_rule(max_std, c, mean.dtype, refine), max_std > WIDE_STD, refine, is_single)
    mean, var = np.ascontiguousarray(mean), np.ascontiguousarray(var)
    outputs = [np.empty(shape, mean.dtype) for shape in shapes]
    pointers = [x.ctypes.data for x in (mean, var, *outputs)]
    function = getattr(library(), f"mirrorshot_{name}")
    status = function(is_single, *pointers[:2], n, c, rule.pointer, *pointers[2:])
    if status != 0:
        raise _error(status, n, c)
    return outputs


def _error(status: int, n: int, c: int) -> Exception:
    if status == 2:
        return MemoryError(f"Expected memory for the softmax of {c} classes, but got none. Use fewer classes.")
    return InvalidInputError(f"Expected at most {2**26} points of at most {2**13} classes, but got {n} of {c}.")


class _Tables(NamedTuple):
    """A rule as the library reads it, and what it points to."""

    pointer: int
    rule: _Rule
    arrays: tuple[Array, ...]


@functools.lru_cache(maxsize=256)
def _native_rule(rule: Rule, may_be_wide: bool, refine: float, is_single: bool) -> _Tables:
    weight, gamma_right = gumbel_weights(rule.spacing, not is_single)
    arrays = (*hermite(rule.n_hermite, np.dtype(np.float64), None), np.ascontiguousarray(weight[::-1]))
    fields = {name: getattr(rule, name) for name in ("spacing", "narrow_std", "n_std", "n_nodes", "n_hermite")}
    sizes = {"n_taps": len(weight), "has_broad": rule.has_broad, "n_wide": int(WIDE_NODES * refine) * may_be_wide}
    pointers = dict(zip(("z", "w", "taps"), (array.ctypes.data for array in arrays), strict=True))
    native = _Rule(**fields, **sizes, **pointers, gamma_right=gamma_right, wide_std=WIDE_STD)
    return _Tables(ctypes.addressof(native), native, arrays)

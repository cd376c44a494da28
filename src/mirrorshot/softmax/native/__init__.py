"""Softmax expectations in C++, called through ctypes; without the library, the NumPy and torch reference runs.

The C++ code has the nodes and forms of `quadrature`; the broad form uses tables of derivatives (`tables`). It computes
in float64 for either input type. It skips nodes where all integrands are below 1e-14 or continue as the geometric
series of the tail. It agrees with the reference to 1e-10 in float64, and in float32 to 2e-5, the rounding of the
reference, relative to the larger of one and the moment (`tests/softmax/test_native.py`). It has no state and releases
the GIL.

Design note: a C interface needs no Python headers, so one wheel serves all versions of Python.
"""

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.softmax import integrals
from mirrorshot.softmax.arrays import Array, is_on_cpu, is_tensor, namespace
from mirrorshot.softmax.native.loader import library
from mirrorshot.softmax.native.tables import LOG_STEP, ORDER, first_log_var, knots
from mirrorshot.softmax.quadrature import WIDE_NODES, WIDE_STD, Rule, choose_rule, hermite
from mirrorshot.types import InvalidInputError

_IS_SINGLE = {np.dtype(np.float64): False, np.dtype(np.float32): True, "torch.float64": False, "torch.float32": True}
_TOO_WIDE = 3  # status of core.cpp


class _Knot(ctypes.Structure):
    """`MirrorshotKnot` of latents.hpp."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("var", "left")),
        ("size", ctypes.c_int64),
        ("values", ctypes.c_void_p),
    )


class _Rule(ctypes.Structure):
    """`MirrorshotRule` of latents.hpp."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("spacing", "narrow_std", "n_std", "wide_std")),
        *((name, ctypes.c_int64) for name in ("n_nodes", "n_hermite", "n_wide")),
        *((name, ctypes.c_void_p) for name in ("z", "w")),
        *((name, ctypes.c_int64) for name in ("n_knots", "order")),
        *((name, ctypes.c_double) for name in ("first_log_var", "log_step")),
        ("knots", ctypes.c_void_p),
    )


def integrate_moments(
    mean: Float[Array, "P C"], var: Float[Array, "P C"], max_std: float
) -> tuple[Float[Array, "P C"], Float[Array, "P C"], Float[Array, " P"]]:
    """`integrals.integrate_moments`, by the library if possible."""
    n, c = mean.shape
    found = _call("moments", mean, var, ((n, c), (n, c), (n,)), max_std) if _takes(mean, var) else None
    if found is None:
        return integrals.integrate_moments(mean, var, max_std)
    prob, curvature, logsumexp = found
    return prob, curvature, logsumexp


def class_pairs(mean: Float[Array, "P C"], var: Float[Array, "P C"], max_std: float) -> tuple[Array, ...]:
    """`integrals.class_pairs`, by the library if possible."""
    n, c = mean.shape
    found = _call("hessian", mean, var, ((n, c), *3 * ((n, c, c),)), max_std) if _takes(mean, var) else None
    return integrals.class_pairs(mean, var, max_std) if found is None else tuple(found)


def _takes(mean: Array, var: Array) -> bool:
    dtype = str(mean.dtype) if is_tensor(mean) else mean.dtype
    is_simple = dtype in _IS_SINGLE and mean.dtype == var.dtype and is_on_cpu(mean) and 0 not in mean.shape
    return is_simple and library() is not None


def _call(
    name: str, mean: Array, var: Array, shapes: tuple[tuple[int, ...], ...], max_std: float
) -> list[Array] | None:
    """Return the output arrays of a library function; None if a latent is wider than `max_std`."""
    if is_tensor(mean):
        parts = _call(name, mean.detach().numpy(), var.detach().numpy(), shapes, max_std)
        return None if parts is None else [namespace(mean).from_numpy(part) for part in parts]
    (n, c), is_single = shapes[0], _IS_SINGLE[mean.dtype]
    rule = native_rule(max_std, c, mean.dtype)
    mean, var = np.ascontiguousarray(mean), np.ascontiguousarray(var)
    outputs = [np.empty(shape, mean.dtype) for shape in shapes]
    pointers = [address(x) for x in (mean, var, *outputs)]
    function = getattr(library(), f"mirrorshot_{name}")
    status = function(is_single, *pointers[:2], n, c, rule.pointer, *pointers[2:])
    if status == _TOO_WIDE:
        return None
    if status != 0:
        raise _error(status, n, c)
    return outputs


def address(x: Float[np.ndarray, "..."]) -> int:
    """Return the address of an array's values; `x.ctypes.data` takes several times as long."""
    found: int = x.__array_interface__["data"][0]
    return found


def _error(status: int, n: int, c: int) -> Exception:
    if status == 2:
        return MemoryError(f"Expected memory for the softmax of {c} classes, but got none. Use fewer classes.")
    return InvalidInputError(f"Expected at most {2**26} points of at most {2**13} classes, but got {n} of {c}.")


class NativeRule(NamedTuple):
    """A rule in the library's layout, with the arrays that it points to; valid as long as this value is held."""

    pointer: int
    rule: _Rule
    owned: tuple[Any, ...]


@functools.lru_cache(maxsize=256)
def native_rule(max_std: float, n_classes: int, dtype: Any) -> NativeRule:
    """Return the rule for standard deviations up to `max_std`; callers hold it while the library reads it."""
    rule = choose_rule(max_std, n_classes, dtype)
    return _native(rule, max_std > WIDE_STD, _IS_SINGLE[dtype])


@functools.cache
def _native(rule: Rule, may_be_wide: bool, is_single: bool) -> NativeRule:
    nodes = hermite(rule.n_hermite, np.dtype(np.float64), None)
    table = knots(rule, is_single)
    places = (_Knot * len(table))(*(_Knot(k.var, k.left, k.values.shape[1], k.values.ctypes.data) for k in table))
    fields = {name: getattr(rule, name) for name in ("spacing", "narrow_std", "n_std", "n_nodes", "n_hermite")}
    native = _Rule(
        **fields,
        **{name: array.ctypes.data for name, array in zip(("z", "w"), nodes, strict=True)},
        n_wide=WIDE_NODES * may_be_wide,
        wide_std=WIDE_STD,
        n_knots=len(table),
        order=ORDER,
        first_log_var=first_log_var(rule),
        log_step=LOG_STEP,
        knots=ctypes.addressof(places),
    )
    return NativeRule(ctypes.addressof(native), native, (nodes, places, table))

"""Rounds of `alternating` for small tasks in C++ (`softmax/native/rounds.hpp`).

Design note: this duplicates the rounds of `alternating`, because a fit of 25 latents makes about a thousand NumPy calls
of one or two microseconds, ten times as long as their arithmetic. It proves nothing: `alternate` certifies the result
with its own expectations, and continues if an error remains. Without the library it does all rounds.
"""

import ctypes
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.gp.weight_space import Task
from mirrorshot.softmax import native
from mirrorshot.softmax.native.loader import library

_LARGEST = 2**17  # N R C up to which the plain loops of the library are faster than calls of LAPACK


class Constants(NamedTuple):
    """Constants of the rounds, see `alternating`."""

    arrived: float
    accepted: float
    near: float
    cg_tolerance: float
    shortest: float
    max_rounds: int
    inner_steps: int
    cg_steps: int
    scalings: int


class _Task(ctypes.Structure):
    """`MirrorshotTask` of rounds.hpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("n_points", "n_features", "n_classes")),
        *((name, ctypes.c_void_p) for name in ("phi", "labels", "weight", "prior_mean")),
        *((name, ctypes.c_double) for name in ("max_std", "arrived", "accepted", "near", "cg_tolerance", "shortest")),
        *((name, ctypes.c_int64) for name in ("max_rounds", "inner_steps", "cg_steps", "scalings", "has_shift")),
    )


class Start(NamedTuple):
    """Weights, precisions and the number of rounds."""

    u: Float[np.ndarray, "C R"]
    w: Float[np.ndarray, "N C"]
    n_rounds: int


def climb(
    task: Task,
    u: Float[np.ndarray, "C R"],
    w: Float[np.ndarray, "N C"],
    constants: Constants,
    *,
    has_shift: bool,
) -> Start | None:
    """Improve weights and precisions; return None if the library is missing, the task too large or the result invalid.

    With `has_shift`, `u` is `Phi^T b` of the starting sites, from which the first round solves the weights.
    """
    loaded = library()
    (N, C), R = w.shape, u.shape[1]
    if loaded is None or N * R * C > _LARGEST:
        return None
    arrays = [np.ascontiguousarray(x) for x in (task.features.phi, task.Y, task.weight)]
    prior_mean = None if task.prior_mean is None else np.ascontiguousarray(task.prior_mean)
    pointers = (*(native.address(x) for x in arrays), None if prior_mean is None else native.address(prior_mean))
    given = _Task(N, R, C, *pointers, task.max_std, *constants, has_shift)
    new_u, new_w, n_rounds = u.copy(), w.copy(), ctypes.c_int64()
    rule = native.native_rule(task.max_std, C, w.dtype)
    status = loaded.mirrorshot_rounds(
        ctypes.addressof(given), rule.pointer, native.address(new_u), native.address(new_w), ctypes.addressof(n_rounds)
    )
    is_finite = status == 0 and bool(np.isfinite(new_u).all()) and bool((new_w >= 0.0).all())
    return Start(new_u, new_w, n_rounds.value) if is_finite else None

"""Rounds of `alternating` for small tasks in C++ (`softmax/native/rounds.hpp`): a start that needs no further round.

Design note: a second version of `alternating`'s rounds, because a fit of 25 latents in NumPy makes a thousand calls of
a microsecond or two for a tenth of that in arithmetic. It proves nothing: `alternate` conditions on what comes back,
with its own expectations and certificate, and goes on where an error is left. Without a library it does all rounds.
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
    """Constants of the rounds, as `alternating` names them."""

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
    """Weights `u` (C, R) and precisions `w` (N, C), and the number of rounds to them."""

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
    """Improve weights and precisions; None if the task is not for the library, or has no finite result.

    Args:
        task: the task.
        u: weights to start from.
        w: precisions to start from.
        constants: of the rounds.
        has_shift: whether `u` are products `Phi^T b` with the shifts of sites, to be solved for.
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

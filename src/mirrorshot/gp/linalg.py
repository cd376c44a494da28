"""Batched linear algebra of arrays and tensors, one-hot labels, and checks of kernel matrices."""

import math
import sys
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.linalg import blas, lapack

from mirrorshot.softmax.arrays import (
    Array,
    arange,
    detach,
    diagonal,
    eye,
    finfo,
    is_floating,
    is_tensor,
    namespace,
)  # fmt: skip
from mirrorshot.types import InvalidInputError


def cholesky(B: Array) -> tuple[Array, Array]:
    """Return the Cholesky factors of a batch of matrices, and a status that is zero for success."""
    if is_tensor(B):
        found = sys.modules["torch"].linalg.cholesky_ex(B)
        return found.L, found.info
    try:
        return np.linalg.cholesky(B), np.zeros(B.shape[:-2], dtype=np.int32)
    except np.linalg.LinAlgError:
        return _cholesky_one_by_one(B)


def _cholesky_one_by_one(B: Array) -> tuple[Array, Array]:
    L, info = np.full(B.shape, math.nan, dtype=B.dtype), np.zeros(B.shape[:-2], dtype=np.int32)
    for index in np.ndindex(*B.shape[:-2]):
        try:
            L[index] = np.linalg.cholesky(B[index])
        except np.linalg.LinAlgError:
            info[index] = 1
    return L, info


def solve_lower(L: Array, x: Array) -> Array:
    """Return `L^-1 x` for batches of lower triangular matrices; batch dimensions broadcast."""
    if is_tensor(L):
        return sys.modules["torch"].linalg.solve_triangular(L, x, upper=False)
    batch = np.broadcast_shapes(L.shape[:-2], x.shape[:-2])
    L, x = np.broadcast_to(L, (*batch, *L.shape[-2:])), np.broadcast_to(x, (*batch, *x.shape[-2:]))
    out = np.zeros(x.shape, dtype=x.dtype)
    solve = blas.dtrsm if x.dtype == np.float64 else blas.strsm
    for index in np.ndindex(*batch) if x.size else ():
        # BLAS stores columns, so the transposes need no copy: X^T = x^T (L^T)^-1
        out[index] = solve(1.0, L[index].T, x[index].T, side=1, lower=0).T
    return out


def inverse_lower(L: Array) -> Array:
    """Return the inverses of lower triangular matrices."""
    if is_tensor(L):
        identity = eye(L, L.shape[-1]).expand_as(L)
        return sys.modules["torch"].linalg.solve_triangular(L, identity, upper=False, left=False)
    out = np.empty_like(L)
    invert = lapack.dtrtri if L.dtype == np.float64 else lapack.strtri
    for index in np.ndindex(*L.shape[:-2]):
        out[index] = invert(L[index].T, lower=0)[0].T
    return out


def cholesky_of_shifted(
    K: Float[Array, "*#batch N N"], root: Float[Array, "*batch N"]
) -> tuple[Float[Array, "*batch N N"], Int[Array, "*batch"]]:
    """Factorise `B = I + S K S = L L^T` with `S = diag(root)`, and return `L` and LAPACK's `info`.

    For positive semi-definite `K`, singular or not, the eigenvalues of `B` are at least one and no jitter is needed.
    `info` is zero for success; a check here would synchronise.
    """
    B = root[..., :, None] * K * root[..., None, :]
    return cholesky(B + eye(K, K.shape[-1]))


def times(matrix: Float[Array, "T _ N M"], vector: Float[Array, "T _ M"]) -> Float[Array, "T C N"]:
    """Matrices times vectors; classes may share either. Rows, as vectors are here, are several times faster."""
    if matrix.shape[1] == 1:
        return vector @ matrix[:, 0].mT
    return (vector[..., None, :] @ matrix.mT)[..., 0, :]


def one_hot(y: Int[Array, "*shape N"], n_way: int, dtype: Any) -> Float[Array, "*shape C N"]:
    """One-hot encode labels, with one row per class.

    Rejected: `torch.nn.functional.one_hot`, which synchronises with the device.

    Example:
        >>> import numpy as np
        >>> one_hot(np.array([1, 0, 1]), 2, np.float64).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    found = y[..., None, :] == arange(y, n_way)[:, None]
    return found.to(dtype) if is_tensor(y) else found.astype(dtype)


def check_kernel_matrix(K: Array, name: str = "K") -> None:
    """Raise unless `K` is a batch (T, 1 or C, N, N) of finite symmetric positive semi-definite matrices."""
    if K.ndim != 4 or K.shape[-1] != K.shape[-2]:
        raise InvalidInputError(
            f"Expected `{name}` to be square matrices of shape (T, 1 or C, N, N), but got {tuple(K.shape)}."
        )
    if not is_floating(K) or K.dtype.itemsize < 4:
        raise InvalidInputError(f"Expected `{name}` to be float32 or float64, but got {K.dtype}.")
    if 0 in K.shape:
        raise InvalidInputError(f"Expected `{name}` to hold at least one point, but got shape {tuple(K.shape)}.")
    K, xp = detach(K), namespace(K)
    largest = xp.amax(abs(K), axis=(-2, -1))
    task = _first_task(~xp.isfinite(largest))
    if task is not None:
        raise InvalidInputError(f"Expected `{name}` to be finite, but task {task} contains NaN or infinity.")
    asymmetry = xp.amax(abs(K - K.mT), axis=(-2, -1))
    loose = asymmetry > 1e3 * finfo(K).eps * largest
    task = _first_task(loose)
    if task is not None:
        raise InvalidInputError(
            f"Expected `{name}` to be symmetric, but in task {task} an entry differs from its mirror image by "
            f"{float(asymmetry[loose][0]):.3g}. Use (K + K.mT) / 2 if that is rounding."
        )
    lowest = xp.amin(diagonal(K), axis=-1)
    task = _first_task(lowest < 0)
    if task is not None:
        raise InvalidInputError(
            f"Expected `{name}` to have a non-negative diagonal (it holds variances), but task {task} has "
            f"{float(lowest.min()):.3g}."
        )
    # with a shift above rounding errors, a semi-definite matrix has a Cholesky factor
    size = xp.where(largest > 0, largest, 1.0)[..., None, None]
    N = K.shape[-1]
    _, info = cholesky(K / size + 1e3 * N * finfo(K).eps * eye(K, N))
    task = _first_task(info != 0)
    if task is not None:
        raise InvalidInputError(
            f"Expected `{name}` to be positive semi-definite, but task {task} has a negative eigenvalue. Check that "
            "it comes from one kernel on one set of points."
        )


def _first_task(bad: Bool[Array, "T _"]) -> int | None:
    return int(namespace(bad).argwhere(bad)[0, 0]) if bool(bad.any()) else None

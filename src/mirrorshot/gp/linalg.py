"""The Cholesky factorisation of all posteriors, products over classes, one-hot labels, checks of kernel matrices."""

from typing import Any

from jaxtyping import Bool, Float, Int

from mirrorshot.softmax.arrays import (
    Array,
    arange,
    cholesky,
    detach,
    diagonal,
    eye,
    finfo,
    is_floating,
    is_tensor,
    namespace,
)  # fmt: skip
from mirrorshot.types import InvalidInputError


def cholesky_of_shifted(
    K: Float[Array, "*#batch N N"], root: Float[Array, "*batch N"]
) -> tuple[Float[Array, "*batch N N"], Int[Array, "*batch"]]:
    """Factorise `B = I + S K S = L L^T` with `S = diag(root)`, and return `L` and LAPACK's `info`.

    The eigenvalues of `B` are at least one for every positive semi-definite `K`, singular or not, so the
    factorisation needs no jitter. `info` is zero where it worked; checking it here would synchronise.
    """
    B = root[..., :, None] * K * root[..., None, :]
    return cholesky(B + eye(K, K.shape[-1]))


def times(matrix: Float[Array, "T _ N M"], vector: Float[Array, "T _ M"]) -> Float[Array, "T C N"]:
    """Matrices times vectors, where either may be one for all classes; vectors as rows are several times faster."""
    if matrix.shape[1] == 1:
        return vector @ matrix[:, 0].mT
    return (vector[..., None, :] @ matrix.mT)[..., 0, :]


def one_hot(y: Int[Array, "*shape N"], n_way: int, dtype: Any) -> Float[Array, "*shape C N"]:
    """Return one row for each class, one where a point has its label.

    Design note: by comparison, because `torch.nn.functional.one_hot` reads values back from the device.

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
    # a semi-definite matrix has a Cholesky factor once it is shifted by more than its rounding errors
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

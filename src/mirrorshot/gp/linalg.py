"""The Cholesky factorisation of all posteriors, products over classes, one-hot labels, checks of kernel matrices."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mirrorshot.types import InvalidInputError


def cholesky_of_shifted(
    K: Float[Tensor, "*#batch N N"], root: Float[Tensor, "*batch N"]
) -> tuple[Float[Tensor, "*batch N N"], Int[Tensor, "*batch"]]:
    """Factorise `B = I + S K S = L L^T` with `S = diag(root)`, and return `L` and LAPACK's `info`.

    The eigenvalues of `B` are at least one for every positive semi-definite `K`, singular or not, so the
    factorisation needs no jitter. `info` is zero where it worked; checking it here would synchronise.
    """
    B = root[..., :, None] * K * root[..., None, :]
    B = B + torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    L, info = torch.linalg.cholesky_ex(B)
    return L, info


def times(matrix: Float[Tensor, "T _ N M"], vector: Float[Tensor, "T _ M"]) -> Float[Tensor, "T C N"]:
    """Matrices times vectors, where either may be one for all classes; vectors as rows are several times faster."""
    if matrix.shape[1] == 1:
        return vector @ matrix[:, 0].mT
    return (vector[..., None, :] @ matrix.mT)[..., 0, :]


def one_hot(y: Int[Tensor, "*shape N"], n_way: int, dtype: torch.dtype) -> Float[Tensor, "*shape C N"]:
    """Return one row for each class, one where a point has its label.

    Design note: by comparison, because `torch.nn.functional.one_hot` reads values back from the device.

    Example:
        >>> one_hot(torch.tensor([1, 0, 1]), 2, torch.float64).tolist()
        [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    return (y[..., None, :] == torch.arange(n_way, device=y.device)[:, None]).to(dtype)


def check_kernel_matrix(K: Tensor, name: str = "K") -> None:
    """Raise unless `K` is a batch (T, 1 or C, N, N) of finite symmetric positive semi-definite matrices."""
    if K.ndim != 4 or K.shape[-1] != K.shape[-2]:
        raise InvalidInputError(
            f"Expected `{name}` to be square matrices of shape (T, 1 or C, N, N), but got {tuple(K.shape)}."
        )
    if K.dtype not in (torch.float32, torch.float64):
        raise InvalidInputError(f"Expected `{name}` to be float32 or float64, but got {K.dtype}.")
    if K.numel() == 0:
        raise InvalidInputError(f"Expected `{name}` to hold at least one point, but got shape {tuple(K.shape)}.")
    K = K.detach()
    largest = K.abs().amax((-2, -1))
    asymmetry = (K - K.mT).abs().amax((-2, -1))
    task = _first_task(~largest.isfinite())
    if task is not None:
        raise InvalidInputError(f"Expected `{name}` to be finite, but task {task} contains NaN or infinity.")
    loose = asymmetry > 1e3 * torch.finfo(K.dtype).eps * largest
    task = _first_task(loose)
    if task is not None:
        raise InvalidInputError(
            f"Expected `{name}` to be symmetric, but in task {task} an entry differs from its mirror image by "
            f"{float(asymmetry[loose][0]):.3g}. Use (K + K.mT) / 2 if that is rounding."
        )
    lowest = K.diagonal(dim1=-2, dim2=-1).amin(-1)
    task = _first_task(lowest < 0)
    if task is not None:
        raise InvalidInputError(
            f"Expected `{name}` to have a non-negative diagonal (it holds variances), but task {task} has "
            f"{float(lowest.amin()):.3g}."
        )
    # a semi-definite matrix has a Cholesky factor once it is shifted by more than its rounding errors
    size = torch.where(largest > 0, largest, 1.0)[..., None, None]
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    info = torch.linalg.cholesky_ex(K / size + 1e3 * K.shape[-1] * torch.finfo(K.dtype).eps * eye).info
    task = _first_task(info != 0)
    if task is not None:
        raise InvalidInputError(
            f"Expected `{name}` to be positive semi-definite, but task {task} has a negative eigenvalue. Check that "
            "it comes from one kernel on one set of points."
        )


def _first_task(bad: Bool[Tensor, "T _"]) -> int | None:
    return int(bad.nonzero()[0, 0]) if bool(bad.any()) else None

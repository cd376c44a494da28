"""Checks of what users give a classifier, and its form as arrays."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from mirrorshot.softmax.arrays import NDArray, is_tensor
from mirrorshot.types import InvalidInputError

LARGEST = 1e100  # absolute value of an embedding; squares of larger ones overflow, of smaller than its inverse vanish


def query_prior_mean(
    scores: ArrayLike | None, n: int, n_way: int, *, is_wanted: bool
) -> Float[NDArray[np.float64], "1 C M"]:
    """Return the prior means of queries from their scores; zero if the examples have no scores either."""
    check_has_scores(scores, is_wanted)
    if scores is None:
        return np.zeros((1, n_way, n))
    return np.ascontiguousarray(check_scores(scores, n, n_way).T)[None]


def check_scores(scores: ArrayLike, n: int, n_way: int) -> NDArray[np.float64]:
    """Prior scores of a user as an array of shape (n, n_way)."""
    matrix = np.ascontiguousarray(to_numpy(scores), dtype=np.float64)
    if matrix.shape != (n, n_way) or not np.isfinite(matrix).all():
        raise InvalidInputError(
            f"Expected `prior_scores` to be finite, of shape ({n}, {n_way}), one column for each class, but got shape "
            f"{matrix.shape}{'' if np.isfinite(matrix).all() else ' with NaN or infinity'}."
        )
    return matrix


def check_has_scores(scores: ArrayLike | None, is_wanted: bool) -> None:
    """Refuse prior scores that the examples have not, and none where they have."""
    if (scores is not None) != is_wanted:
        had, got = ("had them", "none") if is_wanted else ("had none", "some")
        raise InvalidInputError(f"Expected `prior_scores` as in `fit`, which {had}, but got {got}.")


def check_share(name: str, value: Any) -> None:
    """Refuse what is no number strictly between 0 and 1."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0.0 < value < 1.0:
        raise InvalidInputError(f"Expected `{name}` to be a number between 0 and 1, but got {value!r}.")


def check_count(name: str, value: Any, largest: int, meaning: str) -> None:
    """Refuse what is no integer from 1 to a largest number, which has a meaning."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InvalidInputError(
            f"Expected `{name}` to be an integer from 1 to {largest}, {meaning}, but got {value!r}."
        )


def to_numpy(data: Any) -> Any:
    """Torch tensors as arrays (NumPy has no bfloat16: it becomes float32); everything else as it is."""
    if not is_tensor(data):
        return data
    data = data.detach().cpu()
    return (data.float() if str(data.dtype) == "torch.bfloat16" else data).numpy()


def check_embeddings(X: NDArray[np.float64], original: Any) -> NDArray[np.float64]:
    """Embeddings as inference takes them: finite, of a size that can be squared, and laid out in order.

    Args:
        X: embeddings, shape (n, n_features).
        original: as the user gave them; a frame has names of columns.
    """
    if not max(X.max(initial=0.0), -X.min(initial=0.0)) <= LARGEST:
        too_large = ~(np.abs(X) <= LARGEST)
        bad = np.argwhere(too_large & ~np.isfinite(X)) if not np.isfinite(X).all() else np.argwhere(too_large)
        row, column = bad[0]
        names = getattr(original, "columns", None)
        where = f"at row {row}, " + (f"column {column}" if names is None else f"column {names[column]!r}")
        value = X[row, column]
        if np.isfinite(value):
            raise InvalidInputError(
                f"Expected embeddings of absolute value at most {LARGEST:g}, but got {value:g} {where}. Rescale them."
            )
        what = "NaN" if np.isnan(value) else "infinity (inf)"
        raise InvalidInputError(
            f"Expected finite embeddings, but input X contains {what} {where} ({len(bad)} such values in all). "
            "Remove or impute them."
        )
    return np.ascontiguousarray(X)


def check_not_tiny(X: NDArray[np.float64]) -> None:
    """Refuse examples so close to zero that their squares vanish."""
    size = np.abs(X).max(initial=0.0)
    if 0.0 < size < 1.0 / LARGEST:
        raise InvalidInputError(
            f"Expected embeddings whose largest absolute value is at least {1.0 / LARGEST:g}, or all zero, but got "
            f"{size:g}. Rescale them."
        )

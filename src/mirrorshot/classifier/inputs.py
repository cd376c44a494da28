"""Checks of user input, and its conversion to arrays."""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from mirrorshot.softmax.arrays import NDArray, is_tensor
from mirrorshot.types import InvalidInputError

LARGEST = 1e100  # absolute value of an embedding; larger squares may overflow, those below 1 / LARGEST may vanish
SMALLEST_SCALE, LARGEST_SCALE = 1e-12, 1e12  # of outputscales and temperatures
LARGEST_WEIGHT = 1e8  # of an example; times a larger one, the error of the quadrature exceeds a nat

_FEW_COLUMNS = 64  # at most this many columns may be measurements instead of an embedding
_UNLIKE = 30.0  # from this ratio of their scales on, columns have different units


def query_prior_mean(
    scores: ArrayLike | None, n: int, n_way: int, *, is_wanted: bool
) -> Float[NDArray[np.float64], "1 C M"]:
    """Return the prior means of queries from their scores; zero without scores."""
    check_has_scores(scores, is_wanted)
    if scores is None:
        return np.zeros((1, n_way, n))
    return np.ascontiguousarray(check_scores(scores, n, n_way).T)[None]


def check_scores(scores: ArrayLike, n: int, n_way: int) -> NDArray[np.float64]:
    """Return prior scores as an array of shape (n, n_way)."""
    matrix = np.ascontiguousarray(to_numpy(scores), dtype=np.float64)
    if matrix.shape != (n, n_way) or not np.isfinite(matrix).all():
        raise InvalidInputError(
            f"Expected `prior_scores` to be finite, of shape ({n}, {n_way}), one column for each class, but got shape "
            f"{matrix.shape}{'' if np.isfinite(matrix).all() else ' with NaN or infinity'}."
        )
    return matrix


def check_has_scores(scores: ArrayLike | None, is_wanted: bool) -> None:
    """Refuse prior scores if the examples have none, and their absence if the examples have them."""
    if (scores is not None) != is_wanted:
        had, got = ("had them", "none") if is_wanted else ("had none", "some")
        raise InvalidInputError(f"Expected `prior_scores` as in `fit`, which {had}, but got {got}.")


def check_share(name: str, value: Any) -> None:
    """Refuse values that are not a number strictly between 0 and 1."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0.0 < value < 1.0:
        raise InvalidInputError(f"Expected `{name}` to be a number between 0 and 1, but got {value!r}.")


def check_count(name: str, value: Any, largest: int, meaning: str) -> None:
    """Refuse values that are not an integer from 1 to `largest`; `meaning` describes the limit in the message."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InvalidInputError(
            f"Expected `{name}` to be an integer from 1 to {largest}, {meaning}, but got {value!r}."
        )


def to_numpy(data: Any) -> Any:
    """Return torch tensors as arrays (bfloat16 as float32, because NumPy lacks it) and other values unchanged."""
    if not is_tensor(data):
        return data
    data = data.detach().cpu()
    return (data.float() if str(data.dtype) == "torch.bfloat16" else data).numpy()


def check_labels(labels: Any) -> Any:
    """Return one-dimensional labels as an array, other values unchanged; refuse labels that are missing or do not sort.

    Example:
        >>> check_labels(np.array([2, 1], dtype=object)).dtype.kind
        'i'
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "OMmbiuf":
        return labels
    if array.dtype.kind in "biuf":
        return array  # scikit-learn would convert integers and booleans of a frame to floats
    missing = [i for i, label in enumerate(array) if _is_missing(label)]
    if missing:
        raise InvalidInputError(
            f"Expected a label for each example, but that of row {missing[0]} is {array[missing[0]]} "
            f"({len(missing)} of {len(array)} are missing). Leave these examples out."
        )
    try:
        np.unique(array)
    except TypeError as error:
        other = next(label for label in array if type(label) is not type(array[0]))
        raise InvalidInputError(
            f"Expected labels that sort with each other, but got {array[0]!r} and {other!r}. Make all of them texts."
        ) from error
    plain = np.array(array.tolist()) if array.dtype.kind == "O" else array
    return plain if plain.ndim == 1 and plain.dtype.kind in "biuf" else array


def _is_missing(label: Any) -> bool:
    return label is None or type(label).__name__ == "NAType" or bool(label != label)  # NaN, NaT


def as_written(label: Any) -> str:
    """Return a label as Python writes it, without NumPy's type.

    Example:
        >>> as_written(np.int64(3)), as_written(np.str_("owl"))
        ('3', "'owl'")
    """
    return repr(label.item() if isinstance(label, np.generic) else label)


def differ_in_units(X: NDArray[Any]) -> bool:
    """Whether the columns are few, and their scales so different that they must be of different units.

    False for fewer than three rows, because one of two rows may be a multiple of the other.

    Example:
        >>> differ_in_units(np.array([[1.0, 1000.0], [2.0, 3000.0], [1.5, 100.0]]))
        True
    """
    if len(X) < 3 or X.shape[1] > _FEW_COLUMNS:
        return False
    deviation = X.astype(np.float64).std(0)
    varying = deviation[deviation > 0]
    if len(varying) == 0:
        return False
    low, high = np.quantile(varying, 0.1, method="lower"), np.quantile(varying, 0.9, method="higher")
    return bool(high >= _UNLIKE * low)


def check_embeddings(X: NDArray[np.float64], original: Any) -> NDArray[np.float64]:
    """Return finite, contiguous embeddings; messages use the column names of `original`, if it is a frame."""
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


def check_weights(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Refuse weights that are too large for the accuracy of the expectations."""
    if weight.max(initial=0.0) > LARGEST_WEIGHT:
        raise InvalidInputError(
            f"Expected `sample_weight` to be at most {LARGEST_WEIGHT:g}, because an example of weight 2 counts as two, "
            f"but got {weight.max():g} at row {weight.argmax()}. Divide all weights by a number."
        )
    return weight


def check_not_tiny(X: NDArray[np.float64]) -> None:
    """Refuse examples so close to zero that their squares vanish."""
    size = np.abs(X).max(initial=0.0)
    if 0.0 < size < 1.0 / LARGEST:
        raise InvalidInputError(
            f"Expected embeddings whose largest absolute value is at least {1.0 / LARGEST:g}, or all zero, but got "
            f"{size:g}. Rescale them."
        )

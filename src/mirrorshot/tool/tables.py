"""Items of tables: paths of images, texts or embeddings, with or without labels."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier.inputs import LARGEST
from mirrorshot.data.cache import read_npz
from mirrorshot.encoders import Embeddings
from mirrorshot.files.regular import open_regular
from mirrorshot.files.tables import READERS, Columns, read_columns, read_text
from mirrorshot.files.texts import first
from mirrorshot.tool.items import Items
from mirrorshot.types import DataError

SUFFIXES = (*READERS, ".npz", ".npy", ".txt")
_LABEL, _PATH, _NAME = ("label", "class", "y"), ("path", "file", "picture"), ("name", "id")
_TEXT = ("text", "body", "content", "message", "sentence", "review")
_ARRAYS, _TARGETS = ("X", "embeddings", "features"), ("y", "labels")
_VECTORS = "embedding"  # column of lists
_INDEX = ""  # header of the index column that pandas writes to CSV files


class Roles(NamedTuple):
    """Columns that a user names; None: the first one of the usual names, as `text` or `body`, `label` or `class`.

    `numbers` are the measurements of a model, whatever their names.
    """

    text: str | None = None
    label: str | None = None
    numbers: Sequence[str] = ()


def read_items(path: Path, roles: Roles, *, labelled: bool = False) -> Items:
    """Read the items of a table; see `read_labelled`. With `labelled`, refuse a table without labels."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(
            f"Expected a folder of class folders, or a file {', '.join(SUFFIXES)}, but got the file {path}; "
            "put images into a folder for each class."
        )
    if suffix == ".txt":
        texts = [line for line in read_text(path).splitlines() if line.strip()]
        if not texts:
            raise DataError(f"Expected {path} to hold texts, one a line, but it is empty.")
        return _checked(Items("text", [f"line {i + 1}" for i in range(len(texts))], texts, None), path, labelled, [])
    if suffix in (".npz", ".npy"):
        arrays = _read_npy(path) if suffix == ".npy" else read_npz(path)
        return _checked(_from_arrays(arrays, path, roles.label), path, labelled, list(arrays))
    columns = read_columns(path)
    return _checked(_from_columns(columns, path, roles), path, labelled, list(columns))


def _checked(items: Items, path: Path, labelled: bool, parts: list[str]) -> Items:
    if labelled and items.labels is None:
        has = f"it has {first(parts, 20)}" if parts else "it has none"
        raise DataError(
            f"Expected {path} to have a column (or an array) of labels, but {has}. Add one called {_LABEL[0]}, or name "
            "the one that is there with --label-column."
        )
    return items


def _from_columns(columns: Columns, path: Path, roles: Roles) -> Items:
    if roles.label is not None and roles.label == roles.text:
        raise DataError(
            f"Expected two columns of {path}, one of texts and one of labels, but got {roles.text!r} for both "
            "--text-column and --label-column."
        )
    label = _column(columns, roles.label, _LABEL, path, "--label-column", taken=(roles.text, *roles.numbers))
    text = _column(columns, roles.text, _TEXT, path, "--text-column", taken=(label, *roles.numbers))
    name, file = (_usual(columns, names, roles.numbers) for names in (_NAME, _PATH))
    labels = None if label is None else _labels(columns[label], path)
    if file is not None and roles.text is None:
        files = [path.parent / str(value) for value in columns[file]]
        return Items("picture", [str(found) for found in files], files, labels)
    n_rows = len(next(iter(columns.values())))
    names = [str(columns[name][i]) if name is not None else f"row {i + 1}" for i in range(n_rows)]
    if text is not None:
        return Items("text", names, _texts(columns[text], path, f"the column {text!r}"), labels)
    if isinstance(columns.get(_VECTORS, [None])[0], list):
        return Items("embedding", names, _numbers(np.array(_vectors(columns[_VECTORS], path)), path), labels)
    numbers = {key: values for key, values in columns.items() if key not in (label, name, _INDEX)}
    if _INDEX in columns:
        warnings.warn(f"The column of {path} without a name is left out: it looks like an index.", stacklevel=2)
    return Items("embedding", names, _numbers(_matrix(numbers, columns, path), path), labels, list(numbers))


def _column(
    columns: Columns, named: str | None, usual: Sequence[str], path: Path, option: str, taken: Sequence[str | None]
) -> str | None:
    """The column that the user named, or the first usual one that is not taken."""
    if named is not None and named not in columns:
        raise DataError(
            f"Expected {path} to have the column {named!r} of {option}, but it has {first(list(columns), 20)}."
        )
    return named or _usual(columns, usual, taken)


def _usual(columns: Columns, usual: Sequence[str], taken: Sequence[str | None]) -> str | None:
    return next((name for name in usual if name in columns and name not in taken), None)


def _labels(values: list[Any], path: Path) -> list[str]:
    labels = _texts(values, path, "labels")
    if "" in labels:
        raise DataError(f"Expected every row of {path} to have a label, but row {labels.index('') + 1} has none.")
    return labels


def _texts(values: list[Any], path: Path, what: str) -> list[str]:
    """Values as texts; missing values become empty texts."""
    odd = next((row for row, value in enumerate(values) if isinstance(value, (list, dict, bytes))), None)
    if odd is not None:
        got = f"{str(values[odd])[:60]!r}, {type(values[odd]).__name__}, in row {odd + 1}"
        raise DataError(f"Expected {what} of {path} to be texts or numbers, but got {got}. Write them as texts.")
    return ["" if value is None or value != value else str(value) for value in values]  # NaN is not itself


def _matrix(numbers: Columns, columns: Columns, path: Path) -> NDArray[Any]:
    if not numbers:
        raise DataError(
            f"Expected {path} to have a column of paths, of texts, or columns of numbers, but it has "
            f"{first(list(columns), 20)}."
        )
    return np.array([_column_of_numbers(name, column, path) for name, column in numbers.items()]).T


def _vectors(column: list[Any], path: Path) -> list[list[float]]:
    vectors: list[list[float]] = []
    for row, value in enumerate(column, 1):
        try:
            vectors.append([float(x) for x in value])
        except (TypeError, ValueError, OverflowError):
            got = f"{str(value)[:60]!r}"
        else:
            if len(vectors[-1]) == len(vectors[0]):
                continue
            got = f"{len(vectors[-1])} after {len(vectors[0])}"
        raise DataError(
            f"Expected the column {_VECTORS!r} of {path} to hold lists of numbers, all of one length, but got {got} in "
            f"row {row}."
        )
    return vectors


def _column_of_numbers(name: str, column: list[Any], path: Path) -> list[float]:
    numbers = []
    for row, value in enumerate(column, 1):
        try:
            numbers.append(float(value))
        except (TypeError, ValueError, OverflowError) as error:
            got = "nothing" if value in (None, "") else repr(str(value)[:60])
            raise DataError(
                f"Expected the column {name!r} of {path} to be numbers (with a decimal point), but got {got} in row "
                f"{row}. If it holds texts or labels, name it with --text-column or --label-column; else drop it."
            ) from error
    return numbers


def _from_arrays(arrays: dict[str, NDArray[Any]], path: Path, label: str | None) -> Items:
    if label is not None and label not in arrays:
        raise DataError(
            f"Expected {path} to have the array {label!r} of --label-column, but it has {first([*arrays])}."
        )
    X, y = (_array(arrays, names, path) for names in (_ARRAYS, (label,) if label else _TARGETS))
    if X is None:
        raise DataError(f"Expected {path} to have one array `X`, but it has {first(sorted(arrays)) or 'none'}.")
    X = _numbers(X, path)
    labels = None if y is None else _targets(y, arrays.get("class_names"), len(X), path)
    return Items("embedding", [f"row {i + 1}" for i in range(len(X))], X, labels)


def _array(arrays: dict[str, NDArray[Any]], names: tuple[str, ...], path: Path) -> NDArray[Any] | None:
    there = [name for name in names if name in arrays]
    if len(there) > 1:
        raise DataError(f"Expected {path} to have one array of {', '.join(names)}, but it has {first(there)}.")
    return arrays[there[0]] if there else None


def _targets(y: NDArray[Any], names: NDArray[Any] | None, n: int, path: Path) -> list[str]:
    if y.shape != (n,) or y.dtype.kind not in "USiub":
        raise DataError(
            f"Expected the labels of {path} to be {n} texts or integers, but got shape {y.shape} of {y.dtype}."
        )
    if names is not None:
        if names.ndim != 1 or names.dtype.kind not in "US" or y.dtype.kind not in "iu":
            raise DataError(f"Expected labels of {path} to be positions in `class_names`, which are texts.")
        if y.min() < 0 or y.max() >= len(names):
            raise DataError(f"Expected labels of {path} below {len(names)}, but got {y.min()} to {y.max()}.")
        y = names[y]
    texts = np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y
    return _labels(texts.tolist(), path)


def _read_npy(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open_regular(path) as file:
            return {"X": np.load(file, allow_pickle=False)}
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise DataError(f"Expected {path} to be a .npy file of numbers, but it cannot be read: {error}.") from error


def _numbers(X: Any, path: Path) -> Embeddings:
    if X.ndim != 2 or X.dtype.kind not in "fiu" or X.size == 0:
        raise DataError(f"Expected embeddings (n, D) in {path}, but got shape {X.shape} of {X.dtype}.")
    X = X.astype(np.float32 if X.dtype == np.float32 else np.float64, copy=False)
    bad = (1 + np.flatnonzero(~(np.abs(X) <= np.float64(LARGEST)).all(1))).tolist()
    if bad:
        got = "NaN or infinity" if not np.isfinite(X).all() else f"larger ones than {LARGEST:g}"
        rows = "row" if len(bad) == 1 else "rows"
        raise DataError(f"Expected finite numbers in {path}, but got {got} in {rows} {first(bad)}.")
    return X

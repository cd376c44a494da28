"""Reading of labelled embeddings from a file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.data.cache import read_npz
from mirrorshot.data.source import ClassSource
from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError

_X = ("X", "embeddings", "features")
_Y = ("y", "labels")
SUFFIXES = (".npz", ".parquet")


def read_embeddings(path: str | Path) -> ClassSource:
    """Read embeddings and labels from an `.npz` or a `.parquet` file.

    An `.npz` file has embeddings (n, D) as `X`, `embeddings` or `features` and labels (n,) as `y` or `labels`; if it
    has `class_names`, labels are indices into them. A `.parquet` file, which needs pandas and pyarrow, has a column
    `label` and either one column `embedding` of lists or one numeric column per dimension.

    Raises `DataError` for other content.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder) / "set.npz", X=np.zeros((4, 8)), y=["a", "a", "b", "b"])
        ...     source = read_embeddings(Path(folder) / "set.npz")
        >>> source.items.shape, source.class_names
        (torch.Size([4, 8]), ('a', 'b'))
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise DataError(f"Expected embeddings in a file {' or '.join(SUFFIXES)}, but got {path}.")
    X, y, names = _read_npz(path) if path.suffix == ".npz" else (*_read_parquet(path), None)
    y = np.char.decode(y, "utf-8", "replace") if y.dtype.kind == "S" else y
    try:
        return ClassSource.from_arrays(_check_embeddings(X), y, names)
    except (DataError, InvalidInputError) as error:
        raise DataError(f"{path} does not hold embeddings with labels. {error}") from error


def _read_npz(path: Path) -> tuple[NDArray[Any], NDArray[Any], list[str] | None]:
    arrays = read_npz(path)
    X, y = (arrays[_name_of(arrays, names, path)] for names in (_X, _Y))
    if "class_names" not in arrays:
        return X, y, None
    names = arrays["class_names"]
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise DataError(f"Expected `class_names` of {path} to be a list of strings, but got {names.dtype}.")
    return X, y, [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names.tolist()]


def _name_of(arrays: dict[str, NDArray[Any]], names: tuple[str, ...], path: Path) -> str:
    there = [name for name in names if name in arrays]
    if len(there) != 1:
        wanted = " or ".join(f"`{name}`" for name in names)
        raise DataError(f"Expected {path} to have one array {wanted}, but it has {first(sorted(arrays)) or 'none'}.")
    return there[0]


def _read_parquet(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    table = _parquet_table(path)
    if "label" not in table or len(table.columns) < 2:
        columns = first(list(map(str, table.columns)))
        raise DataError(f"Expected {path} to have a column `label` and others, but it has {columns or 'none'}.")
    y = table["label"]
    if y.isna().any():
        raise DataError(f"Expected every row of {path} to have a label, but {int(y.isna().sum())} have none.")
    rest = table.drop(columns="label")
    X = _stack(rest["embedding"], path) if list(rest.columns) == ["embedding"] else _numbers(rest, path)
    return X, y.to_numpy()


def _parquet_table(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"Expected a .parquet file at {path}, but there is none; check the path.")
    try:
        import pandas as pd

        return pd.read_parquet(path)
    except ImportError as error:
        raise DataError(
            f"Expected pandas and pyarrow for reading {path}, but they are missing; "
            'install them with `pip install pandas pyarrow`, or save the embeddings as ".npz".'
        ) from error
    except Exception as error:  # the engines have their own errors
        raise DataError(f"Expected {path} to be a .parquet file, but it cannot be read: {error}.") from error


def _stack(column: Any, path: Path) -> NDArray[Any]:
    try:
        return np.stack([np.asarray(row, dtype=np.float64) for row in column])
    except (TypeError, ValueError) as error:
        raise DataError(f"Expected `embedding` of {path} to be lists of one length, but got: {error}.") from error


def _numbers(table: Any, path: Path) -> NDArray[Any]:
    others = [str(name) for name in table.columns if table[name].dtype.kind not in "fiu"]
    if others:
        raise DataError(f"Expected the columns of {path} to be numbers, but these are not: {first(others)}; drop them.")
    numbers: NDArray[Any] = table.to_numpy(dtype=np.float64)
    return numbers


def _check_embeddings(X: NDArray[Any]) -> NDArray[Any]:
    if X.dtype.kind != "f" or X.ndim != 2:
        raise DataError(f"Expected embeddings (n, D) as floats, but got shape {X.shape} of {X.dtype}.")
    return X.astype(np.float32 if X.dtype.itemsize <= 4 else np.float64, copy=False)

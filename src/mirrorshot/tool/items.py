"""Reading of items: folders and files of images, tables and arrays, with or without labels."""

import csv
import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mirrorshot.data.cache import read_npz
from mirrorshot.data.embeddings import read_embeddings
from mirrorshot.data.images import SUFFIXES, class_files
from mirrorshot.data.source import first
from mirrorshot.encoders import Embeddings, Kind
from mirrorshot.types import DataError

TABLES = (".csv", ".npz", ".parquet")
_LABEL, _PATH, _TEXT, _NAME = ("label", "class", "y"), ("path", "file", "picture"), ("text",), ("name", "id")
_MAX_ROWS, _MAX_FIELD = 10**6, 2**20


class Items(NamedTuple):
    """Items of one kind.

    Attributes:
        kind: "picture", "text" or "embedding".
        names: as the user gave them.
        content: images as paths or as the bytes of their files, texts, or embeddings (n, D).
        labels: their classes; None if they are not labelled.
    """

    kind: Kind
    names: list[str]
    content: list[Path] | list[bytes] | list[str] | Embeddings
    labels: list[str] | None

    def take(self, index: Sequence[int]) -> "Items":
        """Some of the items, in the given order."""
        content: Any = self.content
        content = content[list(index)] if isinstance(content, np.ndarray) else [content[i] for i in index]
        labels = None if self.labels is None else [self.labels[i] for i in index]
        return Items(self.kind, [self.names[i] for i in index], content, labels)


def read_labelled(path: str | Path) -> Items:
    """Read labelled items: a folder of class folders, or a table.

    A `.csv` file has a header, a column `label` and either a column `path` (of images, relative to the folder of the
    file), a column `text`, or columns of numbers: an embedding. A column `name` is optional. `.npz` and `.parquet`
    files are those of `read_embeddings`.

    Raises:
        DataError: it is missing, empty, damaged, or not labelled. The message says what to do.
    """
    path = Path(path)
    if os.path.isfile(path):
        return _labelled_table(path)
    files = class_files(path)
    pairs = [(label, file) for label, of_class in files.items() for file in of_class]
    labels, paths = [label for label, _ in pairs], [file for _, file in pairs]
    return Items("picture", [str(file) for file in paths], paths, labels)


def read_unlabelled(arguments: Sequence[str], lines: Iterable[str] = ()) -> Items:
    """Read items to classify, in the given order.

    Args:
        arguments: images, folders (all images in and below them), patterns such as `scans/*.png`, a table, or `-`.
        lines: paths, one a line, in the place of `-`.

    Raises:
        DataError: something is missing, there is nothing, or tables and images are mixed.
    """
    names = [name for argument in arguments for name in (_lines(lines) if argument == "-" else [argument])]
    tables = [name for name in names if Path(name).suffix.lower() in (*TABLES, ".txt") and os.path.isfile(name)]
    if tables:
        if len(names) > 1:
            raise DataError(
                f"Expected one table or any number of images, but got {first(names)}. Pass them one by one."
            )
        return _unlabelled_table(Path(tables[0]))
    paths = [path for name in names for path in _expand(name)]
    if not paths:
        raise DataError(
            f"Expected at least one image ({', '.join(SUFFIXES)}), but got none in {first(names) or 'nothing'}."
        )
    return Items("picture", [str(path) for path in paths], paths, None)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in lines if line.strip())


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if "\0" in name:
        raise DataError(f"Expected the path of an image, but got {name!r}.")
    if os.path.isdir(path):
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        visible = [p for p in found if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        if not visible:
            raise DataError(f"Expected {path} to hold images ({', '.join(SUFFIXES)}), but it has none.")
        return visible
    if os.path.lexists(path):
        return [path]
    if glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))
        if matches:
            return [p for match in matches for p in _expand(match) if p.suffix.lower() in SUFFIXES]
    raise DataError(f"Expected an image or a folder at {name!r}, but there is none; check the path.")


def _labelled_table(path: Path) -> Items:
    if path.suffix.lower() == ".csv":
        items = _read_csv(path)
        if items.labels is None:
            raise DataError(f"Expected {path} to have a column {' or '.join(_LABEL)}, but it has none; add it.")
        return items
    if path.suffix.lower() not in TABLES:
        raise DataError(
            f"Expected a folder of class folders, or a file {', '.join(TABLES)}, but got the file {path}; "
            "put images into a folder for each class."
        )
    source = read_embeddings(path)
    labels = [source.class_names[i] for i in source.labels.tolist()]
    X: Any = source.items.numpy()
    return Items("embedding", [f"row {i}" for i in range(len(labels))], X, labels)


def _unlabelled_table(path: Path) -> Items:
    if path.suffix.lower() == ".csv":
        return _read_csv(path)
    if path.suffix.lower() == ".txt":
        texts = list(_lines(_text(path).splitlines()))
        if not texts:
            raise DataError(f"Expected {path} to hold texts, one a line, but it is empty.")
        return Items("text", [f"line {i + 1}" for i in range(len(texts))], texts, None)
    if path.suffix.lower() == ".parquet":
        return _labelled_table(path)
    arrays = read_npz(path)
    there = [name for name in ("X", "embeddings", "features") if name in arrays]
    if len(there) != 1:
        raise DataError(f"Expected {path} to have one array `X`, but it has {first(sorted(arrays)) or 'none'}.")
    X = _numbers(arrays[there[0]], path)
    return Items("embedding", [f"row {i}" for i in range(len(X))], X, None)


def _read_csv(path: Path) -> Items:
    header, rows = _csv_rows(path)
    label, file, text, name = (_place(header, names) for names in (_LABEL, _PATH, _TEXT, _NAME))
    labels = None if label is None else [row[label] for row in rows]
    if labels is not None and "" in labels:
        raise DataError(f"Expected every row of {path} to have a label, but row {labels.index('') + 1} has none.")
    if file is not None:
        files = [path.parent / row[file] for row in rows]
        return Items("picture", [str(found) for found in files], files, labels)
    names = [row[name] if name is not None else f"row {i + 1}" for i, row in enumerate(rows)]
    if text is not None:
        return Items("text", names, [row[text] for row in rows], labels)
    columns = [i for i in range(len(header)) if i not in (label, name)]
    if not columns:
        raise DataError(
            f"Expected {path} to have a column path, a column text, or columns of numbers, but it has {first(header)}."
        )
    try:
        X = np.array([[float(row[i]) for i in columns] for row in rows])
    except ValueError as error:
        shown = first([header[i] for i in columns])
        raise DataError(
            f"Expected the columns {shown} of {path} to be numbers, but got: {error}. Name the columns label, path, "
            "text or name, or drop them."
        ) from error
    return Items("embedding", names, _numbers(X, path), labels)


def _csv_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    csv.field_size_limit(_MAX_FIELD)
    try:
        lines = list(itertools.islice(csv.reader(_text(path).splitlines()), _MAX_ROWS + 2))
    except csv.Error as error:
        raise DataError(f"Expected {path} to be a CSV file, but got: {error}.") from error
    if len(lines) > _MAX_ROWS + 1:
        raise DataError(f"Expected {path} to have at most {_MAX_ROWS:,} rows, but it has more. Split it.")
    table = [row for row in lines if row]
    if len(table) < 2:
        raise DataError(f"Expected {path} to have a header and rows, but it has {len(table)} lines.")
    header, rows = [name.strip() for name in table[0]], table[1:]
    uneven = [i + 2 for i, row in enumerate(rows) if len(row) != len(header)]
    if uneven:
        raise DataError(f"Expected {len(header)} columns in every line of {path}, but not so in lines {first(uneven)}.")
    if len(set(header)) < len(header):
        raise DataError(f"Expected the columns of {path} to have distinct names, but got {first(header)}.")
    return header, rows


def _place(header: list[str], names: tuple[str, ...]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"Expected {path} to be text in UTF-8, but got: {error}. Save it as UTF-8.") from error


def _numbers(X: Any, path: Path) -> Embeddings:
    if X.ndim != 2 or X.dtype.kind not in "fiu" or X.size == 0:
        raise DataError(f"Expected embeddings (n, D) in {path}, but got shape {X.shape} of {X.dtype}.")
    X = X.astype(np.float32 if X.dtype == np.float32 else np.float64, copy=False)
    bad = np.flatnonzero(~np.isfinite(X).all(1)).tolist()
    if bad:
        raise DataError(f"Expected finite numbers in {path}, but got NaN or infinity in rows {first(bad)}.")
    return X

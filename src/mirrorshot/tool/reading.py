"""Readers of items: folders and files of images, tables and arrays, with or without labels."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mirrorshot.files.imaging.folders import SUFFIXES, class_files, images_below, warn_of_others
from mirrorshot.files.texts import first
from mirrorshot.tool.items import Items
from mirrorshot.tool.tables import SUFFIXES as TABLES
from mirrorshot.tool.tables import Roles, read_items
from mirrorshot.types import DataError


def read_labelled(
    path: str | Path, *, text_column: str | None = None, label_column: str | None = None, numbers: Sequence[str] = ()
) -> Items:
    """Read labelled items: a folder of class folders, or a table.

    A table is a `.csv` file with a header, a `.jsonl` or a `.parquet` file. It has a column `label` and either a column
    `path` (of images, relative to the folder of the file), a column `text`, a column `embedding` of lists, or columns
    of numbers that form an embedding. A column `name` is optional. Some other usual names, such as `class`, are
    accepted, too. An `.npz` file has the arrays `X` (n, D) and `y` (n,), and optionally `class_names`; `y` then holds
    indices into them.

    Args:
        path: the folder or file.
        text_column: column of texts, if it has an unusual name.
        label_column: column of labels, if it has an unusual name.
        numbers: columns of measurements of a model (`Model.columns`); they are not searched for labels, names or texts.

    Raises:
        DataError: the folder or file is missing, empty, damaged or unlabelled. The message says what to do.
    """
    path = Path(path)
    if os.path.isfile(path):
        return read_items(path, Roles(text_column, label_column, numbers), labelled=True)
    if path.suffix.lower() in TABLES and not path.exists():
        raise DataError(f"Expected a table at {path}, but there is no such file; check the path.")
    files = class_files(path)
    pairs = [(label, file) for label, of_class in files.items() for file in of_class]
    labels, paths = [label for label, _ in pairs], [file for _, file in pairs]
    warn_of_others(path, paths)
    return Items("picture", [str(file) for file in paths], paths, labels)


def read_unlabelled(
    arguments: Sequence[str],
    lines: Iterable[str] = (),
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    numbers: Sequence[str] = (),
) -> Items:
    """Read items to classify, in the given order. Only items of a table can have labels.

    `arguments` are images, folders (all images in and below them), patterns such as `scans/*.png`, a table, or `-`,
    which stands for the paths in `lines`. A table has to be the only one. Options are those of `read_labelled`.
    """
    names = [name for argument in arguments for name in (_lines(lines) if argument == "-" else [argument])]
    tables = [name for name in names if Path(name).suffix.lower() in TABLES and os.path.isfile(name)]
    if tables:
        if len(names) > 1:
            raise DataError(
                f"Expected one table or any number of images, but got {first(names)}. Pass them one by one."
            )
        return read_items(Path(tables[0]), Roles(text_column, label_column, numbers))
    paths = [path for name in names for path in _expand(name)]
    if not paths:
        raise DataError(
            f"Expected at least one image ({', '.join(SUFFIXES)}) or a table, but got {first(names) or 'nothing'}."
        )
    return Items("picture", [str(path) for path in paths], paths, None)


def _lines(lines: Iterable[str]) -> Iterator[str]:
    return (line.rstrip("\r\n") for line in lines if line.strip())


def _expand(name: str) -> list[Path]:
    path = Path(name)
    if "\0" in name:
        raise DataError(f"Expected the path of an image, but got {name!r}.")
    if os.path.isdir(path):
        found = images_below(path)
        if not found:
            raise DataError(f"Expected {path} to hold images ({', '.join(SUFFIXES)}), but it has none.")
        return found
    if os.path.lexists(path):
        return [path]
    if glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))
        if matches:
            expanded = dict.fromkeys(p for match in matches for p in _expand(match))
            return [p for p in expanded if p.suffix.lower() in SUFFIXES]
        raise DataError(f"Expected images that match {name!r}, but there are none; check the pattern.")
    raise DataError(f"Expected an image, a folder or a table at {name!r}, but there is none; check the path.")

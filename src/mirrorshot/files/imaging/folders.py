"""Folders of images, one for each class."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

from mirrorshot.files.texts import count, first
from mirrorshot.types import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def class_files(root: Path) -> dict[str, list[Path]]:
    """Return the images of each class folder, both in order of their names; refuse empty class folders."""
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise DataError(f"Expected a folder of class folders at {root}, but it {problem}; check the path.")
    folders = class_folders(root)
    if not folders:
        raise DataError(
            f"Expected {root} to have a folder for each class, but it has none and {len(images_of(visible(root)))} "
            "images; put the images of each class into a folder of its name."
        )
    files = {folder.name: images_of(visible(folder)) for folder in folders}
    if empty := [name for name, of_class in files.items() if not of_class]:
        raise DataError(
            f"Expected every class folder of {root} to have images ({', '.join(SUFFIXES)}), "
            f"but {len(empty)} of {len(files)} have none: {first(empty)}; remove them or add images."
        )
    return files


def class_folders(root: Path) -> list[Path]:
    """Return the subfolders, without hidden ones and links to the folder or its parents."""
    return [entry for entry in visible(root) if entry.is_dir() and not _leads_back(entry, root)]


def images_below(root: Path) -> list[Path]:
    """Return the images in and below a folder, without hidden ones, in order."""

    def refuse(error: OSError) -> None:
        raise DataError(f"Expected to read all folders in {root}, but got: {error}.") from error

    found: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += images_of(Path(folder, name) for name in files if not name.startswith("."))
    return sorted(found)


def warn_of_others(root: Path, used: Iterable[Path]) -> None:
    """Warn of images in and below `root` that are not in `used`."""
    others = sorted({*images_below(root)} - {*used})
    if others:
        shown = first([str(path.relative_to(root)) for path in others], 3)
        warnings.warn(
            f"Left out {count(len(others), 'images')} of {root}, not directly in a class folder: {shown}.",
            stacklevel=3,
        )


def visible(folder: Path) -> list[Path]:
    """Return the entries of a folder, without hidden ones, in order."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"Expected {folder} to be readable, but got: {error}.") from error


def images_of(entries: Iterable[Path]) -> list[Path]:
    """Return the files with the suffix of an image."""
    return [entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file()]


def _leads_back(entry: Path, root: Path) -> bool:
    """Whether `entry` is a link to `root` or a parent of it."""
    target = entry.resolve()
    return entry.is_symlink() and (target == root.resolve() or target in root.resolve().parents)

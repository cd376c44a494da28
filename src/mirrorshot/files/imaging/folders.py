"""Folders of images, one for each class."""

from collections.abc import Iterable
from pathlib import Path

from mirrorshot.files.texts import first
from mirrorshot.types import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def class_files(root: Path) -> dict[str, list[Path]]:
    """Return the images of each class folder, both in order of their names. Only names are read."""
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise DataError(f"Expected a folder of class folders at {root}, but it {problem}; check the path.")
    inside = visible(root)
    folders = [entry for entry in inside if entry.is_dir() and not _leads_back(entry, root)]
    if not folders:
        raise DataError(
            f"Expected {root} to have a folder for each class, but it has none and {len(images_of(inside))} images; "
            "put the images of each class into a folder of its name."
        )
    files = {folder.name: images_of(visible(folder)) for folder in folders}
    if empty := [name for name, of_class in files.items() if not of_class]:
        raise DataError(
            f"Expected every class folder of {root} to have images ({', '.join(SUFFIXES)}), "
            f"but {len(empty)} of {len(files)} have none: {first(empty)}; remove them or add images."
        )
    return files


def visible(folder: Path) -> list[Path]:
    """Return what a folder holds, hidden entries left out, in order."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"Expected {folder} to be readable, but got: {error}.") from error


def images_of(entries: Iterable[Path]) -> list[Path]:
    """Return the images among files and folders, by their names."""
    return [entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file()]


def _leads_back(entry: Path, root: Path) -> bool:
    """Return whether a link leads to the folder that it is in, or above it."""
    target = entry.resolve()
    return entry.is_symlink() and (target == root.resolve() or target in root.resolve().parents)

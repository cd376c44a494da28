"""What the doctor looks at: every picture of a folder, read once."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.data.decoding import read_pictures
from mirrorshot.data.images import SUFFIXES
from mirrorshot.encoders import Embeddings, Encoder, is_colour
from mirrorshot.types import DataError

Progress = Callable[[int, int, str], None]
_HASH_SIZE = 256
_SIDE = 16
_AT_ONCE = 128
_BLANK = 8  # levels of 255
_NOISE = 6  # levels of 255


class Seen(NamedTuple):
    """Pictures of a folder.

    Attributes:
        root: the folder.
        names: of the readable ones, from the folder on.
        labels: their classes; empty text if the folder has no class folders.
        sizes: width and height of each.
        has_colour: whether each has colours.
        is_blank: whether each has one shade all over.
        digests: the same for the same pixels.
        hashes: perceptual hashes, (n, 256) of -1, 0 and 1.
        embeddings: (n, D), of length one.
        damaged: names of the unreadable ones, and why.
        empty: class folders without pictures.
    """

    root: Path
    names: list[str]
    labels: list[str]
    sizes: list[tuple[int, int]]
    has_colour: list[bool]
    is_blank: NDArray[np.bool_]
    digests: list[str]
    hashes: NDArray[np.float32]
    embeddings: Embeddings
    damaged: dict[str, str]
    empty: list[str]


class Files(NamedTuple):
    """Pictures of a folder by name only, with their classes, and class folders without any."""

    paths: list[Path]
    labels: list[str]
    empty: list[str]


def list_files(root: Path) -> Files:
    """Pictures of a folder: of its class folders, or of the folder itself if it has none.

    Raises:
        DataError: no such folder, or no picture in it.
    """
    if not root.is_dir():
        raise DataError(f"Expected a folder of pictures at {root}, but there is none; check the path.")
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    inside = {folder.name: _pictures(folder) for folder in folders} or {"": _pictures(root)}
    paths = [path for of_class in inside.values() for path in of_class]
    if not paths:
        raise DataError(f"Expected {root} to hold pictures ({', '.join(SUFFIXES)}), but it has none.")
    labels = [label for label, of_class in inside.items() for _ in of_class]
    return Files(paths, labels, [label for label, of_class in inside.items() if not of_class])


def look(root: Path, files: Files, encoder: Encoder, progress: Progress | None = None) -> Seen:
    """Read every picture once and keep what the checks need of it."""
    kept: list[int] = []
    damaged: dict[str, str] = {}
    facts: list[tuple[tuple[int, int], bool, bool, str]] = []
    hashes: list[NDArray[np.float32]] = []
    parts: list[Any] = []
    for start in range(0, len(files.paths), _AT_ONCE):
        if progress is not None:
            progress(start, len(files.paths), "reading pictures")
        found = read_pictures(files.paths[start : start + _AT_ONCE])
        pictures = [picture for picture in found if isinstance(picture, Image.Image)]
        for i, picture in enumerate(found, start=start):
            if isinstance(picture, str):
                damaged[str(files.paths[i].relative_to(root))] = picture
                continue
            kept.append(i)
            facts.append((picture.size, is_colour(picture), _is_blank(picture), _digest(picture)))
            hashes.append(perceptual_hash(picture))
        if pictures:
            parts.append(encoder.encode(pictures))
    embeddings = np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return Seen(
        root,
        [str(files.paths[i].relative_to(root)) for i in kept],
        [files.labels[i] for i in kept],
        [size for size, *_ in facts],
        [has_colour for _, has_colour, _, _ in facts],
        np.array([is_blank for _, _, is_blank, _ in facts], dtype=np.bool_),
        [digest for *_, digest in facts],
        np.stack(hashes) if hashes else np.zeros((0, _HASH_SIZE), np.float32),
        embeddings / np.where(length > 0, length, 1.0),
        damaged,
        files.empty,
    )


def perceptual_hash(picture: Image.Image) -> NDArray[np.float32]:
    """Whether each of 16 x 16 pixels is darker (-1), brighter (1) than its left neighbour, or neither (0), (256,).

    Alike for alike pictures, whatever their size and compression. Small differences count as none: where a picture is
    plain they are noise.

    Example:
        >>> perceptual_hash(Image.new("L", (30, 30))).shape
        (256,)
    """
    grey = np.asarray(picture.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BILINEAR), dtype=np.int16)
    step = grey[:, 1:] - grey[:, :-1]
    return np.asarray(np.sign(step) * (np.abs(step) > _NOISE), dtype=np.float32).ravel()


def _is_blank(picture: Image.Image) -> bool:
    return int(np.ptp(np.asarray(picture.convert("L")))) < _BLANK


def _digest(picture: Image.Image) -> str:
    pixels = picture.convert("RGB")
    return hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()


def _pictures(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return [entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file()]

"""Images of a folder, read once, with the facts that the checks need."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders import Embeddings, Encoder, is_colour
from mirrorshot.encoders.base import unit
from mirrorshot.files.imaging.folders import SUFFIXES
from mirrorshot.tool.encoding import Progress, read_batches
from mirrorshot.types import DataError

_SIDE = 16  # of a perceptual hash
_BLANK = 8  # levels of 255
_NOISE = 6  # levels of 255


class Seen(NamedTuple):
    """The readable images of a folder.

    Attributes:
        root: the folder.
        names: relative to the folder.
        labels: their classes; empty text if the folder has no class folders.
        sizes: width and height of each.
        has_colour: whether each has colours.
        is_blank: whether each has one shade all over.
        digests: equal for equal pixels.
        hashes: perceptual hashes, (n, 256) of -1, 0 and 1.
        embeddings: (n, D), of length one.
        damaged: names of the unreadable images, and the reasons.
        empty: class folders without images.
        noun: of the items, for messages.
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
    noun: str = "images"


class Files(NamedTuple):
    """Paths of the images of a folder, their classes, and class folders without images."""

    paths: list[Path]
    labels: list[str]
    empty: list[str]


def list_files(root: Path) -> Files:
    """List the images of the class folders or, if there are none, of the folder itself.

    Raises:
        DataError: no such folder, or no image in it.
    """
    if not root.is_dir():
        raise DataError(f"Expected a folder of images at {root}, but there is none; check the path.")
    try:
        folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        inside = {folder.name: _images(folder) for folder in folders} or {"": _images(root)}
    except PermissionError as error:
        raise DataError(f"Expected to read all folders in {root}, but got: {error}.") from error
    paths = [path for of_class in inside.values() for path in of_class]
    if not paths:
        raise DataError(f"Expected {root} to hold images ({', '.join(SUFFIXES)}), but it has none.")
    labels = [label for label, of_class in inside.items() for _ in of_class]
    return Files(paths, labels, [label for label, of_class in inside.items() if not of_class])


def look(root: Path, files: Files, encoder: Encoder, progress: Progress | None = None) -> Seen:
    """Read every image once and keep the facts that the checks need."""
    names = [str(path.relative_to(root)) for path in files.paths]
    kept: list[int] = []
    damaged: dict[str, str] = {}
    facts: list[tuple[tuple[int, int], bool, bool, str, NDArray[np.float32]]] = []
    parts: list[Any] = [np.zeros((0, 1), np.float32)]
    for batch in read_batches(files.paths, progress):
        images = {i: image for i, image in batch.items() if isinstance(image, Image.Image)}
        damaged |= {names[i]: reason for i, reason in batch.items() if isinstance(reason, str)}
        kept += images
        facts += [(x.size, is_colour(x), _is_blank(x), _digest(x), perceptual_hash(x)) for x in images.values()]
        if images:
            parts.append(encoder.encode(list(images.values())))
    sizes, has_colour, is_blank, digests, hashes = zip(*facts, strict=True) if facts else ((),) * 5
    return Seen(
        root=root,
        names=[names[i] for i in kept],
        labels=[files.labels[i] for i in kept],
        sizes=list(sizes),
        has_colour=list(has_colour),
        is_blank=np.array(is_blank, dtype=np.bool_),
        digests=list(digests),
        hashes=np.array(hashes, dtype=np.float32).reshape(-1, _SIDE**2),
        embeddings=unit(np.concatenate(parts[1:] or parts)),
        damaged=damaged,
        empty=files.empty,
    )


def perceptual_hash(image: Image.Image) -> NDArray[np.float32]:
    """Whether each of 16 x 16 pixels is darker (-1), brighter (1) than its left neighbour, or neither (0), (256,).

    Alike for alike images, whatever their size and compression. Small differences count as none: where an image is
    plain they are noise.

    Example:
        >>> perceptual_hash(Image.new("L", (30, 30))).shape
        (256,)
    """
    grey = np.asarray(image.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BILINEAR), dtype=np.int16)
    step = grey[:, 1:] - grey[:, :-1]
    return np.asarray(np.sign(step) * (np.abs(step) > _NOISE), dtype=np.float32).ravel()


def _is_blank(image: Image.Image) -> bool:
    return int(np.ptp(np.asarray(image.convert("L")))) < _BLANK


def _digest(image: Image.Image) -> str:
    pixels = image.convert("RGB")
    return hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()


def _images(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return [entry for entry in entries if entry.suffix.lower() in SUFFIXES and entry.is_file()]

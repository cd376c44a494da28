"""Images of a folder, and the inputs of the checks."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.data.decoding import Progress
from mirrorshot.encoders import Embeddings, Encoder, is_colour
from mirrorshot.encoders.base import unit
from mirrorshot.files.imaging.folders import SUFFIXES, class_folders, images_of, visible, warn_of_others
from mirrorshot.tool.encoding import look_at_images
from mirrorshot.tool.items import Items
from mirrorshot.types import DataError

_SIDE = 16  # of a perceptual hash
_BLANK = 8  # range of grey levels, of 255, below which an image is blank
_NOISE = 6  # difference of grey levels, of 255, up to which neighbours count as equal


class Seen(NamedTuple):
    """The readable images of a folder, or rows of a table."""

    root: Path
    names: list[str]  # relative to the folder
    labels: list[str]  # empty strings if there are no class folders
    sizes: list[tuple[int, int]]  # width and height
    has_colour: list[bool]
    is_blank: NDArray[np.bool_]
    digests: list[str]  # equal for equal pixels
    hashes: NDArray[np.float32]  # perceptual hashes, (n, 256) of -1, 0 and 1
    embeddings: Embeddings  # (n, D), of length one
    damaged: dict[str, str]  # names of the unreadable images, and the reasons
    empty: list[str]  # class folders without images
    noun: str = "images"  # word for the items in messages


def list_images(root: Path) -> tuple[Items, list[str]]:
    """Return the images of the class folders or, without any, of the folder itself; and the empty class folders."""
    if not root.is_dir():
        raise DataError(f"Expected a folder of images at {root}, but there is none; check the path.")
    inside: dict[str | None, list[Path]] = {place.name: images_of(visible(place)) for place in class_folders(root)}
    inside = inside or {None: images_of(visible(root))}
    paths = [path for of_class in inside.values() for path in of_class]
    warn_of_others(root, paths)
    if not paths:
        raise DataError(f"Expected {root} to hold images ({', '.join(SUFFIXES)}), but it has none.")
    names = [str(path.relative_to(root)) for path in paths]
    labels = [label for label, of_class in inside.items() if label is not None for _ in of_class]
    return Items("picture", names, paths, labels or None), [str(c) for c, of_class in inside.items() if not of_class]


def look_at_folder(
    root: Path, items: Items, empty: list[str], encoder: Encoder, progress: Progress | None = None
) -> Seen:
    """Read every image once and compute the inputs of the checks."""
    found, embeddings, facts, damaged = look_at_images(encoder, items, _facts, progress)
    sizes, has_colour, is_blank, digests, hashes = zip(*facts, strict=True) if facts else ((),) * 5
    return Seen(
        root=root,
        names=found.names,
        labels=found.labels or [""] * len(found.names),
        sizes=list(sizes),
        has_colour=list(has_colour),
        is_blank=np.array(is_blank, dtype=np.bool_),
        digests=list(digests),
        hashes=np.array(hashes, dtype=np.float32).reshape(-1, _SIDE**2),
        embeddings=unit(embeddings),
        damaged=damaged,
        empty=empty,
    )


def _facts(image: Image.Image) -> tuple[tuple[int, int], bool, bool, str, NDArray[np.float32]]:
    """Size, whether it has colours, whether it is blank, digest and perceptual hash."""
    is_blank = int(np.ptp(np.asarray(image.convert("L")))) < _BLANK
    pixels = image.convert("RGB")
    digest = hashlib.sha256(f"{pixels.size}".encode() + pixels.tobytes()).hexdigest()
    return image.size, is_colour(image), is_blank, digest, perceptual_hash(image)


def perceptual_hash(image: Image.Image) -> NDArray[np.float32]:
    """Sign of the difference of each of 16 x 16 pixels from its left neighbour, 0 for small differences, (256,).

    Similar images have similar hashes, whatever their size and compression. Small differences are ignored because they
    are noise where an image is plain.

    Example:
        >>> perceptual_hash(Image.new("L", (30, 30))).shape
        (256,)
    """
    grey = np.asarray(image.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BILINEAR), dtype=np.int16)
    step = grey[:, 1:] - grey[:, :-1]
    return np.asarray(np.sign(step) * (np.abs(step) > _NOISE), dtype=np.float32).ravel()

"""Benchmark data in the file layouts of their authors.

Functions `find_*` return the place of a layout in a folder, or None; functions `read_*` read it.
"""

import csv
import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.data.decoding import Progress
from mirrorshot.data.images import read_files
from mirrorshot.data.source import ClassSource
from mirrorshot.files.imaging.folders import class_files
from mirrorshot.files.texts import first
from mirrorshot.types import DataError

Splits = dict[str, tuple[str, ...]]
"""Names of the classes of each split: train, val, test."""

EMNIST_PER_CLASS = 200  # as in the subset of Dong and Xing (2018)
EMNIST_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Vinyals et al. (2016) train on the first 1,200 characters; Snell et al. (2017) validate on five alphabets of these.
_VALIDATION_ALPHABETS = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")
_N_EVALUATION_TRAIN = 236  # characters of images_evaluation/ among the first 1,200
_MAX_IDX = 2**20  # maximum number of images in a file of EMNIST; the largest file has 697,932
_EMNIST_PARTS = ("train", "test")
_LISTS = ("train", "val", "test")


def _find(folder: Path, places: Sequence[str], *inside: str) -> Path | None:
    candidates = (folder / place for place in places)
    return next((place for place in candidates if all((place / name).exists() for name in inside)), None)


def find_omniglot(folder: Path) -> Path | None:
    """Return the folder with `images_background/` and `images_evaluation/`."""
    return _find(folder, (".", "omniglot", "omniglot-py"), "images_background", "images_evaluation")


def read_omniglot(root: Path, progress: Progress | None = None, skip_corrupt: bool = False) -> ClassSource:
    """Read all 1,623 characters, `Alphabet/characterNN`, as 28 x 28 images of white ink on black."""
    files: dict[str, list[Path]] = {}
    for part in ("images_background", "images_evaluation"):
        for alphabet in _folders(root / part):
            characters = class_files(alphabet)
            files |= {f"{alphabet.name}/{name}": paths for name, paths in characters.items()}
    source = read_files(
        dict(sorted(files.items())),
        root=root,
        size=28,
        channels=1,
        resample=Image.Resampling.LANCZOS,
        skip_corrupt=skip_corrupt,
        progress=progress,
    )
    return source._replace(items=255 - source.items, sizes=None)


def omniglot_splits(root: Path) -> Splits:
    """Return the split of Vinyals et al. (2016): 1,028 / 172 / 423 characters."""
    background, evaluation = (
        [f"{alphabet.name}/{c.name}" for alphabet in _folders(root / part) for c in _folders(alphabet)]
        for part in ("images_background", "images_evaluation")
    )
    val = [name for name in background if name.split("/")[0] in _VALIDATION_ALPHABETS]
    train = [name for name in background if name not in val] + evaluation[:_N_EVALUATION_TRAIN]
    return {"train": tuple(sorted(train)), "val": tuple(val), "test": tuple(evaluation[_N_EVALUATION_TRAIN:])}


def find_cub(folder: Path) -> Path | None:
    """Return the folder `images/` of CUB-200-2011, with one folder for each of 200 species."""
    root = _find(folder, ("CUB_200_2011", "cub/CUB_200_2011"), "images")
    root = root or _find(folder, (".",), "images", "classes.txt")
    return root and root / "images"


def read_cub(root: Path, progress: Progress | None = None, skip_corrupt: bool = False) -> ClassSource:
    """Read all photographs, resized to 192 x 192."""
    files, resample = class_files(root), Image.Resampling.BICUBIC
    return read_files(files, root=root, size=192, resample=resample, skip_corrupt=skip_corrupt, progress=progress)


def cub_splits(names: Sequence[str]) -> Splits:
    """Split classes by their alphabetical order: train, val, train, test, and so on.

    Example:
        >>> cub_splits(["a", "b", "c", "d", "e"])
        {'train': ('a', 'c', 'e'), 'val': ('b',), 'test': ('d',)}
    """
    names = sorted(names)
    return {"train": tuple(names[::2]), "val": tuple(names[1::4]), "test": tuple(names[3::4])}


def find_mini_imagenet(folder: Path) -> Path | None:
    """Return the folder with `images/` and the lists of Ravi and Larochelle (2017)."""
    places = (".", "mini_imagenet", "mini-imagenet", "miniImagenet", "miniimagenet")
    return _find(folder, places, "images", "train.csv", "val.csv", "test.csv")


def read_mini_imagenet(root: Path, progress: Progress | None = None, skip_corrupt: bool = False) -> ClassSource:
    """Read all images of the three lists at 84 x 84."""
    files: dict[str, list[Path]] = {}
    for split in _LISTS:
        for name, label in _rows(root / f"{split}.csv"):
            files.setdefault(label, []).append(root / "images" / name)
    missing = [path.name for paths in files.values() for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"Expected the images of the lists in {root / 'images'}, but {len(missing)} are missing: "
            f"{first(missing)}; get them again."
        )
    return read_files(files, root=root, size=84, skip_corrupt=skip_corrupt, progress=progress)


def mini_imagenet_splits(root: Path) -> Splits:
    """Return the classes of the three lists: 64 / 16 / 20."""
    splits = {split: tuple(dict.fromkeys(label for _, label in _rows(root / f"{split}.csv"))) for split in _LISTS}
    names = [name for split in splits.values() for name in split]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"Expected the lists in {root} to share no class, but they do: {first(twice)}.")
    return splits


def _rows(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(row["filename"], row["label"]) for row in csv.DictReader(file)]
    except (KeyError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"Expected {path} to be a list of filename,label, but got: {error!r}.") from error
    strange = [name for name, label in rows if not name or not label or Path(name).name != name]
    if strange or not rows:
        raise DataError(f"Expected {path} to list names of files, without folders, but got {first(strange) or 'none'}.")
    return rows


def find_emnist(folder: Path) -> Path | None:
    """Return the folder with an `emnist-byclass-{train,test}-images-idx3-ubyte` file or its `.gz` version."""
    places = (folder / place for place in (".", "emnist", "gzip", "EMNIST/raw"))
    return next((p for p in places if any(_idx(p, part, "images-idx3") for part in _EMNIST_PARTS)), None)


def read_emnist(root: Path) -> ClassSource:
    """Read the first 200 images of each of 62 characters, upright, white ink on black."""
    images: list[list[NDArray[np.uint8]]] = [[] for _ in EMNIST_CHARACTERS]
    for part in _EMNIST_PARTS:
        if (image_file := _idx(root, part, "images-idx3")) is not None:
            _add_emnist(images, image_file, _idx(root, part, "labels-idx1"))
    empty = [name for name, of_class in zip(EMNIST_CHARACTERS, images, strict=True) if not of_class]
    if empty:
        raise DataError(f"Expected images of 62 characters in {root}, but {len(empty)} have none: {first(empty)}.")
    items = np.stack([image for of_class in images for image in of_class])
    labels = torch.arange(len(images)).repeat_interleave(torch.tensor([len(of_class) for of_class in images]))
    # images are transposed in the official files
    return ClassSource(torch.from_numpy(items).mT[:, None].contiguous(), labels, tuple(EMNIST_CHARACTERS))


def _add_emnist(images: list[list[NDArray[np.uint8]]], image_file: Path, labels: Path | None) -> None:
    if labels is None:
        raise DataError(f"Expected a file of labels beside {image_file}, but there is none.")
    y = _read_idx(labels, ())
    if y.max(initial=0) >= len(images):
        raise DataError(f"Expected labels 0 to {len(images) - 1} in {labels}, but got {y.max()}.")
    wanted = [np.flatnonzero(y == c)[: EMNIST_PER_CLASS - len(images[c])] for c in range(len(images))]
    n_read = max((int(rows.max(initial=-1)) + 1 for rows in wanted), default=0)
    X = _read_idx(image_file, (28, 28), n_read)
    if len(X) < n_read:
        raise DataError(f"Expected {image_file} to have an image for each of {len(y)} labels, but it has fewer.")
    for of_class, rows in zip(images, wanted, strict=True):
        of_class += list(X[rows])


def _idx(folder: Path, part: str, kind: str) -> Path | None:
    names = [f"emnist-byclass-{part}-{kind}-ubyte{suffix}" for suffix in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_idx(path: Path, shape: tuple[int, ...], n_most: int = _MAX_IDX) -> NDArray[np.uint8]:
    """Read the first items of a file in LeCun's idx format: two zeros, type 8 for bytes, dimensions, sizes, bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            n = min(_idx_items(file.read(4 * (2 + len(shape))), shape), n_most)
            content = file.read(n * math.prod(shape))
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"Expected {path} to be a file of EMNIST, but it cannot be read: {error}.") from error
    if len(content) < n * math.prod(shape):
        raise DataError(f"Expected {path} to be complete, but it ends too early; get it again.")
    return np.frombuffer(content, np.uint8).reshape(n, *shape)


def _idx_items(header: bytes, shape: tuple[int, ...]) -> int:
    magic, n, *rest = struct.unpack(f">{2 + len(shape)}I", header)
    if magic != 0x801 + len(shape) or tuple(rest) != shape or not 0 < n <= _MAX_IDX:
        raise ValueError(f"the header has {magic:#x}, {n} items of shape {tuple(rest)}")
    return int(n)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))

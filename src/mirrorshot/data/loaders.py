"""Loaders of the benchmark data sets, from packed archives or else from the files of their authors."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mirrorshot.data import public
from mirrorshot.data.cache import read_npz
from mirrorshot.data.decoding import Progress
from mirrorshot.data.glyphs import load_glyphs
from mirrorshot.data.packed import read_packed
from mirrorshot.data.source import ClassSource
from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError

SPLITS = ("train", "val", "test")


class Request(NamedTuple):
    """Location of the data, and options for reading."""

    folder: Path | None
    progress: Progress | None
    skip_corrupt: bool


class _Files(NamedTuple):
    """Packed archives, search function for the published files, names of both for messages, and download source."""

    packed: tuple[str, ...]
    find: Callable[[Path], Path | None]
    wanted: str
    origin: str


_FILES = {
    "cub": _Files(
        ("cub192.npz",), public.find_cub, "cub192.npz or CUB_200_2011/images",
        "CUB-200-2011 from https://www.vision.caltech.edu/datasets/cub_200_2011/",
    ),
    "mini_imagenet": _Files(
        ("miniimagenet84_0.npz", "miniimagenet84_1.npz"), public.find_mini_imagenet,
        "miniimagenet84_0.npz and miniimagenet84_1.npz, or images, train.csv, val.csv and test.csv",
        "the images from https://image-net.org and the lists of Ravi and Larochelle from "
        "https://github.com/twitter-research/meta-learning-lstm/tree/master/data/miniImagenet",
    ),
    "omniglot": _Files(
        ("omniglot.npz",), public.find_omniglot, "omniglot.npz or images_background",
        "images_background.zip and images_evaluation.zip from https://github.com/brendenlake/omniglot",
    ),
    "emnist": _Files(
        ("emnist.npz",), public.find_emnist, "emnist.npz or emnist-byclass-train-images-idx3-ubyte.gz",
        "the binary EMNIST files from https://www.nist.gov/itl/products-and-services/emnist-dataset",
    ),
}  # fmt: skip


def check_present(name: str) -> None:
    """Check that the files of a benchmark data set are in the folder `MIRRORSHOT_DATA`, without reading them.

    Raises `DataError` with the download source if files are missing.
    """
    where = os.environ.get("MIRRORSHOT_DATA")
    request = Request(Path(where) if where else None, None, False)
    for part in () if name == "glyphs" else name.split("_to_"):
        _locate(request, part)


def glyphs(request: Request, split: str) -> ClassSource:
    """Load characters of fonts, or handwritten digits."""
    return load_glyphs(split)  # type: ignore[arg-type]


def cub(request: Request, split: str) -> ClassSource:
    """Load CUB-200-2011 at 192 x 192, with the sizes of the originals."""
    place = _locate(request, "cub")
    if isinstance(place, list):
        return read_packed(place, split=split, progress=request.progress)
    source = public.read_cub(place, request.progress, request.skip_corrupt)
    return source.subset(public.cub_splits(source.class_names)[split])


def mini_imagenet(request: Request, split: str | None) -> ClassSource:
    """Load mini-ImageNet at 84 x 84; all 100 classes if `split` is None."""
    place = _locate(request, "mini_imagenet")
    if isinstance(place, list):
        return read_packed(place, split=split, progress=request.progress)
    source = public.read_mini_imagenet(place, request.progress, request.skip_corrupt)
    return source if split is None else source.subset(public.mini_imagenet_splits(place)[split])


def mini_imagenet_to_cub(request: Request, split: str) -> ClassSource:
    """Load all of mini-ImageNet for training, CUB-200-2011 for validation and test."""
    return mini_imagenet(request, None) if split == "train" else cub(request, split)


def omniglot(request: Request, split: str) -> ClassSource:
    """Load Omniglot in the split of Vinyals et al., white ink on black."""
    source, splits = _read_omniglot(request)
    return source.subset(splits[split])


def omniglot_to_emnist(request: Request, split: str) -> ClassSource:
    """Load Omniglot without the Latin alphabet, or EMNIST: even labels for validation, odd ones for test."""
    if split == "train":
        source, _ = _read_omniglot(request)
        return source.subset([name for name in source.class_names if not name.startswith("Latin/")])
    source = _read_emnist(request)
    return source.subset(range(0 if split == "val" else 1, source.n_classes, 2))


def _read_omniglot(request: Request) -> tuple[ClassSource, public.Splits]:
    place = _locate(request, "omniglot")
    if not isinstance(place, list):
        return public.read_omniglot(place, request.progress, request.skip_corrupt), public.omniglot_splits(place)
    arrays = _arrays(place[0], "images28", "cls", "class_names", "class_vinyals_split")
    source = _characters(place[0], arrays["images28"], arrays["cls"], arrays["class_names"])
    of_class = arrays["class_vinyals_split"].tolist()
    splits = {
        split: tuple(name for name, number in zip(source.class_names, of_class, strict=False) if number == i)
        for i, split in enumerate(SPLITS)
    }
    return source._replace(items=255 - source.items), splits


def _read_emnist(request: Request) -> ClassSource:
    place = _locate(request, "emnist")
    if not isinstance(place, list):
        return public.read_emnist(place)
    arrays = _arrays(place[0], "images", "labels", "label_chars")
    return _characters(place[0], arrays["images"], arrays["labels"], arrays["label_chars"])


def _characters(path: Path, images: NDArray[Any], labels: NDArray[Any], names: NDArray[Any]) -> ClassSource:
    try:
        return ClassSource.from_arrays(images, labels, names.tolist())
    except (DataError, InvalidInputError) as error:
        raise DataError(f"{path} is damaged; copy it again. {error}") from error


def _arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    arrays = read_npz(path)
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"Expected {path} to be the packed data set, but these arrays are missing: {first(missing)}.")
    return arrays


def _locate(request: Request, name: str) -> list[Path] | Path:
    """Return the packed archives of a data set or, without them, the folder of the published files."""
    packed, find, wanted, origin = _FILES[name]
    folder, value = request.folder, os.environ.get("MIRRORSHOT_DATA")
    setting = f" (MIRRORSHOT_DATA is {value!r})" if value else " (MIRRORSHOT_DATA is not set)"
    if folder is None:
        raise DataError(
            f"Expected a folder with the data of {name!r}, but `folder` is None and MIRRORSHOT_DATA is not set; "
            f"set it to a folder with {origin}."
        )
    if not folder.is_dir():
        raise DataError(f"Expected the data of {name!r} in {folder}, but there is no such folder{setting}.")
    archives = [folder / file for file in packed]
    if all(archive.is_file() for archive in archives):
        return archives
    root = find(folder)
    if root is None:
        raise DataError(
            f"Expected {wanted} in {folder}, but they are not there{setting}; get {origin} and unpack them there."
        )
    return root

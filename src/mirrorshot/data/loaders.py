"""One loader for each benchmark data set: packed if that is there, otherwise as its authors publish it."""

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
from mirrorshot.data.source import ClassSource, first
from mirrorshot.types import DataError, InvalidInputError

SPLITS = ("train", "val", "test")
_ORIGINS = {
    "cub": "CUB-200-2011 from https://www.vision.caltech.edu/datasets/cub_200_2011/",
    "mini_imagenet": "the pictures from https://image-net.org and the lists of Ravi and Larochelle from "
    "https://github.com/twitter-research/meta-learning-lstm/tree/master/data/miniImagenet",
    "omniglot": "images_background.zip and images_evaluation.zip from https://github.com/brendenlake/omniglot",
    "emnist": "the binary EMNIST files from https://www.nist.gov/itl/products-and-services/emnist-dataset",
}


_FILES: dict[str, tuple[tuple[str, ...], Callable[[Path], Path | None], str]] = {
    "cub": (("cub192.npz",), public.find_cub, "cub192.npz or CUB_200_2011/images"),
    "mini_imagenet": (
        ("miniimagenet84_0.npz", "miniimagenet84_1.npz"),
        public.find_mini_imagenet,
        "miniimagenet84_0.npz and miniimagenet84_1.npz, or images, train.csv, val.csv and test.csv",
    ),
    "omniglot": (("omniglot.npz",), public.find_omniglot, "omniglot.npz or images_background"),
    "emnist": (("emnist.npz",), public.find_emnist, "emnist.npz or emnist-byclass-train-images-idx3-ubyte.gz"),
}
"""For each data set: its packed files, what finds the published ones, and both in words."""


class Request(NamedTuple):
    """Where to look, and how to read."""

    folder: Path | None
    progress: Progress | None
    skip_corrupt: bool


def check_present(name: str, folder: Path | None = None) -> None:
    """Look for the files of a benchmark data set, without reading them.

    Args:
        name: its name.
        folder: where to look. None: the environment variable `MIRRORSHOT_DATA`.

    Raises:
        DataError: they are not there. The message says what to get.
    """
    where = folder or os.environ.get("MIRRORSHOT_DATA")
    request = Request(Path(where) if where else None, None, False)
    parts = {
        "glyphs": (),
        "mini_imagenet_to_cub": ("mini_imagenet", "cub"),
        "omniglot_to_emnist": ("omniglot", "emnist"),
    }
    for part in parts.get(name, (name,)):
        place = _folder(request, part)
        packed, find, wanted = _FILES[part]
        if not all((place / file).is_file() for file in packed):
            _found(find(place), place, part, wanted)


def glyphs(request: Request, split: str) -> ClassSource:
    """Characters of fonts, and handwritten digits; always there."""
    return load_glyphs(split)  # type: ignore[arg-type]


def cub(request: Request, split: str) -> ClassSource:
    """CUB-200-2011 at 192 x 192, with the sizes of the originals."""
    folder = _folder(request, "cub")
    if (packed := folder / "cub192.npz").is_file():
        return read_packed(packed, split=split, progress=request.progress)
    root = _found(public.find_cub(folder), folder, "cub", _FILES["cub"][2])
    source = public.read_cub(root, request.progress, request.skip_corrupt)
    return source.subset(public.cub_splits(source.class_names)[split])


def mini_imagenet(request: Request, split: str | None) -> ClassSource:
    """mini-ImageNet at 84 x 84; without a split all 100 classes."""
    folder = _folder(request, "mini_imagenet")
    parts = [folder / f"miniimagenet84_{i}.npz" for i in (0, 1)]
    if all(part.is_file() for part in parts):
        return read_packed(parts, split=split, progress=request.progress)
    root = _found(public.find_mini_imagenet(folder), folder, "mini_imagenet", _FILES["mini_imagenet"][2])
    source = public.read_mini_imagenet(root, request.progress, request.skip_corrupt)
    return source if split is None else source.subset(public.mini_imagenet_splits(root)[split])


def mini_imagenet_to_cub(request: Request, split: str) -> ClassSource:
    """All of mini-ImageNet for training, CUB-200-2011 for the rest."""
    return mini_imagenet(request, None) if split == "train" else cub(request, split)


def omniglot(request: Request, split: str) -> ClassSource:
    """Omniglot, split of Vinyals et al., white ink on black."""
    source, splits = _read_omniglot(request)
    return source.subset(splits[split])


def omniglot_to_emnist(request: Request, split: str) -> ClassSource:
    """Omniglot without the Latin alphabet, then EMNIST: even labels for validation, odd ones for test."""
    if split == "train":
        source, _ = _read_omniglot(request)
        return source.subset([name for name in source.class_names if not name.startswith("Latin/")])
    source = _read_emnist(request)
    return source.subset(range(0 if split == "val" else 1, source.n_classes, 2))


def _read_omniglot(request: Request) -> tuple[ClassSource, public.Splits]:
    """All characters, white ink on black, and the split of Vinyals et al."""
    folder = _folder(request, "omniglot")
    if not (packed := folder / "omniglot.npz").is_file():
        root = _found(public.find_omniglot(folder), folder, "omniglot", _FILES["omniglot"][2])
        return public.read_omniglot(root, request.progress, request.skip_corrupt), public.omniglot_splits(root)
    arrays = _arrays(packed, "images28", "cls", "class_names", "class_vinyals_split")
    source = _characters(packed, arrays["images28"], arrays["cls"], arrays["class_names"])
    of_class = arrays["class_vinyals_split"].tolist()
    splits = {
        split: tuple(name for name, number in zip(source.class_names, of_class, strict=False) if number == i)
        for i, split in enumerate(SPLITS)
    }
    return source._replace(items=255 - source.items), splits


def _read_emnist(request: Request) -> ClassSource:
    folder = _folder(request, "emnist")
    if not (packed := folder / "emnist.npz").is_file():
        return public.read_emnist(_found(public.find_emnist(folder), folder, "emnist", _FILES["emnist"][2]))
    arrays = _arrays(packed, "images", "labels", "label_chars")
    return _characters(packed, arrays["images"], arrays["labels"], arrays["label_chars"])


def _characters(path: Path, pictures: NDArray[Any], labels: NDArray[Any], names: NDArray[Any]) -> ClassSource:
    try:
        return ClassSource.from_arrays(pictures, labels, names.tolist())
    except (DataError, InvalidInputError) as error:
        raise DataError(f"{path} is damaged; copy it again. {error}") from error


def _folder(request: Request, name: str) -> Path:
    if request.folder is None:
        raise DataError(
            f"Expected a folder with the data of {name!r}, but `folder` is None and MIRRORSHOT_DATA is not set; "
            f"set it to a folder with {_ORIGINS[name]}."
        )
    if not request.folder.is_dir():
        raise DataError(f"Expected the data of {name!r} in {request.folder}, but there is no such folder{_setting()}.")
    return request.folder


def _found(root: Path | None, folder: Path, name: str, wanted: str) -> Path:
    if root is None:
        raise DataError(
            f"Expected {wanted} in {folder}, but they are not there{_setting()}; "
            f"get {_ORIGINS[name]} and unpack them there."
        )
    return root


def _setting() -> str:
    value = os.environ.get("MIRRORSHOT_DATA")
    return f" (MIRRORSHOT_DATA is {value!r})" if value else " (MIRRORSHOT_DATA is not set)"


def _arrays(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    arrays = read_npz(path)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(f"Expected {path} to be the packed data set, but these arrays are missing: {first(missing)}.")
    return arrays

"""Benchmark data sets by name, and own data by path.

`glyphs` is always available; `loaders` reads the images of the other benchmarks from a folder.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from mirrorshot.data import loaders
from mirrorshot.data.augment import CHARACTER_MEAN, CHARACTER_STD, IMAGENET_MEAN, IMAGENET_STD, evaluation_pictures
from mirrorshot.data.decoding import Progress
from mirrorshot.data.embeddings import SUFFIXES as EMBEDDING_SUFFIXES
from mirrorshot.data.embeddings import read_embeddings
from mirrorshot.data.images import read_folder
from mirrorshot.data.loaders import SPLITS, Request
from mirrorshot.data.source import ClassSource
from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError

_STORED = 192  # side of own training images in pixels, larger than the input for random crops


class Dataset(NamedTuple):
    """Classes for training, validation and test; None for splits that were not loaded.

    Training images may be larger than `image_size`, for random crops; the others have been cropped for evaluation.
    """

    name: str  # or path
    train: ClassSource | None
    val: ClassSource | None
    test: ClassSource | None
    image_size: int  # side of the backbone's input in pixels; 0 for embeddings
    channels: int  # 3 for colour, 1 for grey; 0 for embeddings
    augment: bool  # whether training images are augmented by default
    mean: tuple[float, ...]  # of each channel, for pixels in [0, 1]
    std: tuple[float, ...]


class Description(NamedTuple):
    """Description of a benchmark data set.

    Photographs are in colour, 84 x 84 and augmented; characters are 28 x 28, white ink on black.
    """

    title: str
    classes: tuple[int, int, int]  # for training, validation and test
    kind: Literal["characters", "photographs"]
    deviations: tuple[str, ...]  # from the paper's set-up
    load: Callable[[Request, str], ClassSource]  # loads one split
    epochs: tuple[int, int] = (600, 400)  # of the paper, for one shot and for more
    is_benchmark: bool = True  # one of the paper's experiments


def load_dataset(
    name_or_path: str | Path,
    *,
    folder: str | Path | None = None,
    splits: Sequence[str] = SPLITS,
    progress: Progress | None = None,
    skip_corrupt: bool = False,
) -> Dataset:
    """Load a benchmark data set by name, or own data by path.

    Own images: a folder with the subfolders `train`, `val` and `test`, each with one folder of images per class. Own
    embeddings: files `train.npz`, `val.npz` and `test.npz` in a folder (or `.parquet`, see `read_embeddings`), or a
    single file whose classes are all test classes.

    Benchmark data are in `folder`; None: the environment variable `MIRRORSHOT_DATA`. `skip_corrupt` leaves out image
    files that cannot be decoded, with a warning; packed archives ignore it. Raises `DataError` if the data are missing
    or unsuitable.

    Example:
        >>> digits = load_dataset("glyphs", splits=["test"])
        >>> digits.test.n_classes, digits.image_size, digits.train
        (10, 28, None)
    """
    if isinstance(splits, str) or not splits or not set(splits) <= set(SPLITS):
        raise InvalidInputError(f"Expected `splits` to be some of {list(SPLITS)}, but got {splits!r}.")
    folder = folder or os.environ.get("MIRRORSHOT_DATA")
    request = Request(Path(folder) if folder else None, progress, skip_corrupt)
    if str(name_or_path) in DATASETS:
        return _load_benchmark(str(name_or_path), request, splits)
    path = Path(name_or_path)
    if not os.path.exists(path):  # unlike Path.exists, raises no error for impossible names
        raise DataError(
            f"Expected a data set ({', '.join(DATASETS)}) or a path, but {str(name_or_path)!r} is neither; "
            "check the spelling."
        )
    return _load_file(path, splits) if path.is_file() else _load_folder(path, request, splits)


def _load_benchmark(name: str, request: Request, splits: Sequence[str]) -> Dataset:
    description = DATASETS[name]
    train, val, test = (description.load(request, split) if split in splits else None for split in SPLITS)
    if description.kind == "photographs":
        return _photographs(name, train, val, test)
    return Dataset(name, train, val, test, 28, 1, False, CHARACTER_MEAN, CHARACTER_STD)


def _photographs(name: str, train: ClassSource | None, val: ClassSource | None, test: ClassSource | None) -> Dataset:
    val, test = (part and evaluation_pictures(part, 84) for part in (val, test))
    return Dataset(name, train, val, test, 84, 3, True, IMAGENET_MEAN, IMAGENET_STD)


def _load_file(path: Path, splits: Sequence[str]) -> Dataset:
    if "test" not in splits:
        raise DataError(
            f"Expected `splits` to contain 'test', the only split of the file {path}, but got {list(splits)}; "
            "for others put train.npz, val.npz and test.npz into a folder."
        )
    return Dataset(str(path), None, None, read_embeddings(path), 0, 0, False, (), ())


def _load_folder(path: Path, request: Request, splits: Sequence[str]) -> Dataset:
    files = {split: [path / f"{split}{suffix}" for suffix in EMBEDDING_SUFFIXES] for split in splits}
    found = {split: next((file for file in files[split] if file.is_file()), path / split) for split in splits}
    missing = [split for split in splits if not found[split].exists()]
    if missing:
        raise DataError(
            f"Expected {path} to have the folders or files of the splits {', '.join(splits)}, but {first(missing)} are "
            "missing; add them, or name the splits that are there in `splits`."
        )
    are_files = {place.is_file() for place in found.values()}
    if len(are_files) > 1:
        raise DataError(f"Expected the splits of {path} to be all images or all embeddings, but got both.")
    if are_files == {True}:
        train, val, test = (read_embeddings(found[split]) if split in splits else None for split in SPLITS)
        return _checked(Dataset(str(path), train, val, test, 0, 0, False, (), ()))
    train, val, test = (_read_own(found[split], split, request) if split in splits else None for split in SPLITS)
    return _checked(_photographs(str(path), train, val, test))


def _read_own(path: Path, split: str, request: Request) -> ClassSource:
    size = _STORED if split == "train" else int(1.15 * 84)  # side before the evaluation's centre crop
    return read_folder(path, size=size, skip_corrupt=request.skip_corrupt, progress=request.progress)


_MINI_SMALL = "Images are kept at 84 x 84, where the paper crops from full-size ImageNet images"
_CUB_SMALL = (
    "Photographs are kept at 192 x 192, packed ones with WebP's losses, where the paper crops from the originals; "
    "crops are drawn in the originals' geometry"
)
_CHARACTERS = "White ink on black in [0, 1], where the paper's code has black on white, normalised as photographs"
_FRAME = "Whole drawings are brought to 28 x 28, where the paper takes the centre of 32 x 32"

DATASETS: dict[str, Description] = {
    "glyphs": Description(
        "Characters of matplotlib's fonts -> handwritten digits", (1519, 367, 10), "characters", (), loaders.glyphs,
        is_benchmark=False,
    ),
    "cub": Description("CUB-200-2011, photographs of birds", (100, 50, 50), "photographs", (_CUB_SMALL,), loaders.cub),
    "mini_imagenet": Description(
        "mini-ImageNet, split of Ravi and Larochelle", (64, 16, 20), "photographs",
        (_MINI_SMALL, "Evaluation sees the whole image, where the paper takes the central 84 x 84 of 96 x 96"),
        loaders.mini_imagenet, epochs=(600, 800),
    ),
    "mini_imagenet_to_cub": Description(
        "Train on all of mini-ImageNet, test on CUB-200-2011", (100, 50, 50), "photographs", (_MINI_SMALL, _CUB_SMALL),
        loaders.mini_imagenet_to_cub, epochs=(800, 400),
    ),
    "omniglot": Description(
        "Omniglot, split of Vinyals et al., without rotated copies of the classes", (1028, 172, 423), "characters",
        (_CHARACTERS, _FRAME, "Training classes are not multiplied by rotations"), loaders.omniglot,
    ),
    "omniglot_to_emnist": Description(
        "Train on Omniglot without its Latin alphabet, test on EMNIST", (1597, 31, 31), "characters",
        (_CHARACTERS, _FRAME, "No augmentation, as in the code of earlier papers; the scripts of MD-BFSC have it",
         "EMNIST has 200 images of each character; from the official files these are the first ones"),
        loaders.omniglot_to_emnist,
    ),
}  # fmt: skip
"""Benchmark data sets by name."""


def _no_loader(request: Request, split: str) -> ClassSource:
    raise DataError(f"Expected a path of own data for the split {split!r}.")


OWN_DATA = Description("Own data, by path", (0, 0, 0), "photographs", (), _no_loader, is_benchmark=False)
"""Description of data that are given by a path."""


def _checked(dataset: Dataset) -> Dataset:
    """Warn about classes whose name occurs in two splits."""
    names = [set(part.class_names) for part in (dataset.train, dataset.val, dataset.test) if part is not None]
    twice = sorted(set().union(*(a & b for i, a in enumerate(names) for b in names[:i])))
    if twice:
        warnings.warn(
            f"{len(twice)} classes of {dataset.name} are in more than one split, so they are not new when tested: "
            f"{first(twice)}.",
            stacklevel=4,
        )
    return dataset

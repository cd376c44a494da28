"""Encoded images packed in one `.npz` archive, the storage format of the benchmark photographs.

| key | content |
|---|---|
| `data` uint8, `offsets` (n + 1) | image i is the WebP, PNG or JPEG file `data[offsets[i]:offsets[i + 1]]` |
| `labels` (n) | class of each image, an index into `class_names` |
| `class_names`, `class_split` | name and split (`train`, `val` or `test`) of each class |
| `orig_size_wh` (n, 2), optional | width and height of the original image |
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from mirrorshot.data.cache import Arrays, cache_folder, cached_folder, read_npz
from mirrorshot.data.decoding import Progress, check_bytes, decode, decode_all, why_damaged
from mirrorshot.data.images import digest
from mirrorshot.data.source import ClassSource, empty_classes
from mirrorshot.files.texts import first
from mirrorshot.types import DataError

_KEYS = ("data", "offsets", "labels", "class_names", "class_split")
_FORMAT = 1  # of the cache; increase it when the decoded images change


def read_packed(
    paths: str | Path | Sequence[str | Path],
    *,
    split: str | None = None,
    progress: Progress | None = None,
    cache: bool = True,
) -> ClassSource:
    """Read packed images from one archive, or from several that form one data set.

    All images of an archive are resized to a square with the width of its first one. The source has `sizes` if all
    archives do. Decoded images stay in the cache folder until a file changes. `split` is "train", "val" or "test";
    None: all classes.
    """
    parts = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    archives = [_open(path) for path in parts]
    for archive, path in zip(archives, parts, strict=True):
        if not all(np.array_equal(archive[key], archives[0][key]) for key in ("class_names", "class_split")):
            raise DataError(f"Expected {path} to have the classes of {parts[0]}, but they differ; copy both again.")
    chosen = _classes(archives[0], split, parts[0])
    images = [_images(a, path, progress, cache) for a, path in zip(archives, parts, strict=True)]
    place = np.full(len(archives[0]["class_names"]), -1)
    place[chosen] = np.arange(len(chosen))
    part_labels = [place[a["labels"]] for a in archives]
    keep = [of_part >= 0 for of_part in part_labels]
    labels, names = _join(part_labels, keep), tuple(archives[0]["class_names"][chosen].tolist())
    if empty := empty_classes(labels, names):
        raise DataError(
            f"Expected every class of {', '.join(map(str, parts))} to have images, but {len(empty)} have none: "
            f"{first(empty)}; is a part missing?"
        )
    sizes = None
    if all("orig_size_wh" in a for a in archives):
        sizes = torch.from_numpy(_join([a["orig_size_wh"] for a in archives], keep).astype(np.int64))
    return ClassSource(torch.from_numpy(_join(images, keep)), torch.from_numpy(labels), names, sizes)


def _images(archive: Arrays, path: Path, progress: Progress | None, cache: bool) -> NDArray[np.uint8]:
    data, offsets = archive["data"].tobytes(), archive["offsets"].tolist()
    encoded = [data[start:end] for start, end in itertools.pairwise(offsets)]
    try:
        size = decode(encoded[0], size=1, channels=3)[1][0]
    except Exception:
        size = 1  # reported with the other damaged images
    check_bytes(len(encoded), 3 * size**2, path)

    def make() -> Arrays:
        made = decode_all(encoded, size, 3, progress=progress, label=f"decoding {path.name}")
        if bad := np.flatnonzero(made["sizes"][:, 0] == 0).tolist():
            raise DataError(
                f"Expected every image of {path} to be readable, but {len(bad)} are not: {first(bad)} "
                f"({why_damaged(encoded[bad[0]])}); copy the file again."
            )
        return {"pictures": made["pictures"]}

    place = cache_folder() / f"packed-{digest([str(path.absolute())])}"
    stat = path.stat()
    key = digest([str(_FORMAT), str(stat.st_size), str(stat.st_mtime_ns), str(size)])
    kept: NDArray[np.uint8] = (cached_folder(place, key, make) if cache else make())["pictures"]
    return kept


def _join(arrays: Sequence[NDArray[np.generic]], keep: Sequence[NDArray[np.bool_]]) -> NDArray[np.generic]:
    """Concatenate the selected rows of all parts; no copy if one part is used completely."""
    if len(arrays) == 1 and keep[0].all():
        return arrays[0]
    return np.concatenate([array[rows] for array, rows in zip(arrays, keep, strict=True)])


def _open(path: Path) -> dict[str, NDArray[np.generic]]:
    archive = read_npz(path)
    if missing := [key for key in _KEYS if key not in archive]:
        raise DataError(f"Expected {path} to be packed images, but these arrays are missing: {first(missing)}.")
    data, offsets, labels, names, splits = (archive[key] for key in _KEYS)
    n = len(offsets) - 1 if offsets.ndim == 1 else 0
    rows = archive.get("orig_size_wh", np.ones((n, 2), int))
    is_sound = (
        n > 0
        and data.ndim == 1
        and data.dtype == np.uint8
        and offsets.dtype.kind == labels.dtype.kind == rows.dtype.kind == "i"
        and (np.diff(offsets) >= 0).all()
        and 0 <= int(offsets[0]) <= int(offsets[-1]) <= len(data)
        and labels.shape == (n,)
        and names.shape == splits.shape == (len(names),)
        and 0 <= labels.min() <= labels.max() < len(names)
        and rows.shape == (n, 2)
        and rows.min() > 0
    )
    if not is_sound:
        shapes = {key: (str(archive[key].dtype), archive[key].shape) for key in _KEYS}
        raise DataError(f"Expected the arrays of {path} to fit together, but got {shapes}; copy the file again.")
    return archive


def _classes(archive: Arrays, split: str | None, path: Path) -> NDArray[np.int64]:
    splits = archive["class_split"]
    chosen = np.arange(len(splits)) if split is None else np.flatnonzero(splits == split)
    if not len(chosen):
        raise DataError(
            f"Expected {path} to have classes of split {split!r}, but it has {sorted(set(splits.tolist()))}."
        )
    return chosen

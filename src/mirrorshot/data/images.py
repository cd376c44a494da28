"""Images from a folder of class folders.

Every image is decoded once, to bytes of one size, and cached; `ClassSource.sizes` keeps the original size. EXIF
orientation is ignored, as in torchvision.
"""

import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mirrorshot.data.cache import Arrays, cache_folder, cached_folder
from mirrorshot.data.decoding import Progress, check_bytes, decode_all, why_damaged
from mirrorshot.data.source import ClassSource, empty_classes
from mirrorshot.files.imaging.folders import class_files
from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError, check_at_least

_FORMAT = 1  # of the cache; increase it when the decoded images change


def read_folder(
    path: str | Path,
    *,
    size: int,
    channels: int = 3,
    skip_corrupt: bool = False,
    progress: Progress | None = None,
    cache: bool = True,
) -> ClassSource:
    """Read a folder that has one folder of images per class.

    Classes are sorted by name. Images are files directly in a class folder with the suffix .png, .jpg, .jpeg, .webp,
    .bmp, .gif, .tif or .tiff; of an animation, the first frame is used. Other files, hidden ones, and links back to
    `path` are ignored. Images are resized to `size` x `size` pixels with antialiasing, ignoring the aspect ratio, and
    cached until a file changes. `skip_corrupt` leaves out images that cannot be decoded, with one warning.

    Raises `DataError`: no such folder, no class folders, a class without images, or an image that cannot be decoded.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat", "dog"):
        ...         (Path(folder) / name).mkdir()
        ...         Image.new("RGB", (40, 30)).save(Path(folder) / name / "0.png")
        ...     source = read_folder(folder, size=32, cache=False)
        >>> source.items.shape, source.class_names, source.sizes.tolist()
        (torch.Size([2, 3, 32, 32]), ('cat', 'dog'), [[40, 30], [40, 30]])
    """
    root = Path(path)
    return read_files(
        class_files(root),
        root=root,
        size=size,
        channels=channels,
        skip_corrupt=skip_corrupt,
        progress=progress,
        cache=cache,
    )


def read_files(
    files: Mapping[str, Sequence[Path]],
    *,
    root: Path,
    size: int,
    channels: int = 3,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
    skip_corrupt: bool = False,
    progress: Progress | None = None,
    cache: bool = True,
) -> ClassSource:
    """Read the images of each class from a list of files; see `read_folder`.

    `root` names the data in messages and identifies the cache. `resample` is Pillow's filter, always antialiased.
    """
    check_at_least(1, size=size)
    if channels not in (1, 3):
        raise InvalidInputError(f"Expected `channels` to be 1 or 3, but got {channels}.")
    paths = [path for of_class in files.values() for path in of_class]
    check_bytes(len(paths), channels * size**2, root)

    def make() -> Arrays:
        return decode_all(paths, size, channels, resample, progress=progress, label=f"decoding {root.name}")

    place = cache_folder() / f"pictures-{digest([str(root.absolute())])}-{size}-{channels}-{resample.name.lower()}"
    kept = cached_folder(place, _key(paths), make) if cache else make()
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files.values()])
    good = kept["sizes"][:, 0] > 0
    _check_good([path for path, is_good in zip(paths, good, strict=True) if not is_good], skip_corrupt)
    if empty := empty_classes(labels[good], tuple(files)):
        raise DataError(
            f"Expected every class of {root} to have a readable image, but {len(empty)} have none: {first(empty)}; "
            "remove their folders or repair the images."
        )
    items, sizes = (torch.from_numpy(kept[n] if good.all() else kept[n][good]) for n in ("pictures", "sizes"))
    return ClassSource(items, torch.from_numpy(labels[good]), tuple(files), sizes.long())


def _key(paths: Sequence[Path]) -> str:
    stats = [path.stat() for path in paths]
    files = (f"{path.absolute()}:{s.st_size}:{s.st_mtime_ns}" for path, s in zip(paths, stats, strict=True))
    return digest([str(_FORMAT), *files])


def digest(parts: Iterable[str]) -> str:
    """Return a short hash of strings."""
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def _check_good(bad: Sequence[Path], skip_corrupt: bool) -> None:
    if not bad:
        return
    reasons = [f"{path} ({why_damaged(path)})" for path in bad[:5]] + list(map(str, bad[5:]))
    if not skip_corrupt:
        raise DataError(
            f"Expected every image to be readable, but {len(bad)} are not: {first(reasons)}; "
            "remove them or pass skip_corrupt=True."
        )
    warnings.warn(f"{len(bad)} images cannot be read and are left out: {first(reasons)}.", stacklevel=4)

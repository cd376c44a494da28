"""Parallel decoding of image files, with limits on their size and without their metadata."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.data.cache import MAX_BYTES
from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging.reading import open_image, read_image
from mirrorshot.files.regular import NotRegularFileError, open_regular
from mirrorshot.types import DataError

Encoded = Path | bytes
Progress = Callable[[int, int, str], None]
"""Called with the number of items or tasks done, the total, and a label."""

MAX_PIXELS = 2**26
"""Maximum pixels of an image, 67 million, checked in the header. Larger images count as damaged."""

MAX_FILE_BYTES = 2**28
"""Maximum bytes of an image file, 256 MiB. Larger files count as damaged."""

_MAX_WORKERS = 8  # each may hold an image of MAX_PIXELS
_BATCH = 512  # images between progress reports


def decode(
    encoded: Encoded, size: int, channels: int, resample: Image.Resampling = Image.Resampling.BILINEAR
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode an image to bytes (channels, size, size), antialiased; also return its original width and height.

    Raises `ImageError` if it is damaged, has an unsupported format or exceeds the limits, `OSError` if it cannot be
    opened.
    """
    opened = open_image(_content(encoded), MAX_PIXELS).image
    original, opened.info = opened.size, {}
    image = opened.convert("RGB" if channels == 3 else "L")
    if image.size != (size, size):
        image = image.resize((size, size), resample)
    return np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1), original


def read_pictures(encoded: Sequence[Encoded]) -> list[Image.Image | str]:
    """Read images in parallel as grey ("L") or colour ("RGB"), upright, with transparent parts white.

    An image that cannot be read is replaced by the reason, a string.
    """

    def read(content: Encoded) -> Image.Image | str:
        try:
            return read_image(_content(content), MAX_PIXELS)
        except Exception as error:  # decoders raise all kinds
            return _reason(error)

    with _quiet_pillow(), ThreadPoolExecutor(_n_workers()) as pool:
        return list(pool.map(read, encoded))


def _content(encoded: Encoded) -> bytes:
    if isinstance(encoded, bytes):
        return encoded
    with open_regular(encoded) as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise ImageError(f"its file has more than {MAX_FILE_BYTES} bytes")
        return file.read(MAX_FILE_BYTES)


def decode_all(
    encoded: Sequence[Encoded],
    size: int,
    channels: int,
    resample: Image.Resampling = Image.Resampling.BILINEAR,
    *,
    progress: Progress | None,
    label: str,
) -> dict[str, NDArray[np.generic]]:
    """Decode images in parallel: `pictures` (n, channels, size, size) and `sizes` (n, 2), 0 x 0 for damaged ones."""
    n = len(encoded)
    images, sizes = np.zeros((n, channels, size, size), np.uint8), np.zeros((n, 2), np.int32)

    def one(i: int) -> None:
        try:
            images[i], sizes[i] = decode(encoded[i], size, channels, resample)
        except Exception:  # decoders raise all kinds; the caller reports size 0 with `why_damaged`
            sizes[i] = 0

    report = progress or (lambda done, total, label: None)
    with _quiet_pillow(), ThreadPoolExecutor(_n_workers()) as pool:
        for start in range(0, n, _BATCH):
            report(start, n, label)
            list(pool.map(one, range(start, min(start + _BATCH, n))))
    report(n, n, label)
    return {"pictures": images, "sizes": sizes}


def why_damaged(encoded: Encoded) -> str:
    """Return the decoder's reason why an image cannot be decoded."""
    try:
        with _quiet_pillow():
            decode(encoded, size=1, channels=3)
    except Exception as error:
        return _reason(error)
    return "it could be decoded just now"


def _reason(error: Exception) -> str:
    if isinstance(error, ImageError):
        return str(error)
    if isinstance(error, NotRegularFileError):
        return "it is a pipe, a socket or a device, not a regular file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextlib.contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Ignore Pillow's warnings about odd metadata, and about large images, whose size is checked here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield


def _n_workers() -> int:
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n_cores, _MAX_WORKERS)


def check_bytes(n: int, n_bytes: int, root: Path) -> None:
    """Raise `DataError` if the images would take more than `MAX_BYTES`."""
    if n * n_bytes > MAX_BYTES:
        raise DataError(
            f"Expected the images of {root} to take at most {MAX_BYTES} bytes when decoded, but {n} images of "
            f"{n_bytes} bytes take {n * n_bytes}; lower `size` or take fewer."
        )

"""Glyphs -> digits, a data set without download: Omniglot -> EMNIST in miniature.

Training and validation classes are characters of matplotlib's fonts (`typefaces`), test classes the handwritten digits
of scikit-learn.
"""

import functools
import zlib
from importlib.metadata import version
from typing import Literal

import numpy as np
import torch
from PIL import Image

from mirrorshot.data.cache import Arrays, cache_folder, cached_folder
from mirrorshot.data.source import ClassSource
from mirrorshot.data.typefaces import DIGITS, SIZE, glyph_classes, render_class
from mirrorshot.types import InvalidInputError, check_at_least

_FORMAT = 1  # of the cache; increase it when the images change


def load_glyphs(
    split: Literal["train", "val", "test"],
    *,
    n_classes: int | None = None,
    n_per_class: int = 20,
    seed: int = 0,
    cache: bool = True,
) -> ClassSource:
    """Load a split of glyphs -> digits, as images (n, 1, 28, 28) of white ink on black.

    No class is in two splits. A character is for validation if the CRC-32 of its UTF-8 code is a multiple of 5. The
    splits "train" and "val" contain characters with small random rotations, shears, scales and shifts; "test" contains
    the 1,797 handwritten digits and ignores the other arguments. `n_classes` characters are taken from all scripts,
    None: all; a larger number only adds classes. `cache` stores the images in `MIRRORSHOT_CACHE` (default
    `~/.cache/mirrorshot`). Treat them as read-only: later calls return the same tensors.

    Example:
        >>> digits = load_glyphs("test")
        >>> digits.items.shape, digits.n_classes
        (torch.Size([1797, 1, 28, 28]), 10)
    """
    if split == "test":
        return _digits()
    if split not in ("train", "val"):
        raise InvalidInputError(f"Expected `split` to be 'train', 'val' or 'test', but got {split!r}.")
    check_at_least(1, n_classes=1 if n_classes is None else n_classes, n_per_class=n_per_class)
    check_at_least(0, seed=seed)
    return _glyphs(split, n_classes, n_per_class, seed, cache)


@functools.lru_cache(maxsize=4)
def _glyphs(split: str, n_classes: int | None, n_per_class: int, seed: int, cache: bool) -> ClassSource:
    def make() -> Arrays:
        codes = _choose(split, n_classes)
        items = np.concatenate([render_class(chr(code), n_per_class, seed) for code in codes])
        return {"items": items, "codes": np.array(codes, dtype=np.int64)}

    place = cache_folder() / f"glyphs-{split}-{n_classes or 'all'}-{n_per_class}-{seed}"
    key = f"{_FORMAT} {version('matplotlib')} {version('pillow')}"  # fonts and renderer
    kept = cached_folder(place, key, make) if cache else make()
    codes = kept["codes"].tolist()
    labels = torch.arange(len(codes)).repeat_interleave(n_per_class)
    return ClassSource(torch.from_numpy(kept["items"]), labels, tuple(map(chr, codes)))


@functools.lru_cache(maxsize=1)
def _digits() -> ClassSource:
    """Load 8 x 8 images with values 0 to 16, enlarge them to 24 x 24 and pad them."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    small = np.round(X.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    inner = SIZE - 4
    images = np.zeros((len(X), 1, SIZE, SIZE), dtype=np.uint8)
    for image, pixels in zip(images, small, strict=True):
        large = Image.fromarray(pixels).resize((inner, inner), Image.Resampling.BICUBIC)
        image[0, 2:-2, 2:-2] = np.asarray(large)
    return ClassSource.from_arrays(images, y.astype(np.int64), list(DIGITS))


def _choose(split: str, n_classes: int | None) -> list[int]:
    checksum = {code: zlib.crc32(chr(code).encode()) for code in glyph_classes()}
    mine = [code for code, check in checksum.items() if (check % 5 == 0) == (split == "val")]
    if n_classes is None:
        return mine
    if n_classes > len(mine):
        raise InvalidInputError(
            f"Expected `n_classes` to be at most {len(mine)}, the characters of split {split!r}, but got {n_classes}."
        )
    return sorted(sorted(mine, key=lambda code: checksum[code])[:n_classes])

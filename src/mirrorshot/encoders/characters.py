"""Pictures of single characters, brought to the form of the glyphs: white ink on black, centred, of one size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIZE = 28  # pixels of a side
_INK = 0.75  # longest side of the character, as a fraction of the picture's
_FAINT = 0.25  # of the strongest ink: what is fainter is ground
_PLAIN = 48  # levels of 255 that a plain ground may vary
_PLAIN_SHARE, _PLAIN_BORDER = 0.4, 0.6  # of the pixels, and of those at the border, of one thing on a plain ground
_COLOUR = 24  # levels by which the channels of a grey picture may differ
_MAX_SIDE = 512  # larger pictures are made smaller first


def as_character(picture: Image.Image) -> NDArray[np.uint8]:
    """One picture as white ink on black, (28, 28): the ground is what the border shows, the ink what differs from it.

    Example:
        >>> page = Image.new("L", (60, 40), 250)
        >>> page.paste(20, (10, 5, 20, 35))
        >>> as_character(page).shape, int(as_character(page).max())
        ((28, 28), 255)
    """
    grey = _small(picture).convert("L")
    values = np.asarray(grey, dtype=np.float32)
    ink = np.abs(values - _ground(values))
    strongest = float(ink.max())
    if strongest < 1.0:
        return np.zeros((SIZE, SIZE), np.uint8)
    ink = np.clip(ink / strongest - 0.5 * _FAINT, 0.0, None)
    rows, columns = (np.flatnonzero((ink > 0.5 * _FAINT).any(axis)) for axis in (1, 0))
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    drawn = Image.fromarray(np.round(box * (255.0 / box.max())).astype(np.uint8))
    scale = _INK * SIZE / max(drawn.size)
    width, height = (max(1, round(side * scale)) for side in drawn.size)
    framed = Image.new("L", (SIZE, SIZE))
    resized = drawn.resize((width, height), Image.Resampling.BICUBIC)
    framed.paste(resized, ((SIZE - width) // 2, (SIZE - height) // 2))
    return np.asarray(framed)


def look_like_characters(pictures: Sequence[Image.Image]) -> bool:
    """Whether nine of ten pictures are grey and show something on a plain ground.

    Example:
        >>> look_like_characters([Image.new("RGB", (20, 20), "red")])
        False
    """
    alike = sum(_is_character(picture) for picture in pictures)
    return len(pictures) > 0 and alike >= 0.9 * len(pictures)


def _is_character(picture: Image.Image) -> bool:
    small = _small(picture)
    if is_colour(small):
        return False
    values = np.asarray(small.convert("L"), dtype=np.float32)
    is_plain = np.abs(values - _ground(values)) <= _PLAIN
    return bool(is_plain.mean() >= _PLAIN_SHARE and _border(is_plain).mean() >= _PLAIN_BORDER)


def is_colour(picture: Image.Image) -> bool:
    """Whether a picture has colours, and not only shades of grey.

    Example:
        >>> is_colour(Image.new("RGB", (2, 2), "red")), is_colour(Image.new("RGB", (2, 2), "grey"))
        (True, False)
    """
    if picture.mode == "L":
        return False
    channels = np.asarray(picture, dtype=np.int16)
    return bool(np.ptp(channels, axis=-1).max(initial=0) > _COLOUR)


def _small(picture: Image.Image) -> Image.Image:
    if max(picture.size) <= _MAX_SIDE:
        return picture
    scale = _MAX_SIDE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def _ground(values: NDArray[np.float32]) -> float:
    return float(np.median(_border(values)))


def _border(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])

"""Images of single characters, brought to the form of the glyphs: white ink on black, centred, of one size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.files.imaging.reading import centred, scaled_size

SIZE = 28  # pixels of a side
_INK = 0.75  # longest side of the character, as a fraction of the image's
_FAINT = 0.25  # of the strongest ink: fainter pixels are ground
_PLAIN, _EVEN = 48, 24  # levels of 255 that a plain ground may vary, and at the border
_TWO_SHADES = 0.77  # share of the variance of shades that two groups, ground and ink, explain
_PLAIN_SHARE, _PLAIN_BORDER = 0.4, 0.6  # of the pixels, and of those at the border, of one thing on a plain ground
_FAINTEST = 24  # levels by which the strongest ink differs at least from the ground
_OFF_LINE = 0.1  # share of the variance of colours beside the line from ground to ink
_UNEVEN = 24  # levels of 255 by which the light on even ground may differ from side to side
_COLOUR = 24  # levels by which the channels of a grey image may differ
_MAX_SIDE = 512  # larger images are made smaller first


def as_character(image: Image.Image, *, even_light: bool = True) -> NDArray[np.uint8]:
    """Return an image as white ink on black, (28, 28): the border shows the ground, pixels that differ are ink.

    Args:
        image: of any size, grey or in colour.
        even_light: take out light that falls from one side, if the border shows some.

    Example:
        >>> page = Image.new("L", (60, 40), 250)
        >>> page.paste(20, (10, 5, 20, 35))
        >>> as_character(page).shape, int(as_character(page).max())
        ((28, 28), 255)
    """
    values = np.asarray(_small(image).convert("L"), dtype=np.float32)
    values = _evenly_lit(values) if even_light else values
    ink = np.abs(values - _ground(values))
    strongest = float(ink.max())
    if strongest < 1.0:
        return np.zeros((SIZE, SIZE), np.uint8)
    ink = np.clip(ink / strongest - 0.5 * _FAINT, 0.0, None)
    rows, columns = (np.flatnonzero((ink > 0.5 * _FAINT).any(axis)) for axis in (1, 0))
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    drawn = Image.fromarray(np.round(box * (255.0 / box.max())).astype(np.uint8))
    return np.asarray(centred(drawn, SIZE, _INK * SIZE))


def look_like_characters(images: Sequence[Image.Image]) -> bool:
    """Whether nine of ten images show something of one colour on a plain ground, perhaps in uneven light.

    On a plain ground 40 % of the pixels, and 60 % of those at the border, have the shade of the border. Ground and ink
    are two groups of shades: of photographs with a plain ground, most have more.
    """
    alike = sum(_is_character(image) for image in images)
    return len(images) > 0 and alike >= 0.9 * len(images)


def _is_character(image: Image.Image) -> bool:
    small = _small(image)
    values = _evenly_lit(np.asarray(small.convert("L"), dtype=np.float32))
    away = np.abs(values - _ground(values))
    has_ground = bool((away <= _PLAIN).mean() >= _PLAIN_SHARE and (_border(away) <= _EVEN).mean() >= _PLAIN_BORDER)
    has_ink = float(away.max()) > _FAINTEST
    return has_ground and has_ink and _has_two_shades(away) and _has_two_colours(small)


def _has_two_shades(away: NDArray[np.float32]) -> bool:
    """Whether ground and ink are two groups of shades: Otsu's criterion at the best threshold, over the variance."""
    counts, edges = np.histogram(away, 64)
    share, shade = counts / counts.sum(), (edges[1:] + edges[:-1]) / 2
    below, first, mean = np.cumsum(share)[:-1], np.cumsum(share * shade)[:-1], float(share @ shade)
    inside = (below > 0) & (below < 1)
    between = (mean * below - first)[inside] ** 2 / (below * (1 - below))[inside]
    return bool(between.max(initial=0.0) >= _TWO_SHADES * (share @ (shade - mean) ** 2))


def _has_two_colours(image: Image.Image) -> bool:
    """Whether the colours of an image lie on one line, from ground to ink, each channel in even light."""
    if image.mode == "L":
        return True
    channels = np.moveaxis(np.asarray(image.convert("RGB"), dtype=np.float32), -1, 0)
    away = np.stack([lit - _ground(lit) for lit in map(_evenly_lit, channels)]).reshape(3, -1)
    spread = np.linalg.eigvalsh(away @ away.T)
    return bool(spread[:-1].sum() <= _OFF_LINE * spread.sum())


def is_colour(image: Image.Image) -> bool:
    """Whether an image has colours, and not only shades of grey.

    Example:
        >>> is_colour(Image.new("RGB", (2, 2), "red")), is_colour(Image.new("RGB", (2, 2), "grey"))
        (True, False)
    """
    if image.mode == "L":
        return False
    channels = np.asarray(image, dtype=np.int16)
    return bool(np.ptp(channels, axis=-1).max(initial=0) > _COLOUR)


def _small(image: Image.Image) -> Image.Image:
    is_large = max(image.size) > _MAX_SIDE
    return image.resize(scaled_size(image, _MAX_SIDE), Image.Resampling.BILINEAR) if is_large else image


def _evenly_lit(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide by a plane through the shades of the border or, on dark ground, subtract it."""
    light, shades = _plane(values), _border(values)
    is_better = np.median(np.abs(shades - _border(light))) < 0.5 * np.median(np.abs(shades - np.median(shades)))
    if not is_better or light.max() - light.min() < _UNEVEN:
        return values
    middle = np.float32(np.median(light))
    is_dark_ink = float((values - light).mean()) < 0
    even = values * (middle / np.maximum(light, 1.0)) if is_dark_ink else values - light + middle
    return even.astype(np.float32)


def _plane(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """A plane fitted to the border by least squares, thrice, without what lay far from the one before."""
    height, width = values.shape
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32) / np.float32(max(height, width))
    terms = np.stack([np.ones_like(values), rows, columns], axis=-1)
    edge = np.stack([_border(terms[..., i]) for i in range(3)], axis=-1)
    shades = _border(values)
    used = np.ones(len(shades), bool)
    for _ in range(3):
        weights = np.linalg.lstsq(edge[used], shades[used], rcond=None)[0]
        away = np.abs(shades - edge @ weights)
        used = away <= 2.5 * np.median(away) + 1.0
    return np.asarray(terms @ weights.astype(np.float32))


def _ground(values: NDArray[np.float32]) -> float:
    return float(np.median(_border(values)))


def _border(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values[0], values[-1], values[:, 0], values[:, -1]])

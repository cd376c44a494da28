"""Normalisation of images of single characters to the form of the glyphs: white ink on black, centred, of one size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.files.imaging.reading import centred, scaled_size

# levels are of 255
SIZE = 28  # side in pixels
_INK = 0.75  # longest side of the character, as a fraction of the image's
_FAINT = 0.25  # pixels below this fraction of the strongest ink do not extend the character; below half of it: ground
_PLAIN, _EVEN = 48, 24  # largest difference in levels of a plain ground from the border's median; at the border
_TWO_SHADES = 0.77  # smallest share of the variance of shades that two groups, ground and ink, explain
_PLAIN_SHARE, _PLAIN_BORDER = 0.4, 0.6  # smallest share of ground among all pixels, and among those at the border
_FAINTEST = 24  # smallest difference in levels of the strongest ink from the ground
_OFF_LINE = 0.1  # largest share of the variance of colours off the line from ground to ink
_UNEVEN = 24  # smallest range in levels of uneven light
_COLOUR = 24  # largest difference in levels between the channels of a grey image
_MAX_SIDE = 512  # larger images are reduced first


def as_character(image: Image.Image, *, even_light: bool = True) -> NDArray[np.uint8]:
    """Return an image as white ink on black, (28, 28). The border defines the ground; pixels that differ are ink.

    Args:
        image: grey or colour image of any size.
        even_light: whether to correct light that falls from one side, if the border shows it.

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
    """Return whether nine of ten images show ink of one colour on a plain ground, perhaps in uneven light.

    The ground is plain if 40 % of the pixels, and 60 % of those at the border, have about the shade of the border.
    Ground and ink are two groups of shades; most photographs with a plain ground have more.
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
    """Whether the best split of the shades into two groups explains enough of the variance (Otsu's criterion)."""
    counts, edges = np.histogram(away, 64)
    share, shade = counts / counts.sum(), (edges[1:] + edges[:-1]) / 2
    below, first, mean = np.cumsum(share)[:-1], np.cumsum(share * shade)[:-1], float(share @ shade)
    inside = (below > 0) & (below < 1)
    between = (mean * below - first)[inside] ** 2 / (below * (1 - below))[inside]
    return bool(between.max(initial=0.0) >= _TWO_SHADES * (share @ (shade - mean) ** 2))


def _has_two_colours(image: Image.Image) -> bool:
    """Whether the colours of an image lie on one line, from ground to ink, after correction of the light."""
    if image.mode == "L":
        return True
    channels = np.moveaxis(np.asarray(image.convert("RGB"), dtype=np.float32), -1, 0)
    away = np.stack([lit - _ground(lit) for lit in map(_evenly_lit, channels)]).reshape(3, -1)
    spread = np.linalg.eigvalsh(away @ away.T)
    return bool(spread[:-1].sum() <= _OFF_LINE * spread.sum())


def is_colour(image: Image.Image) -> bool:
    """Return whether an image has colours, not only shades of grey.

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
    """Divide by a plane fitted to the shades of the border or, for light ink, subtract it."""
    light, shades = _plane(values), _border(values)
    is_better = np.median(np.abs(shades - _border(light))) < 0.5 * np.median(np.abs(shades - np.median(shades)))
    if not is_better or light.max() - light.min() < _UNEVEN:
        return values
    middle = np.float32(np.median(light))
    is_dark_ink = float((values - light).mean()) < 0
    even = values * (middle / np.maximum(light, 1.0)) if is_dark_ink else values - light + middle
    return even.astype(np.float32)


def _plane(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Fit a plane to the border by least squares, three times, each time without the outliers of the previous fit."""
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

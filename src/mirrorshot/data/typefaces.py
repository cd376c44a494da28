"""Characters of matplotlib's fonts: selection of the classes, and their images.

A character is a class if at least 12 typefaces draw it. Excluded are numerals, marks, small variants and other Unicode
categories without shape, empty images, and images nearly equal to those of a digit or of another character: after
centring and scaling, Greek Alpha equals the Latin A, and a small o a large one.
"""

import functools
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFont

from mirrorshot.files.imaging.reading import centred

SIZE = 28  # side of an image in pixels
_TILE = 2 * SIZE  # side of a drawing, at twice the size
_INK = 0.75  # longest side of a character, relative to the image
_FONT_SIZE = 64
_MIN_TYPEFACES = 12
_SAME = 0.98  # correlation above which two characters count as equal
_COMPARED = ("DejaVuSans.ttf", "DejaVuSerif.ttf")

_LETTERS = frozenset(map(ord, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
DIGITS = "0123456789"
# Characters that resemble 0, 1, 2, 3, 4, 5, 6, 8, 9, in this order: found by eye, and in Unicode's table of confusable
# characters. Characters with the same image as one of these are excluded, too.
_LIKE_DIGITS = "OoθlI|ɪıǀ∣┃╵ӏƧƻշՁջƷʒʓǮǯӠӡӞӟҘҙЗзȜȝɜɝᴈვЧƼƽбƂƃƄƅნȢȣყჹ"  # noqa: RUF001
# Accents without a letter, blanks, controls and private use; then tags of small variants of other characters.
_NO_CLASS = frozenset({"Mn", "Me", "Mc", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Cs"})
_SCALED = ("<super>", "<sub>", "<small>")


class _Typeface(NamedTuple):
    name: str
    font: ImageFont.FreeTypeFont
    characters: frozenset[int]


@functools.lru_cache(maxsize=1)
def _typefaces() -> tuple[_Typeface, ...]:
    """Return the text fonts of matplotlib, in order of their names.

    Computer Modern contributes only letters: it has its own code points for other characters. Fonts that draw
    placeholders (Last Resort) or pieces of large symbols are excluded.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = (
        *sorted(p.name for p in folder.glob("DejaVu*.ttf") if "Display" not in p.name),
        *sorted(p.name for p in folder.glob("STIXGeneral*.ttf")),
        *(f"cm{style}10.ttf" for style in ("b", "r", "ss", "ti", "tt")),
    )
    faces = []
    for name in names:
        path = str(folder / name)
        drawn = frozenset(code for code, glyph in FT2Font(path).get_charmap().items() if glyph)
        font = ImageFont.truetype(path, _FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)
        faces.append(_Typeface(name, font, drawn & _LETTERS if name.startswith("cm") else drawn))
    return tuple(faces)


@functools.lru_cache(maxsize=1)
def glyph_classes() -> tuple[int, ...]:
    """Return the code points of all training and validation classes."""
    faces = _typefaces()
    codes = sorted(frozenset().union(*(face.characters for face in faces)))
    often = [c for c in codes if sum(c in face.characters for face in faces) >= _MIN_TYPEFACES]
    candidates = [c for c in often if _may_be_class(chr(c))]
    taken = [ord(c) for c in DIGITS + _LIKE_DIGITS if ord(c) in often]
    codes = taken + [c for c in candidates if c not in taken]
    return tuple(sorted(_distinct(codes, len(taken))))


def _may_be_class(character: str) -> bool:
    has_digit = any(c.isnumeric() for c in unicodedata.normalize("NFKC", character))
    scaled = unicodedata.decomposition(character).startswith(_SCALED)
    return not (has_digit or scaled or unicodedata.category(character) in _NO_CLASS)


def _distinct(codes: list[int], n_taken: int) -> list[int]:
    """Return the codes after the first `n_taken` whose image is neither empty nor nearly equal to an earlier one.

    Images are compared in two typefaces; characters count as equal only if they are in both.
    """
    images = [_unit_images(code) for code in codes]
    kept: list[int] = []
    shapes, n = np.zeros((len(codes), *images[0].shape), dtype=np.float32), 0
    for i, (code, image) in enumerate(zip(codes, images, strict=True)):
        if not image.any(axis=-1).all():
            continue
        if i >= n_taken:
            if n and (shapes[:n] * image).sum(-1).min(-1).max() > _SAME:
                continue
            kept.append(code)
        shapes[n] = image
        n += 1
    return kept


def _unit_images(code: int) -> NDArray[np.float32]:
    """Return images in two typefaces as vectors of mean 0 and length 1; zeros for empty images and placeholders."""
    faces = [face for face in _typefaces() if face.name in _COMPARED]
    vectors = np.zeros((len(faces), SIZE * SIZE), dtype=np.float32)
    for vector, face in zip(vectors, faces, strict=True):
        tile = _tile(face.font, chr(code))
        if tile is not None and not _is_placeholder(face.font, chr(code)):
            pixels = np.asarray(tile.reduce(2), dtype=np.float32).ravel()
            pixels -= pixels.mean()
            vector[:] = pixels / max(float(np.linalg.norm(pixels)), 1e-6)
    return vectors


def _is_placeholder(font: ImageFont.FreeTypeFont, character: str) -> bool:
    mask, missing = font.getmask(character), font.getmask("\U0010fffe")
    return mask.size == missing.size and bytes(mask) == bytes(missing)


def _tile(font: ImageFont.FreeTypeFont, character: str) -> Image.Image | None:
    """Draw a character at twice the image size, centred and scaled; None if it has no ink."""
    mask = font.getmask(character, mode="L")
    if 0 in mask.size:
        return None
    drawn = Image.frombytes("L", mask.size, bytes(mask))
    box = drawn.getbbox()
    if box is None:
        return None
    return centred(drawn.crop(box), _TILE, _INK * _TILE)


def render_class(character: str, n_images: int, seed: int) -> NDArray[np.uint8]:
    """Draw images (n, 1, 28, 28) of a character, cycling through its typefaces, each with a small random distortion."""
    rng = np.random.default_rng((seed, ord(character)))
    drawn = (_tile(face.font, character) for face in _typefaces() if ord(character) in face.characters)
    tiles = [tile for tile in drawn if tile is not None]
    turn = rng.permutation(len(tiles))
    images = np.zeros((n_images, 1, SIZE, SIZE), dtype=np.uint8)
    for i, image in enumerate(images):
        tile = tiles[turn[i % len(tiles)]]
        changed = tile.transform(tile.size, Image.Transform.AFFINE, _affine(rng), resample=Image.Resampling.BILINEAR)
        image[0] = np.asarray(changed.reduce(2))
    return images


def _affine(rng: np.random.Generator) -> tuple[float, ...]:
    """Return a random map from the distorted image to the tile, in Pillow's form: two rows of three."""
    angle, shear = rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2)  # radians; about 11 degrees
    sizes = rng.uniform(0.85, 1.15) * np.array([rng.uniform(0.9, 1.1), 1.0])
    shift = rng.uniform(-2.0, 2.0, 2)  # pixels of the tile
    cos, sin = np.cos(angle), np.sin(angle)
    A = np.linalg.inv(np.array([[cos, -sin], [sin, cos]]) @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag(sizes))
    centre = np.full(2, _TILE / 2)
    offset = centre - A @ (centre + shift)
    return (A[0, 0], A[0, 1], offset[0], A[1, 0], A[1, 1], offset[1])

"""Decoding of image files to pixels, within bounds and without metadata."""

import io
from typing import NamedTuple, cast

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging.stripping import strip

MAX_WORK = 2**30
"""Largest number of pixels times decoder passes; bounds the time."""

# imported at the start, so that the first image takes no longer than others
_PLUGINS = (BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin)
_QUALITY = 88
_MOST = 2**16 - 1  # largest value of a 16-bit pixel
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Opened(NamedTuple):
    """An image of at most 8 bits per channel, with no `info` but `transparency`, and its Exif orientation."""

    image: Image.Image
    orientation: int


def open_image(content: bytes, max_pixels: int) -> Opened:
    """Decode the first frame of a file, or raise an `ImageError`."""
    stripped = strip(content)
    if stripped.size is not None:
        _check_pixels(stripped.size, max_pixels, stripped.passes)
    try:
        with Image.open(io.BytesIO(stripped.content), formats=[stripped.format]) as opened:
            _check_pixels(opened.size, max_pixels, stripped.passes)
            opened.load()
            image = _eight_bits(opened)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        raise ImageError(f"it has more than {max_pixels} pixels") from error
    except UnidentifiedImageError as error:
        raise ImageError(f"its header is not that of a {stripped.format} file that can be read") from error
    except Exception as error:  # decoders raise errors of many types
        raise ImageError(_reason(error)) from error
    transparency = image.info.get("transparency")
    image.info = {"transparency": transparency} if _is_sound(transparency, image.mode) else {}
    return Opened(image, stripped.orientation)


def read_image(content: bytes, max_pixels: int) -> Image.Image:
    """Decode an image at its own size: grey ("L") or colour ("RGB"), upright, transparency on white.

    Raises:
        ImageError: the image is damaged, of another format, or exceeds the bounds.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGBA", (4, 2)).save(file, "PNG")
        >>> read_image(file.getvalue(), max_pixels=8).getpixel((0, 0))
        (255, 255, 255)
    """
    image, orientation = open_image(content, max_pixels)
    try:
        if "transparency" in image.info or {"A", "a"} & set(image.getbands()):
            seen = image.convert("RGBA")
            image = Image.new("RGB", image.size, "white")
            image.paste(seen, mask=seen.getchannel("A"))
        image = image.convert("L" if image.mode in ("1", "L") else "RGB")
    except ValueError as error:
        raise ImageError(_reason(error)) from error
    image.info = {}
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def make_preview(image: Image.Image, side: int) -> bytes:
    """Return a JPEG file of the whole image, padded with white to a square, without metadata."""
    plain = image.convert("RGB")
    plain.info = {}  # encoders copy it into the file
    framed = ImageOps.pad(plain, (side, side), Image.Resampling.BILINEAR, color="white")
    file = io.BytesIO()
    framed.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def centred(drawn: Image.Image, side: int, longest: float) -> Image.Image:
    """Resize a grey drawing to a longest side of `longest` pixels and centre it on a black square of `side` pixels."""
    width, height = scaled_size(drawn, longest)
    framed = Image.new("L", (side, side))
    framed.paste(drawn.resize((width, height), Image.Resampling.BICUBIC), ((side - width) // 2, (side - height) // 2))
    return framed


def scaled_size(image: Image.Image, longest: float) -> tuple[int, int]:
    """Return width and height of the image if its longest side is `longest`."""
    scale = longest / max(image.size)
    return max(1, round(image.width * scale)), max(1, round(image.height * scale))


def _check_pixels(size: tuple[int, int], max_pixels: int, passes: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise ImageError(f"{width} x {height} are more than {max_pixels} pixels")
    if width * height * passes > MAX_WORK:
        raise ImageError(f"{passes} passes over {width} x {height} pixels take too long")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit pixels to eight bits; Pillow's conversion clips bright pixels."""
    if image.mode.startswith("I"):
        image = image.convert("I")
        low, high = cast("tuple[int, int]", image.getextrema())
        if low < 0 or high > _MOST:
            raise ImageError(f"its pixels are whole numbers from {low} to {high}, not from 0 to {_MOST}")
        return image.point(lambda value: value * (1 / 256)).convert("L")
    if image.mode == "F":
        raise ImageError("its pixels are floating-point numbers of unknown range")
    return image


def _is_sound(transparency: object, mode: str) -> bool:
    """Whether it is the alpha values of a palette, or one colour of the image's mode."""
    if mode == "P" and isinstance(transparency, bytes):
        return len(transparency) <= 256
    colour = transparency if isinstance(transparency, tuple) else (transparency,)
    n_values = {"1": 1, "L": 1, "P": 1, "RGB": 3}.get(mode)
    return len(colour) == n_values and all(type(value) is int and 0 <= value <= 255 for value in colour)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it takes too much memory to decode"
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]

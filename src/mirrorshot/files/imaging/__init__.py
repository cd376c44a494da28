"""Decoding of images of unknown origin, within bounds and without their metadata.

The modules of a worker process import Pillow but neither NumPy nor torch, so that it starts quickly.
"""

from mirrorshot.types import MirrorshotError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


class ImageError(MirrorshotError, ValueError):
    """An image cannot be decoded. The message is a clause with the reason: "its file has more than 5 bytes"."""

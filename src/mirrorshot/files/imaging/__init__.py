"""Decoding of images of unknown origin, within bounds and without their metadata.

Only Pillow is imported here, never torch: worker processes start with this package and nothing else.
"""

from mirrorshot.types import MirrorshotError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")


class ImageError(MirrorshotError, ValueError):
    """An image cannot be decoded. The message is a clause that says why: "its file has more than 5 bytes"."""

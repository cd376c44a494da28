"""Copies of image files without metadata.

Decoders spend memory and time on texts, profiles, thumbnails, further frames and repeated scans. These are removed or
counted before a decoder reads the file. Frames after the first of a GIF stay in the copy, but are not decoded.
"""

import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from mirrorshot.files.imaging import FORMATS, ImageError
from mirrorshot.files.imaging.tiff import orientation_of, strip_tiff

MAX_PNG_CHUNKS = 2**16  # encoders write chunks of 8 KiB or more
MAX_JPEG_SEGMENTS = 2**12
MAX_SCANS = 128  # progressive encoders write about ten
MAX_GIF_BLOCKS = 2**16  # of comments before the first frame
MAX_WEBP_CHUNKS = 2**16
MAX_RLE_BYTES, MAX_RLE_WIDTH, RLE_PASSES = 2**22, 2**15, 256  # Pillow decodes these in Python

_PNG_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_WEBP_KEPT = (b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF")  # only the first of each
_JPEG_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # without restart markers, which are part of a scan
_ALONE = (0x01, 0xD8)  # markers without a segment
_SOS, _EOI = 0xDA, 0xD9


class Stripped(NamedTuple):
    """An image file without metadata."""

    format: str  # Pillow's name
    content: bytes  # the new file
    orientation: int = 1  # of Exif, 1 to 8; 1 is upright
    passes: int = 1  # approximate number of passes of a decoder over all pixels
    size: tuple[int, int] | None = None  # for formats whose decoder allocates memory before it reports width and height


def strip(content: bytes) -> Stripped:
    """Remove metadata and further frames.

    Raises:
        ImageError: the file has another format, more chunks or scans than any honest file, or no image.

    Example:
        >>> strip(b"hello")
        Traceback (most recent call last):
        mirrorshot.files.imaging.ImageError: no image in one of the formats PNG, JPEG, WEBP, BMP, GIF, TIFF
    """
    for matches, strip_format in _STRIP:
        if matches(content):
            try:
                return strip_format(content)
            except (struct.error, IndexError, OverflowError) as error:
                raise ImageError("its file ends within its header") from error
    raise ImageError(f"no image in one of the formats {', '.join(FORMATS)}")


def _strip_png(content: bytes) -> Stripped:
    kept, orientation, start = [content[:8]], 1, 8
    seen: set[bytes] = set()
    for _ in range(MAX_PNG_CHUNKS):
        if start + 8 > len(content):
            break
        length, kind = struct.unpack_from(">I4s", content, start)
        end = start + 12 + length
        if kind == b"eXIf":
            orientation = orientation_of(content[start + 8 : end - 4])
        elif kind == b"IDAT" or (kind in _PNG_KEPT and kind not in seen):
            kept.append(content[start:end])
            seen.add(kind)
        if kind == b"IEND":
            break
        start = end
    else:
        raise ImageError(f"its file has more than {MAX_PNG_CHUNKS} chunks")
    return Stripped("PNG", b"".join(kept), orientation)


def _strip_jpeg(content: bytes) -> Stripped:
    kept, orientation, scans, start = [content[:2]], 1, 0, 2
    for _ in range(MAX_JPEG_SEGMENTS):
        found = _JPEG_MARKER.search(content, start)
        if found is None or found[1][0] == _EOI:
            break
        marker, after = found[1][0], found.end()
        if scans:
            kept.append(content[start : found.start()])  # compressed pixels of the previous scan
        start = after if marker in _ALONE else after + struct.unpack_from(">H", content, after)[0]
        body = content[after + 2 : start]
        if marker == 0xE1 and body.startswith(b"Exif\0\0") and not scans:
            orientation = orientation_of(body[6:])
        if _is_needed(marker, body):
            kept.append(content[found.start() : start])
        scans += marker == _SOS
        if scans > MAX_SCANS:
            raise ImageError(f"its file has more than {MAX_SCANS} scans")
    else:
        raise ImageError(f"its file has more than {MAX_JPEG_SEGMENTS} segments")
    end = len(content) if found is None else found.end()
    kept.append(content[start:end])
    return Stripped("JPEG", b"".join(kept), orientation, passes=max(1, scans))


def _is_needed(marker: int, body: bytes) -> bool:
    """Whether decoding needs a segment. Of the application segments, JFIF and Adobe define the colours."""
    if 0xE0 <= marker <= 0xEF or marker == 0xFE:
        return (marker == 0xE0 and body.startswith(b"JFIF\0")) or (marker == 0xEE and body.startswith(b"Adobe"))
    return True


def _strip_gif(content: bytes) -> Stripped:
    flags = content[10]
    start = 13 + (3 << 1 + (flags & 7) if flags & 0x80 else 0)  # after the colour table
    head, control = content[:start], b""
    blocks = 0
    while content[start] == 0x21:  # extensions before the first frame
        end = start + 2
        while content[end]:
            end += 1 + content[end]
            blocks += 1
            if blocks > MAX_GIF_BLOCKS:
                raise ImageError(f"its file has more than {MAX_GIF_BLOCKS} blocks before its first frame")
        if content[start + 1] == 0xF9:
            control = content[start : end + 1]  # contains the transparent colour
        start = end + 1
    if content[start] != 0x2C:
        raise ImageError("its file has no frame where one has to begin")
    return Stripped("GIF", head + control + content[start:])


def _strip_webp(content: bytes) -> Stripped:
    kept, orientation, size, start = dict[bytes, bytes](), 1, None, 12
    for _ in range(MAX_WEBP_CHUNKS):
        if start + 8 > len(content):
            break
        kind, length = struct.unpack_from("<4sI", content, start)
        end = start + 8 + length + length % 2
        body = content[start + 8 : end]
        if size is None:
            size = _webp_size(kind, body)
        if kind == b"EXIF":
            orientation = orientation_of(body.removeprefix(b"Exif\0\0"))
        elif kind in _WEBP_KEPT:
            kept.setdefault(kind, content[start:end])
        start = end
    else:
        raise ImageError(f"its file has more than {MAX_WEBP_CHUNKS} chunks")
    if size is None:
        raise ImageError("its file has no image")
    body = b"WEBP" + b"".join(kept.values())
    return Stripped("WEBP", b"RIFF" + struct.pack("<I", len(body)) + body, orientation, size=size)


def _webp_size(kind: bytes, body: bytes) -> tuple[int, int] | None:
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[4:7], "little"), 1 + int.from_bytes(body[7:10], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", body, 1)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", body, 6)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _strip_bmp(content: bytes) -> Stripped:
    header, width = struct.unpack_from("<Ii", content, 14)
    is_rle = header >= 40 and struct.unpack_from("<I", content, 30)[0] in (1, 2)
    if is_rle and (len(content) > MAX_RLE_BYTES or not 0 < width <= MAX_RLE_WIDTH):
        raise ImageError(
            f"its file is run-length encoded and has more than {MAX_RLE_BYTES} bytes, or a width of more than "
            f"{MAX_RLE_WIDTH} pixels"
        )
    return Stripped("BMP", content, passes=RLE_PASSES if is_rle else 1)


def _strip_tiff(content: bytes) -> Stripped:
    stripped, passes = strip_tiff(content)
    return Stripped("TIFF", stripped, passes=passes)


_STRIP: tuple[tuple[Callable[[bytes], bool], Callable[[bytes], Stripped]], ...] = (
    (lambda content: content.startswith(b"\x89PNG\r\n\x1a\n"), _strip_png),
    (lambda content: content.startswith(b"\xff\xd8\xff"), _strip_jpeg),
    (lambda content: content[:4] == b"RIFF" and content[8:12] == b"WEBP", _strip_webp),
    (lambda content: content.startswith(b"BM"), _strip_bmp),
    (lambda content: content.startswith((b"GIF87a", b"GIF89a")), _strip_gif),
    (lambda content: content.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")), _strip_tiff),
)

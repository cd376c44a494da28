"""Directories of TIFF files, and of Exif blocks, which have the same layout."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mirrorshot.files.imaging import ImageError

MAX_ENTRIES = 2**10
MAX_TAG_BYTES = 2**20
"""Largest total size of the values that are kept; enough for 131,072 strips."""

_COMPRESSIONS = (1, 2, 3, 4, 5, 7, 8, 32773, 32946)  # none, CCITT, LZW, JPEG, deflate, PackBits
_JPEG = 7
_MAX_TILE = 2**26  # pixels
_BYTES_OF = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_CODE_OF = {1: "B", 3: "H", 4: "I", 16: "Q"}
_WIDTH, _HEIGHT, _COMPRESSION, _ORIENTATION = 256, 257, 259, 274
_TILE_WIDTH, _TILE_HEIGHT, _BYTE_COUNTS = 322, 323, (279, 325)
_KEPT = (
    _WIDTH, _HEIGHT, 258, _COMPRESSION, 262, 266, 273, _ORIENTATION, 277, 278, 279, 284, 292, 293, 317, 320,
    _TILE_WIDTH, _TILE_HEIGHT, 324, 325, 332, 338, 339, 347, 529, 530, 531, 532,
)  # fmt: skip


class Layout(NamedTuple):
    """Formats of `struct`: plain TIFF or BigTIFF, little or big endian."""

    order: str
    length: str
    entry: str
    offset: str
    first: int

    @property
    def inline(self) -> int:
        """Largest size in bytes of a value that is stored in its entry."""
        return struct.calcsize(self.offset)


class Entry(NamedTuple):
    """An entry of a directory; `value` is the value itself if it is small, else its offset."""

    tag: int
    kind: int
    n: int
    value: bytes
    raw: bytes


def orientation_of(exif: bytes) -> int:
    r"""Return the orientation in an Exif block, 1 to 8; 1 if there is none or the block is unreadable.

    Example:
        >>> orientation_of(b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 274, 3, 1, 6))
        6
    """
    try:
        layout = _layout(exif)
        found = next((e for e in _entries(exif, layout) if e.tag == _ORIENTATION and e.kind == 3), None)
    except (struct.error, OverflowError, ImageError):
        return 1
    value = 1 if found is None else int(struct.unpack_from(layout.order + "H", found.value)[0])
    return value if 1 <= value <= 8 else 1


def strip_tiff(content: bytes) -> tuple[bytes, int]:
    """Return a copy with one directory without metadata, and the number of decoder passes over the pixels."""
    layout = _layout(content)
    kept = {e.tag: e for e in _entries(content, layout) if e.tag in _KEPT and e.kind in _BYTES_OF}
    if sum(_BYTES_OF[e.kind] * e.n for e in kept.values()) > MAX_TAG_BYTES:
        raise ImageError(f"the entries of its directory have more than {MAX_TAG_BYTES} bytes")
    numbers = {tag: _numbers(content, layout, entry) for tag, entry in kept.items() if entry.kind in _CODE_OF}
    compression = (numbers.get(_COMPRESSION) or (1,))[0]
    if compression not in _COMPRESSIONS:
        raise ImageError(f"its compression is TIFF's number {compression}, which is not taken")
    if (numbers.get(_TILE_WIDTH) or (1,))[0] * (numbers.get(_TILE_HEIGHT) or (1,))[0] > _MAX_TILE:
        raise ImageError(f"its tiles have more than {_MAX_TILE} pixels")
    counts = [count for tag in _BYTE_COUNTS for count in numbers.get(tag, ())]
    if compression != 1 and sum(counts) > len(content):
        raise ImageError("its strips have more bytes than its file")
    extra = content.count(b"\xff\xda") - len(counts) if compression == _JPEG else 0
    place = _first_directory(content, layout)
    made = bytearray(content)
    directory = struct.pack(layout.order + layout.length, len(kept)) + b"".join(e.raw for e in kept.values())
    directory += bytes(layout.inline)
    made[place : place + len(directory)] = directory
    return bytes(made), 1 + max(0, extra)


def _layout(content: bytes) -> Layout:
    order = {b"II": "<", b"MM": ">"}.get(content[:2])
    magic = struct.unpack_from((order or "<") + "H", content, 2)[0]
    if order is None or magic not in (42, 43):
        raise ImageError("its directory cannot be read")
    return Layout(order, "H", "HHI4s", "I", 4) if magic == 42 else Layout(order, "Q", "HHQ8s", "Q", 8)


def _first_directory(content: bytes, layout: Layout) -> int:
    return int(struct.unpack_from(layout.order + layout.offset, content, layout.first)[0])


def _entries(content: bytes, layout: Layout) -> Iterator[Entry]:
    start = _first_directory(content, layout)
    (n,) = struct.unpack_from(layout.order + layout.length, content, start)
    if n > MAX_ENTRIES:
        raise ImageError(f"its directory has {n} entries, more than {MAX_ENTRIES}")
    start += struct.calcsize(layout.order + layout.length)
    size = struct.calcsize(layout.order + layout.entry)
    for i in range(n):
        raw = content[start + i * size : start + (i + 1) * size]
        tag, kind, length, value = struct.unpack(layout.order + layout.entry, raw)
        yield Entry(tag, kind, length, value, raw)


def _numbers(content: bytes, layout: Layout, entry: Entry) -> tuple[int, ...]:
    form = f"{layout.order}{entry.n}{_CODE_OF[entry.kind]}"
    if struct.calcsize(form) <= layout.inline:
        return struct.unpack_from(form, entry.value)
    (offset,) = struct.unpack(layout.order + layout.offset, entry.value)
    return struct.unpack_from(form, content, offset)

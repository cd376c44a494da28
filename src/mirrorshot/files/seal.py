"""The seal of a file: a checksum over all of its bytes, kept in its header.

Design note: bytes and not content, so that no flipped bit is left out, whatever it means. The header of the file is
sealed with zeros in the place of the seal. The seal finds damage, not forgery: whoever can write the file can seal it.
"""

import hashlib

BLANK = "0" * 64
"""Written in the place of the seal until it is known."""


def with_seal(data: bytes) -> bytes:
    """A file with its seal in the place of the first `BLANK`."""
    place = data.index(BLANK.encode())
    seal = _digest(data, place)
    return data[:place] + seal.encode() + data[place + len(seal) :]


def has_seal(data: bytes, seal: object) -> bool:
    """Whether `seal`, which the header of the file names, is that of its bytes.

    Example:
        >>> sealed = with_seal(b"some header " + BLANK.encode() + b" and some data")
        >>> seal = sealed[12:76].decode()
        >>> has_seal(sealed, seal), has_seal(sealed.replace(b"data", b"date"), seal)
        (True, False)
    """
    if not isinstance(seal, str) or len(seal) != len(BLANK) or not seal.isascii():
        return False
    place = data.find(seal.encode())
    return place >= 0 and _digest(data, place) == seal


def _digest(data: bytes, place: int) -> str:
    found = hashlib.sha256(data[:place])
    found.update(BLANK.encode())
    found.update(memoryview(data)[place + len(BLANK) :])
    return found.hexdigest()

"""Rows of a table, texts or embeddings, and the inputs of the checks."""

import hashlib
import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders import Encoder
from mirrorshot.encoders.base import unit
from mirrorshot.encoders.texts import MAX_CHARACTERS
from mirrorshot.tool.doctor.images import Seen
from mirrorshot.tool.encoding import encode_items
from mirrorshot.tool.items import Items

_N_BITS = 1024  # of the hash of a text


def look_at_rows(path: Path, items: Items, encoder: Encoder) -> Seen:
    """Encode every row once and compute the inputs of the checks."""
    found = encode_items(encoder, items)
    n = len(found.items.names)
    is_text = items.kind == "text"
    texts = [str(text) for text in found.items.content] if is_text else []
    rows = [_plain(text).encode() for text in texts] if is_text else [row.tobytes() for row in found.embeddings]
    return Seen(
        root=path,
        names=found.items.names,
        labels=found.items.labels or [""] * n,
        sizes=[(_N_BITS, _N_BITS)] * n,
        has_colour=[False] * n,
        is_blank=np.full(n, not is_text),  # excludes embeddings from the search for near copies
        digests=[hashlib.sha256(row).hexdigest() for row in rows],
        hashes=np.stack([words_hash(text) for text in texts]) if is_text else np.zeros((n, 1), np.float32),
        embeddings=unit(found.embeddings),
        damaged=found.damaged,
        empty=[],
        noun="texts" if is_text else "rows",
    )


def words_hash(text: str) -> NDArray[np.float32]:
    """Hash the words of a text to ones among 1,024 zeros; texts that share most words have similar hashes.

    Example:
        >>> float(words_hash("one two") @ words_hash("Two, one!"))
        2.0
    """
    bits = np.zeros(_N_BITS, np.float32)
    bits[[zlib.crc32(word.encode()) % _N_BITS for word in _plain(text[:MAX_CHARACTERS]).split()]] = 1.0
    return bits


def _plain(text: str) -> str:
    """Drop capitals, punctuation and repeated spaces."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text

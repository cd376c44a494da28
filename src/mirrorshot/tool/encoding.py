"""From items to embeddings, batch by batch; damaged pictures are told, not hidden."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mirrorshot.data.decoding import read_pictures
from mirrorshot.data.source import first
from mirrorshot.encoders import Choice, Embeddings, Encoder, EncoderError, choose_encoder
from mirrorshot.tool.items import Items
from mirrorshot.types import DataError

Progress = Callable[[int, int, str], None]
THUMBNAIL = 48  # pixels of a side
_AT_ONCE = 128  # pictures that are decoded and held at a time
_LOOKED_AT = 50  # pictures that decide what `auto` means


class Encoded(NamedTuple):
    """Items that could be read, as embeddings.

    Attributes:
        items: those that could be read.
        embeddings: one row for each, (n, D).
        thumbnails: small pictures (n, 48, 48, 3) of bytes; None of texts and embeddings, or if not wanted.
        damaged: names of the others, and why.
    """

    items: Items
    embeddings: Embeddings
    thumbnails: NDArray[np.uint8] | None
    damaged: dict[str, str]


def encode_items(
    encoder: Encoder, items: Items, *, thumbnails: bool = False, progress: Progress | None = None
) -> Encoded:
    """Embeddings of items.

    Args:
        encoder: has to take items of this kind.
        items: what to encode.
        thumbnails: also keep small pictures.
        progress: told how far it has come.

    Raises:
        EncoderError: the encoder takes items of another kind.
        DataError: no picture at all can be read.
    """
    if isinstance(items.content, np.ndarray):
        if encoder.kind != "embedding":
            raise EncoderError(
                f"Expected {encoder.kind}s, which encoder {encoder.name!r} takes, but got embeddings. "
                f"Pass {encoder.kind}s, or fit a model on embeddings."
            )
        return Encoded(items, items.content, None, {})
    if items.kind == "text" and encoder.kind == "picture" and ":" not in encoder.name:
        raise EncoderError(
            f"Expected pictures, which encoder {encoder.name!r} takes, but got texts. Name an encoder for texts, for "
            "instance sentence-transformers:all-MiniLM-L6-v2."
        )
    if items.kind == "text":
        return Encoded(items, encoder.encode([str(text) for text in items.content]), None, {})
    return _encode_pictures(encoder, items, thumbnails, progress)


def _encode_pictures(encoder: Encoder, items: Items, thumbnails: bool, progress: Progress | None) -> Encoded:
    paths: list[Any] = list(items.content)
    parts: list[Any] = []
    small: list[NDArray[np.uint8]] = []
    kept: list[int] = []
    damaged: dict[str, str] = {}
    for start in range(0, len(paths), _AT_ONCE):
        if progress is not None:
            progress(start, len(paths), "reading pictures")
        found = read_pictures(paths[start : start + _AT_ONCE])
        pictures = [picture for picture in found if isinstance(picture, Image.Image)]
        kept += [start + i for i, picture in enumerate(found) if isinstance(picture, Image.Image)]
        damaged |= {items.names[start + i]: why for i, why in enumerate(found) if isinstance(why, str)}
        if pictures:
            parts.append(encoder.encode(pictures))
            small += [thumbnail(picture) for picture in pictures] if thumbnails else []
    if progress is not None:
        progress(len(paths), len(paths), "reading pictures")
    if not parts:
        raise DataError(f"Expected a picture that can be read, but all {len(paths)} cannot: {in_words(damaged)}.")
    return Encoded(items.take(kept), np.concatenate(parts), np.stack(small) if small else None, damaged)


def thumbnail(picture: Image.Image) -> NDArray[np.uint8]:
    """A small picture of the whole one, on white, (48, 48, 3)."""
    framed = ImageOps.pad(picture.convert("RGB"), (THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR, color="white")
    return np.asarray(framed)


def decide(items: Items) -> Choice:
    """The encoder that `auto` means for these items.

    Raises:
        EncoderError: texts, for which no encoder is part of the package.
    """
    if items.kind == "embedding":
        return Choice("embeddings", "the items are embeddings already")
    if items.kind == "text":
        raise EncoderError(
            "Expected the name of an encoder for texts, but got none. For instance: pip install sentence-transformers, "
            "then --encoder sentence-transformers:all-MiniLM-L6-v2 --download"
        )
    step = max(1, len(items.content) // _LOOKED_AT)
    found = read_pictures([path for path in items.content[::step] if isinstance(path, (Path, bytes))])
    return choose_encoder([picture for picture in found if isinstance(picture, Image.Image)])


def in_words(damaged: dict[str, str]) -> str:
    """Damaged pictures with the reasons, the first few."""
    return first([f"{name} ({why})" for name, why in damaged.items()], 3)


def unique_names(names: Sequence[str]) -> list[str]:
    """The names with a number behind those that occur again.

    Example:
        >>> unique_names(["a", "b", "a", "a"])
        ['a', 'b', 'a (2)', 'a (3)']
    """
    seen: set[str] = set()
    found = []
    for name in names:
        new, number = name, 1
        while new in seen:
            number += 1
            new = f"{name} ({number})"
        seen.add(new)
        found.append(new)
    return found


def check_damaged(found: Encoded, skip_corrupt: bool, labels: Sequence[str] | None = None) -> None:
    """Refuse damaged pictures unless they may be left out, and in any case a class that loses all of its pictures."""
    if found.damaged and not skip_corrupt:
        raise DataError(
            f"Expected every picture to be readable, but {len(found.damaged)} are not: {in_words(found.damaged)}; "
            "remove them, or leave them out with --skip-corrupt (skip_corrupt=True in Python)."
        )
    lost = sorted(set(labels or ()) - set(found.items.labels or ()))
    if lost:
        raise DataError(f"Expected every class to have a readable picture, but {len(lost)} have none: {first(lost)}.")

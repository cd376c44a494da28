"""Embeddings of items, computed in batches. Unreadable images and empty texts are reported."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mirrorshot.data.decoding import Progress, read_pictures
from mirrorshot.encoders import Embeddings, Encoder, EncoderError
from mirrorshot.files.texts import checked_class_names, count, few, first
from mirrorshot.tool.items import Items
from mirrorshot.types import DataError

T = TypeVar("T")
THUMBNAIL = 48  # side in pixels
_AT_ONCE = 16  # images per batch
_WORDS = {"picture": "images", "text": "texts", "embedding": "embeddings"}
_ADVICE = {
    "picture": "Pass a table of texts.",
    "text": "Pass items that it takes, or fit a model with an encoder for texts, for instance wordllama or tfidf.",
    "embedding": "Pass items that it takes, or fit a model on embeddings.",
}


class Encoded(NamedTuple):
    """Embeddings of items.

    Attributes:
        items: the readable items.
        embeddings: their embeddings, (n, D).
        thumbnails: (n, 48, 48, 3) bytes; None for texts and embeddings, or if not requested.
        damaged: names of the unreadable items, and the reasons.
    """

    items: Items
    embeddings: Embeddings
    thumbnails: NDArray[np.uint8] | None
    damaged: dict[str, str]


def encode_items(
    encoder: Encoder, items: Items, *, thumbnails: bool = False, progress: Progress | None = None
) -> Encoded:
    """Compute the embeddings of items and, if requested, their thumbnails.

    Raises:
        EncoderError: the encoder takes items of another kind.
        DataError: no image or text is readable, or the columns of a table are not those of the encoder.
    """
    is_function = ":" in encoder.name and encoder.kind == "picture" and items.kind == "text"  # may take texts as well
    if encoder.kind not in (items.kind, "embedding") and not is_function:
        raise EncoderError(
            f"Expected {_WORDS[encoder.kind]}, which encoder {encoder.name!r} takes, but got {_WORDS[items.kind]}. "
            f"{_ADVICE[items.kind]}"
        )
    if isinstance(items.content, np.ndarray):
        X = _in_order(items.content, items.columns, encoder.settings.get("columns"))
        return Encoded(items, encoder.encode(X), None, {})  # type: ignore[arg-type]
    if items.kind == "text":
        return _encode_texts(encoder, items)
    return _encode_images(encoder, items, thumbnails, progress)


def _in_order(X: Embeddings, columns: list[str] | None, wanted: list[str] | None) -> Embeddings:
    """Put the columns of a table into the order of the model's, if both have names."""
    if columns is None or wanted is None or columns == wanted:
        return X
    missing, other = ([name for name in a if name not in b] for a, b in ((wanted, columns), (columns, wanted)))
    if missing or other:
        has = f"it lacks {first(missing)}" if missing else f"it also has {first(other)}"
        raise DataError(f"Expected a table with the columns of the model, {first(wanted, 20)}, but {has}.")
    return X[:, [columns.index(name) for name in wanted]]


def _encode_texts(encoder: Encoder, items: Items) -> Encoded:
    kept = [i for i, text in enumerate(items.content) if str(text).strip()]
    damaged = {items.names[i]: "the text is empty" for i in sorted({*range(len(items.names))} - {*kept})}
    if not kept:
        raise DataError(f"Expected a text that is not empty, but got {count(len(damaged), 'empty texts')}.")
    readable = items.take(kept)
    return Encoded(readable, encoder.encode([str(text) for text in readable.content]), None, damaged)


def _encode_images(encoder: Encoder, items: Items, thumbnails: bool, progress: Progress | None) -> Encoded:
    readable, embeddings, small, damaged = look_at_images(encoder, items, thumbnail if thumbnails else None, progress)
    if not len(embeddings):
        none = count(len(damaged), "images")
        raise DataError(f"Expected an image that can be read, but got {none} that cannot: {in_words(damaged)}.")
    return Encoded(readable, embeddings, np.stack(small) if small else None, damaged)


def look_at_images(
    encoder: Encoder, items: Items, fact: Callable[[Image.Image], T] | None, progress: Progress | None
) -> tuple[Items, Embeddings, list[T], dict[str, str]]:
    """Decode each image once; return the readable items, embeddings, facts, and reasons of the damaged, by name."""
    kept: list[int] = []
    parts: list[Any] = []
    facts: list[T] = []
    damaged: dict[str, str] = {}
    for batch in read_batches(items.content, progress):
        images = {i: image for i, image in batch.items() if isinstance(image, Image.Image)}
        damaged |= {items.names[i]: reason for i, reason in batch.items() if isinstance(reason, str)}
        kept += images
        parts += [encoder.encode(list(images.values()))] if images else []
        facts += [fact(image) for image in images.values()] if fact else []
    embeddings = np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)
    return items.take(kept), embeddings, facts, damaged


def read_batches(paths: Any, progress: Progress | None = None) -> Iterator[dict[int, Image.Image | str]]:
    """Decode images in batches, by index; an unreadable image is replaced by the reason."""
    for start in range(0, len(paths), _AT_ONCE):
        if progress is not None:
            progress(start, len(paths), "reading images")
        yield dict(enumerate(read_pictures(paths[start : start + _AT_ONCE]), start))
    if progress is not None:
        progress(len(paths), len(paths), "reading images")


def thumbnail(image: Image.Image) -> NDArray[np.uint8]:
    """Return a small copy of the whole image, padded with white, (48, 48, 3)."""
    framed = ImageOps.pad(image.convert("RGB"), (THUMBNAIL, THUMBNAIL), Image.Resampling.BILINEAR, color="white")
    return np.asarray(framed)


def in_words(damaged: dict[str, str]) -> str:
    """Name the first few damaged images with the reasons."""
    return few([f"{name} ({why})" for name, why in damaged.items()])


def unique_names(names: Sequence[str]) -> list[str]:
    """Append numbers to repeated names.

    Example:
        >>> unique_names(["a", "b", "a", "a"])
        ['a', 'b', 'a (2)', 'a (3)']
    """
    seen: dict[str, None] = {}
    for name in names:
        new, number = name, 1
        while new in seen:
            number += 1
            new = f"{name} ({number})"
        seen[new] = None
    return list(seen)


def check_damaged(found: Encoded, skip_corrupt: bool, labels: Sequence[str] | None = None) -> None:
    """Refuse damaged items, unless `skip_corrupt`, and a class without any readable item."""
    if found.damaged and not skip_corrupt:
        raise DataError(
            f"Expected every item to be readable, but {count(len(found.damaged), 'items')} cannot be read: "
            f"{in_words(found.damaged)}; remove them, or leave them out with --skip-corrupt "
            "(skip_corrupt=True in Python)."
        )
    lost = sorted(set(labels or ()) - set(found.items.labels or ()))
    if lost:
        raise DataError(f"Expected every class to have a readable item, but {len(lost)} have none: {first(lost)}.")


def class_names(labels: Sequence[str]) -> list[str]:
    """Return checked names of classes; warn if two spellings become one class."""
    names = checked_class_names(labels)
    forms = dict(zip(labels, names, strict=True))
    merged = [name for name, n in Counter(forms.values()).items() if n > 1]
    if merged:
        warnings.warn(
            "Some names of classes differ only in space or in their Unicode form and are one class: "
            f"{first(sorted(merged))}.",
            stacklevel=3,
        )
    return names

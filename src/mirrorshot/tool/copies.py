"""Search for copies among items, by content: repeated images, texts or rows, and images that were saved again.

Design note: a model file holds embeddings and thumbnails of its examples, not their files, so these are compared. A
copy is exact if embeddings and thumbnails are equal. It is near if only the embeddings are equal, or if the thumbnails
correlate to at least 0.999, and to 0.99 after the mean image (the background of a fixed camera) is subtracted. None of
the 1.6 million pairs of scikit-learn's digits correlates above 0.996; JPEG files of quality 60, smaller copies and
noise of 4 levels stay above 0.9997. Rejected: the cosine of embeddings alone, which is higher for different digits
(0.998) than for copies (0.97).
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.files.texts import few
from mirrorshot.tool.encoding import Encoded
from mirrorshot.tool.model import Model
from mirrorshot.types import DataError

_SAME = 1e-5  # relative distance of embeddings that differ by rounding
_ALIKE, _ALIKE_CENTRED = 0.999, 0.99  # correlations of thumbnails
_COARSE = 0.998  # correlation of averages of 3 x 3 pixels, a cheap test that excludes most pairs
_ALIKE_TEXT = 0.999  # cosine of the embeddings of texts
_CHUNK = 512


class Content(NamedTuple):
    """Items to compare: embeddings (n, D), thumbnails (n, 48, 48, 3) or None, and whether they are texts."""

    embeddings: NDArray[Any]
    thumbnails: NDArray[np.uint8] | None
    are_texts: bool = False


class Copy(NamedTuple):
    """Item `row` is a copy of item `other`, exact or near."""

    row: int
    other: int
    is_exact: bool


def find_copies(items: Content, others: Content | None = None) -> list[Copy]:
    """Return the items that are copies of one of `others` or, without `others`, of an earlier item; each item once.

    Example:
        >>> X = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
        >>> find_copies(Content(X, None))
        [Copy(row=2, other=0, is_exact=True)]
    """
    target = items if others is None else others
    if not len(items.embeddings) or not len(target.embeddings):
        return []
    found: dict[int, Copy] = {}
    for pair in [*_same(items, target), *_alike(items, target)]:
        if (others is not None or pair.other < pair.row) and pair.row not in found:
            found[pair.row] = pair
    return [found[row] for row in sorted(found)]


def copies_in_model(model: Model, start: int = 0) -> list[Copy]:
    """Return the examples of a model from index `start` on that are copies of earlier ones."""
    X, images, are_texts = _examples(model)
    before, new = (
        Content(X[part], None if images is None else images[part], are_texts)
        for part in (slice(start), slice(start, None))
    )
    pairs = [Copy(start + copy.row, start + copy.other, copy.is_exact) for copy in find_copies(new)]
    pairs += [copy._replace(row=start + copy.row) for copy in find_copies(new, before)]
    found = {pair.row: pair for pair in sorted(pairs, key=lambda pair: pair.is_exact)}  # exact ones overwrite others
    return [found[row] for row in sorted(found)]


def copies_of_examples(model: Model, found: Encoded) -> list[Copy]:
    """Return the encoded items that are copies of examples of the model; `other` is the index of the example."""
    return find_copies(Content(found.embeddings, found.thumbnails), _examples(model))


def without(found: Encoded, rows: Iterable[int]) -> Encoded:
    """Return the encoded items without some rows."""
    left_out = set(rows)
    kept = [i for i in range(len(found.embeddings)) if i not in left_out]
    thumbnails = None if found.thumbnails is None else found.thumbnails[kept]
    return Encoded(found.items.take(kept), found.embeddings[kept], thumbnails, found.damaged)


def contradictions(copies: Iterable[Copy], labels: Sequence[str], other_labels: Sequence[str]) -> list[Copy]:
    """Return the exact copies whose label differs from that of the original."""
    return [copy for copy in copies if copy.is_exact and labels[copy.row] != other_labels[copy.other]]


def refuse_contradictions(shown: Sequence[str]) -> None:
    """Raise a `DataError` that names the items with two labels, if there are any."""
    if shown:
        raise DataError(
            f"Expected one class for each item, but got the same under two classes: {few(shown)}. Remove the wrong "
            "ones, or keep both labels with --allow-contradictions."
        )


def _examples(model: Model) -> Content:
    return Content(model.embeddings, model.thumbnails, model.encoder.kind == "text")


def _same(items: Content, others: Content) -> list[Copy]:
    """Pairs of equal embeddings; a pair is exact if the thumbnails are equal, too."""
    X, Z = (np.asarray(part.embeddings, dtype=np.float64) for part in (items, others))
    known = np.asarray(X.any(1) | (not others.are_texts))  # texts without a word of the encoder have zero embeddings
    X, Z = X - Z.mean(0), Z - Z.mean(0)  # the distance is relative, and columns of a table may be far from zero
    size, other_size = (X**2).sum(1), (Z**2).sum(1)
    pairs = []
    for start in range(0, len(X), _CHUNK):
        part = slice(start, start + _CHUNK)
        distance = size[part, None] + other_size - 2 * X[part] @ Z.T
        scale = np.maximum(size[part, None], other_size)
        is_same = (distance <= _SAME**2 * scale) & known[part, None]
        pairs += [Copy(start + int(i), int(j), _equal(items, others, start + i, j)) for i, j in np.argwhere(is_same)]
    return sorted(pairs, key=lambda pair: (pair.row, not pair.is_exact, pair.other))


def _equal(items: Content, others: Content, i: int, j: int) -> bool:
    if items.thumbnails is None or others.thumbnails is None:
        return True
    return bool((items.thumbnails[i] == others.thumbnails[j]).all())


def _alike(items: Content, others: Content) -> list[Copy]:
    if items.thumbnails is not None and others.thumbnails is not None:
        return _alike_images(items.thumbnails, others.thumbnails)
    if not others.are_texts:
        return []
    return _above(_unit(items.embeddings), _unit(others.embeddings), _ALIKE_TEXT)


def _alike_images(images: NDArray[np.uint8], others: NDArray[np.uint8]) -> list[Copy]:
    coarse = _above(_correlating(_shrunk(images)), _correlating(_shrunk(others)), _COARSE)
    if not coarse:
        return []
    mean = np.mean([_correlating(image.reshape(1, -1))[0] for image in others], 0) if len(others) > 1 else 0.0
    pairs = []
    for pair in coarse:
        one, two = _correlating(np.stack([images[pair.row].ravel(), others[pair.other].ravel()]))
        centred = _unit(np.stack([one, two]) - mean)
        if one @ two >= _ALIKE and centred[0] @ centred[1] >= _ALIKE_CENTRED:
            pairs.append(pair)
    return pairs


def _above(X: NDArray[np.float32], Z: NDArray[np.float32], least: float) -> list[Copy]:
    pairs = []
    for start in range(0, len(X), _CHUNK):
        alike = X[start : start + _CHUNK] @ Z.T >= least
        pairs += [Copy(start + int(i), int(j), False) for i, j in np.argwhere(alike)]
    return pairs


def _shrunk(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    n, height, width, depth = images.shape
    small = images.reshape(n, height // 3, 3, width // 3, 3, depth).mean((2, 4), dtype=np.float32)
    return np.asarray(small.reshape(n, -1), dtype=np.float32)


def _correlating(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Standardised rows: their products are correlations. Constant rows become zero."""
    return _unit(rows - rows.mean(1, keepdims=True, dtype=np.float32))


def _unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(length, 1e-9), dtype=np.float32)

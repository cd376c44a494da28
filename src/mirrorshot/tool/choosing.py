"""Automatic choice of the encoder for images and texts, and of the scale for tables.

The encoder with the highest leave-one-out likelihood of the labels is chosen, with a bonus for the expected one. The
expected encoder follows from the looks of images, or from the order of `candidates`. It is chosen without comparison if
no class has two examples.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.classifier import Learned
from mirrorshot.classifier.inputs import differ_in_units
from mirrorshot.data.decoding import read_pictures
from mirrorshot.encoders import Choice, Embeddings, Item, candidates, choose_encoder, make_encoder
from mirrorshot.encoders.plain import NoEncoder
from mirrorshot.tool.items import Items
from mirrorshot.tool.priors import with_prior

_N_CLASSES, _PER_CLASS = 10, 5  # classes, and examples of each, on which encoders are compared
_AT_ONCE, _SIDE = 8, 512  # images per batch, and the side that they are reduced to
_LOOKED_AT = 50  # unlabelled items to look at; rounding of the step makes it up to 99
_LOOKS, _EXPECTED = 8.0, 3.0  # bonus in nats of the expected encoder, for images and for texts


def decide(items: Items) -> Choice:
    """Return the encoder that `auto` stands for with these items, and the reason.

    Example:
        >>> decide(Items("text", ["a", "b"], ["good", "bad"], None)).name in candidates("text")
        True
    """
    if items.kind == "embedding":
        return Choice("embeddings", "the items are embeddings already")
    rows = _tried(items.labels) if items.labels is not None else list(range(len(items.names)))[:: _step(items)]
    content = _read(items.take(rows).content)
    kept = {i: item for i, item in zip(rows, content, strict=True) if item is not None}
    expected = _expected(items, list(kept.values()))
    labels = [items.labels[i] for i in kept] if items.labels is not None else []
    names = candidates(items.kind)
    if max(Counter(labels).values(), default=0) < 2 or len(set(labels)) < 2 or len(names) < 2:
        return expected
    return _compare(names, list(kept.values()), labels, expected)


def _step(items: Items) -> int:
    return max(1, len(items.names) // _LOOKED_AT)


def _tried(labels: Sequence[str]) -> list[int]:
    """Return the indices of the first few examples of the largest classes."""
    chosen = {label for label, _ in Counter(labels).most_common(_N_CLASSES)}
    seen: Counter[str] = Counter()
    rows = []
    for i, label in enumerate(labels):
        seen[label] += 1
        if label in chosen and seen[label] <= _PER_CLASS:
            rows.append(i)
    return rows


def _read(content: Any) -> list[Item | None]:
    """Return reduced images or texts, with None for unreadable images and empty texts."""
    if not isinstance(content[0], (Path, bytes)):
        return [text if text.strip() else None for text in content]
    found: list[Item | None] = []
    for start in range(0, len(content), _AT_ONCE):  # in batches: many large photographs would not fit in memory
        for image in read_pictures(content[start : start + _AT_ONCE]):
            if isinstance(image, Image.Image):
                image.thumbnail((_SIDE, _SIDE))
            found.append(image if isinstance(image, Image.Image) else None)
    return found


def _expected(items: Items, content: Sequence[Item]) -> Choice:
    names = candidates(items.kind)
    if items.kind == "text":
        advice = "" if len(names) > 1 else " Others are better: pip install 'mirrorshot[text]'"
        return Choice(names[0], "for texts, the one to begin with", advice)
    return choose_encoder([image for image in content if isinstance(image, Image.Image)], names[0])


def _compare(names: Sequence[str], content: list[Item], labels: list[str], expected: Choice) -> Choice:
    y = np.array(labels, dtype=np.str_)
    scores = {}
    for name in names:
        encoder = make_encoder(name).fit(content)
        scores[name] = Learned.fit(encoder.encode(content), y, **with_prior(encoder)).fitted.loo_log_likelihood
    bonus = _LOOKS if isinstance(content[0], Image.Image) else _EXPECTED
    best = max(names, key=lambda name: scores[name] + (bonus if name == expected.name else 0.0))
    shown = ", ".join(f"{name} {score / len(y):.2f}" for name, score in scores.items())
    reason = f"leave-one-out log-likelihood per example in nats: {shown}"
    return Choice(best, f"{expected.reason}; {reason}" if best == expected.name else reason, expected.advice)


def table_scale(X: Embeddings) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return mean and standard deviation of the columns of a table, if `differ_in_units`; else None.

    Example:
        >>> table_scale(np.array([[1.0, 1000.0], [2.0, 3000.0], [1.5, 100.0]])) is None
        False
    """
    if not differ_in_units(X):
        return None
    deviation = X.astype(np.float64).std(0)
    return X.mean(0), np.where(deviation > 0, deviation, 1.0)


def table_encoder(items: Items) -> NoEncoder:
    """Return an encoder of given embeddings that keeps column names and standardises columns of different units."""
    mean, scale = table_scale(np.asarray(items.content)) or (None, None)
    return NoEncoder(mean, scale, columns=items.columns)

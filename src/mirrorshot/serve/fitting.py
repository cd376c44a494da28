"""Classifiers of users, fitted on demand and cached."""

import asyncio
import threading
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from mirrorshot.classifier import Learned
from mirrorshot.encoders import Encoder
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.forms import PictureAnswer
from mirrorshot.serve.images import read_previews
from mirrorshot.serve.records import Rows
from mirrorshot.tool import Model
from mirrorshot.tool.encoding import unique_names
from mirrorshot.tool.priors import with_prior


class Fitted(NamedTuple):
    """A model, and the `support`, encoder (identity) and example ids that it was fitted on.

    `told` caches its answers about stored images by their ids; they are valid until the examples change.
    """

    support: int
    encoder: str
    ids: list[int]
    model: Model
    novelty_threshold: float
    told: dict[int, PictureAnswer]

    @property
    def n_bytes(self) -> int:
        """Approximate size in memory: two matrices for each class, embeddings and answers."""
        (n, d), n_classes = self.model.embeddings.shape, len(self.model.classes)
        return int(8 * (2 * n_classes * n * n + 3 * n * d) + len(self.told) * (1000 + 650 * n_classes) + 2**14)


def fit(rows: Rows, encoder: Encoder | None, parameters: dict[str, Any], before: Fitted | None = None) -> Fitted:
    """Fit a model on the examples of a user; `encoder` is None if there are none.

    If few examples have changed since the user's model `before`, that one is updated, which is faster. Each edit is
    verified or solved again (`FewShotClassifier.start_`), so the probabilities are those of a new fit to 1e-6. The
    order of the examples differs.
    """
    n_classes = len(set(rows.labels))
    if n_classes < 2 or encoder is None:
        raise RequestError(
            409, f"Expected examples of at least two classes, but got {n_classes}. Add an image to another class."
        )
    updated = None if before is None else _update(before, rows)
    if updated is None:
        learned = Learned.fit(rows.embeddings, np.array(rows.labels, dtype=np.str_), **with_prior(encoder, parameters))
    else:
        learned, rows = updated
    previews = read_previews(rows.previews)
    model = Model(encoder, unique_names(rows.names), rows.labels, rows.embeddings, learned, previews)
    return Fitted(rows.support, str(rows.encoder), rows.ids, model, model.novelty_threshold(), {})


def _update(before: Fitted, rows: Rows) -> tuple[Learned, Rows] | None:
    """Update an earlier classifier; return it with the examples in its order, or None if a new fit is faster."""
    if before.encoder != rows.encoder:
        return None
    old = dict(zip(before.ids, before.model.labels, strict=True))
    new = dict(zip(rows.ids, rows.labels, strict=True))
    gone = [place for place, number in enumerate(before.ids) if new.get(number) != old[number]]
    come = [place for place, number in enumerate(rows.ids) if old.get(number) != new[number]]
    if len(gone) + len(come) > max(2, len(rows.ids) // 8):
        return None
    learned = before.model.learned
    if come:
        learned = learned.add(rows.embeddings[come], np.array([rows.labels[place] for place in come], dtype=np.str_))
    if gone:
        learned = learned.remove(gone)
    come_ids = {rows.ids[place] for place in come}
    places = {number: place for place, number in enumerate(rows.ids)}
    stayed = [places[number] for number in before.ids if number in places and number not in come_ids]
    return learned, rows.take([*stayed, *come])


class Cache:
    """The most recently used models, limited in bytes but at least one, and a lock for each user."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._fitted: OrderedDict[str, Fitted] = OrderedDict()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._change = threading.Lock()

    def turn(self, key: str) -> asyncio.Lock:
        """Return the lock of a user, so that two requests do not fit the same model."""
        return self._turns.setdefault(key, asyncio.Lock())

    def get(self, key: str, support: int) -> Fitted | None:
        """Return the model of a user if it was fitted on these examples."""
        with self._change:
            found = self._fitted.get(key)
            if found is None or found.support != support:
                return None
            self._fitted.move_to_end(key)
            return found

    def earlier(self, key: str) -> Fitted | None:
        """Return the latest model of a user, whatever its examples."""
        with self._change:
            return self._fitted.get(key)

    def put(self, key: str, fitted: Fitted) -> None:
        """Store a model."""
        with self._change:
            self._fitted[key] = fitted
            self._fitted.move_to_end(key)
        self.shrink()

    def shrink(self) -> None:
        """Drop the least recently used models beyond the limit; cached answers make models larger."""
        with self._change:
            while len(self._fitted) > 1 and sum(found.n_bytes for found in self._fitted.values()) > self._max_bytes:
                self._fitted.popitem(last=False)

    def forget(self, key: str) -> None:
        """Drop the model of a user."""
        with self._change:
            self._fitted.pop(key, None)

    def __len__(self) -> int:
        return len(self._fitted)

"""Fitted models: the encoder, the support with its names, and the classifier."""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier import FewShotClassifier
from mirrorshot.encoders import Embeddings, Encoder, make_encoder
from mirrorshot.encoders.plain import NoEncoder
from mirrorshot.encoders.texts import MAX_CHARACTERS
from mirrorshot.files.texts import checked_class_names, first
from mirrorshot.tool.choosing import table_scale
from mirrorshot.tool.encoding import Encoded, Progress, check_damaged, encode_items, unique_names
from mirrorshot.tool.items import Items
from mirrorshot.tool.results import Prediction, Reason, Word
from mirrorshot.tool.scores import Scores, scores_of
from mirrorshot.types import DataError, InvalidInputError

_TRIED_WORDS = 64  # of a text, in `words`
NOVELTY_RATE = 0.05
"""Share of images of known classes that may be called "none of these"."""


class Model:
    """An encoder, a labelled support, and a `FewShotClassifier` that was fitted on it.

    Make one with `Model.fit` and read one with `Model.load`. `add` and `remove` edit the support; if they
    raise an error, the model stays as it was. Methods that take an `Encoded` want it from `encode_items` with the
    encoder of the model.

    Args:
        encoder: made the embeddings.
        names: of the examples, all different.
        labels: their classes.
        embeddings: of the examples, (n, D).
        head: the classifier, fitted on them in this order.
        thumbnails: small images (n, 48, 48, 3) of bytes, or None.

    Example:
        >>> X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]])
        >>> model = Model.fit(Items("embedding", ["a0", "a1", "b0", "b1"], X, ["a", "a", "b", "b"]))
        >>> model.predict(Items("embedding", ["new"], np.array([[0.2, 0.8]]), None))[0].label
        'a'
        >>> model.remove(["a1"]).names
        ['a0', 'b0', 'b1']
    """

    def __init__(
        self,
        encoder: Encoder,
        names: Sequence[str],
        labels: Sequence[str],
        embeddings: Embeddings,
        head: FewShotClassifier,
        thumbnails: NDArray[np.uint8] | None = None,
    ) -> None:
        self.encoder, self.head = encoder, head
        self.names, self.labels = list(names), list(labels)
        self.embeddings, self.thumbnails = embeddings, thumbnails

    @classmethod
    def fit(
        cls,
        items: Items,
        encoder: Encoder | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        thumbnails: bool = True,
        skip_corrupt: bool = False,
        progress: Progress | None = None,
    ) -> "Model":
        """Fit a model on labelled items.

        Args:
            items: of at least two classes.
            encoder: of images or texts; ignored for embeddings.
            parameters: of `FewShotClassifier`.
            thumbnails: whether to keep small images of the examples in the model.
            skip_corrupt: whether to leave out images that cannot be read; otherwise they are an error.
            progress: called with the number of items read, their total and the activity.

        Raises:
            DataError: no labels, one class only, or damaged images.
        """
        if items.labels is None:
            raise DataError("Expected labelled items, but got none with a label. Use a folder for each class.")
        encoder = (encoder or make_encoder("embeddings")) if items.kind != "embedding" else _table_encoder(items)
        encoder = encoder.fit([str(text) for text in items.content]) if items.kind == "text" else encoder
        found = encode_items(encoder, items, thumbnails=thumbnails, progress=progress)
        check_damaged(found, skip_corrupt, items.labels)
        labels = _class_names(found.items.labels or [])
        if len(set(labels)) < 2:
            raise DataError(
                f"Expected examples of at least two classes, but got {len(labels)} of one: {first(list(set(labels)))}. "
                "Add a folder for another class; for 'this or something else' make a class of other things."
            )
        y, options = np.array(labels, dtype=np.str_), dict(parameters or {})
        head = FewShotClassifier(**options).fit(found.embeddings, y)
        return cls(encoder, unique_names(found.items.names), labels, found.embeddings, head, found.thumbnails)

    @property
    def classes(self) -> list[str]:
        """The classes, in the order of probabilities."""
        return [str(label) for label in self.head.classes_]

    def predict(
        self,
        items: Items,
        *,
        coverage: float = 0.9,
        novelty_threshold: float | None = None,
        progress: Progress | None = None,
    ) -> list[Prediction]:
        """Classify items, which have to be readable; `encode_items` and `predict_encoded` allow for damaged ones."""
        found = encode_items(self.encoder, items, progress=progress)
        check_damaged(found, False)
        return self.predict_encoded(found, coverage=coverage, novelty_threshold=novelty_threshold)

    def predict_encoded(
        self, found: Encoded, *, coverage: float = 0.9, novelty_threshold: float | None = None
    ) -> list[Prediction]:
        """Classify encoded items.

        Args:
            found: the items.
            coverage: of the sets of labels.
            novelty_threshold: novelty above which an item is none of the classes. None: that of `FewShotClassifier`,
                which calls about one in twenty items of known classes novel.
        """
        X = self.check_embeddings(found.embeddings)
        prob, novelty, parts = self.head.predict_proba(X), self.head.novelty(X), self.head.uncertainty(X)
        threshold = self.head.novelty_threshold(NOVELTY_RATE) if novelty_threshold is None else novelty_threshold
        sets = self._label_sets(X, coverage)
        classes, best = self.classes, prob.argmax(1)
        return [
            Prediction(
                name=name,
                label=classes[best[i]],
                probability=float(prob[i, best[i]]),
                is_novel=bool(novelty[i] > threshold),
                labels=sets[i],
                novelty=float(novelty[i]),
                epistemic=float(parts.epistemic[i]),
                aleatoric=float(parts.aleatoric[i]),
                probabilities=dict(zip(classes, map(float, prob[i]), strict=True)),
                novelty_threshold=float(threshold),
            )
            for i, name in enumerate(found.items.names)
        ]

    def _label_sets(self, X: Embeddings, coverage: float) -> Sequence[tuple[str, ...] | None]:
        """Sets of labels; None for each item if there are too few examples for any."""
        try:
            in_set = self.head.predict_set(X, coverage)
        except InvalidInputError:
            if not 0.0 < coverage < 1.0:
                raise
            return [None] * len(X)
        return [tuple(c for c, is_in in zip(self.classes, row, strict=True) if is_in) for row in in_set]

    def score(self, found: Encoded) -> Scores:
        """Compare the predictions for labelled items with their labels.

        Raises:
            DataError: no labels, or none that the model knows.
        """
        labels = np.array(found.items.labels or [], dtype=np.str_)
        known = np.isin(labels, self.classes)
        if not known.any():
            raise DataError(
                f"Expected items of the classes of the model ({first(self.classes)}), but got "
                f"{first(sorted(set(labels.tolist())))}. Name the folders as the classes."
            )
        X = self.check_embeddings(found.embeddings)
        is_novel = self.head.novelty(X) > self.head.novelty_threshold(NOVELTY_RATE)
        return scores_of(self.classes, labels, self.head.predict_log_proba(X[known]), is_novel)

    def explain(self, found: Encoded, label: str | None = None, n: int = 5) -> list[list[Reason]]:
        """Return the `n` examples that speak most for or against a class at each item, the strongest first.

        The class is `label` or, if that is None, the most probable one of each item.
        """
        classes = self.classes
        if label is not None and label not in classes:
            raise InvalidInputError(f"Expected a class of the model ({first(classes)}), but got {label!r}.")
        X = self.check_embeddings(found.embeddings)
        added, best = self.head.explain(X), self.head.predict_proba(X).argmax(1)
        rows = [added[i, best[i] if label is None else classes.index(label)] for i in range(len(X))]
        orders = [np.argsort(-np.abs(row), kind="stable")[:n] for row in rows]
        return [
            [Reason(self.names[j], self.labels[j], float(row[j])) for j in order]
            for row, order in zip(rows, orders, strict=True)
        ]

    def words(self, found: Encoded, label: str | None = None, n: int = 5) -> list[list[Word]]:
        """Return the `n` words of each text without which the log-odds of a class would change most.

        The class is as in `explain`. The first 64 words of a text are tried.
        """
        classes = self.classes
        best = self.head.predict_proba(self.check_embeddings(found.embeddings)).argmax(1)
        chosen = best if label is None else np.full(len(best), classes.index(label))
        return [self._words(str(text), int(c), n) for text, c in zip(found.items.content, chosen, strict=True)]

    def _words(self, text: str, c: int, n: int) -> list[Word]:
        words = list(dict.fromkeys(re.findall(r"\w+", text[:MAX_CHARACTERS])))[:_TRIED_WORDS]
        changed = [re.sub(rf"\b{re.escape(word)}\b", " ", text) for word in words]
        p = np.clip(self.head.predict_proba(self.encoder.encode([text, *changed]))[:, c], 1e-12, 1 - 1e-12)
        odds = np.log(p) - np.log1p(-p)
        order = np.argsort(-np.abs(odds[0] - odds[1:]), kind="stable")[:n]
        return [Word(words[j], float(odds[0] - odds[1 + j])) for j in order]

    def suggest(self, found: Encoded, k: int = 1) -> list[str]:
        """Return the names of the `k` items whose labels would help most, the most useful first."""
        rows = self.head.suggest(self.check_embeddings(found.embeddings), min(k, len(found.embeddings)))
        return [found.items.names[i] for i in rows]

    def add(self, found: Encoded, labels: Sequence[str]) -> "Model":
        """Add examples with their labels, perhaps of new classes. Only the classifier learns them."""
        if len(labels) != len(found.embeddings) or not all(labels):
            raise InvalidInputError(f"Expected a label for each of {len(found.embeddings)} items, but got {labels!r}.")
        labels = checked_class_names(labels, self.classes)
        X = self.check_embeddings(found.embeddings)
        together = np.concatenate([self.embeddings, X])
        names = unique_names([*self.names, *found.items.names])
        thumbnails = self.thumbnails
        if thumbnails is not None:
            thumbnails = None if found.thumbnails is None else np.concatenate([thumbnails, found.thumbnails])
        self.head.add(X, np.array(labels, dtype=np.str_))
        self.names, self.labels, self.embeddings, self.thumbnails = names, [*self.labels, *labels], together, thumbnails
        return self

    def remove(self, names: Iterable[str]) -> "Model":
        """Remove examples by their names."""
        wanted = set(names)
        unknown = sorted(wanted - set(self.names))
        if unknown or not wanted:
            raise InvalidInputError(
                f"Expected names of examples of the model, but got {first(unknown) or 'none'}. "
                f"It has {first(self.names, 3)}."
            )
        kept = [i for i, name in enumerate(self.names) if name not in wanted]
        labels = [self.labels[i] for i in kept]
        if len(set(labels)) < 2:
            raise InvalidInputError("Expected examples of at least two classes to stay, but too few would. Keep some.")
        self.head.remove(np.setdiff1d(np.arange(len(self.names)), kept), drop_class=True)
        self.names, self.labels, self.embeddings = [self.names[i] for i in kept], labels, self.embeddings[kept]
        self.thumbnails = None if self.thumbnails is None else self.thumbnails[kept]
        return self

    def check_embeddings(self, X: Embeddings) -> Embeddings:
        """Refuse embeddings of another length than the model's."""
        if X.ndim != 2 or X.shape[1] != self.embeddings.shape[1]:
            raise InvalidInputError(
                f"Expected embeddings of length {self.embeddings.shape[1]}, as the model has, but got shape {X.shape}. "
                "Use the encoder that the model was fitted with."
            )
        return X

    def save(self, path: str | Path) -> None:
        """Write the model to one file, all or nothing; see `mirrorshot.tool.model_file`."""
        from mirrorshot.tool.model_file import save_model

        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, trust_encoder: bool = False, download: bool = False) -> "Model":
        """Read a model that `save` wrote.

        A function that the file names as its encoder is imported only with `trust_encoder`, and weights of an encoder
        are fetched only with `download`.

        Raises:
            CheckpointError: the file is cut off, changed, foreign, or of a newer mirrorshot.
        """
        from mirrorshot.tool.model_file import load_model

        return load_model(Path(path), trust_encoder=trust_encoder, download=download)


def _table_encoder(items: Items) -> Encoder:
    """The encoder of given embeddings, which makes columns of different units alike."""
    scale = table_scale(items.content) if isinstance(items.content, np.ndarray) else None
    return NoEncoder() if scale is None else NoEncoder(*scale)


def _class_names(labels: Sequence[str]) -> list[str]:
    """Check names of classes; warn of two forms that become one class."""
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

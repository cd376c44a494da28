"""A fitted model as a thing: the encoder, the support with its names, and the classifier on top."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier import FewShotClassifier
from mirrorshot.data.source import first
from mirrorshot.encoders import Embeddings, Encoder, make_encoder
from mirrorshot.files.texts import checked_class_names
from mirrorshot.tool.encoding import Encoded, Progress, check_damaged, encode_items, unique_names
from mirrorshot.tool.items import Items
from mirrorshot.tool.prediction import Prediction, Reason
from mirrorshot.types import DataError, InvalidInputError

NOVELTY_RATE = 0.05
"""Share of pictures of known classes that may be called "none of these"."""


class Model:
    """An encoder, a labelled support, and a `FewShotClassifier` that was fitted on it.

    Make one with `Model.fit` and read one with `Model.load`. `add` and `remove` edit the support; if they
    raise an error, the model stays as it was.

    Args:
        encoder: what made the embeddings.
        names: name of each example, all different.
        labels: its class.
        embeddings: its embedding, (n, D).
        head: the classifier, fitted on them in this order.
        thumbnails: small pictures (n, 48, 48, 3) of bytes, or None.

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
            items: at least two classes.
            encoder: None for embeddings.
            parameters: of `FewShotClassifier`.
            thumbnails: keep small pictures of the examples in the model.
            skip_corrupt: leave out pictures that cannot be read; otherwise they are an error.
            progress: told how far it has come.

        Raises:
            DataError: no labels, one class only, or damaged pictures.
        """
        if items.labels is None:
            raise DataError("Expected labelled items, but got none with a label. Use a folder for each class.")
        encoder = encoder or make_encoder("embeddings")
        found = encode_items(encoder, items, thumbnails=thumbnails, progress=progress)
        check_damaged(found, skip_corrupt, items.labels)
        labels = _class_names(found.items.labels or [])
        if len(set(labels)) < 2:
            raise DataError(
                f"Expected examples of at least two classes, but got {len(labels)} of one: {first(list(set(labels)))}. "
                "Add a folder for another class; for 'this or something else' make a class of other things."
            )
        head = FewShotClassifier(**(parameters or {})).fit(found.embeddings, np.array(labels, dtype=np.str_))
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
        """Classify items. Every one has to be readable; `encode_items` and `predict_encoded` allow for damaged ones."""
        found = encode_items(self.encoder, items, progress=progress)
        check_damaged(found, False)
        return self.predict_encoded(found, coverage=coverage, novelty_threshold=novelty_threshold)

    def predict_encoded(
        self, found: Encoded, *, coverage: float = 0.9, novelty_threshold: float | None = None
    ) -> list[Prediction]:
        """Classify items that are encoded.

        Args:
            found: from `encode_items`, with the encoder of the model.
            coverage: of the sets of labels.
            novelty_threshold: novelty from which an item is none of the classes. None: `FewShotClassifier`'s
                `novelty_threshold`, which calls about one in twenty items of known classes novel.
        """
        X = self.check_embeddings(found.embeddings)
        prob, novelty, parts = self.head.predict_proba(X), self.head.novelty(X), self.head.uncertainty(X)
        threshold = self.head.novelty_threshold(NOVELTY_RATE) if novelty_threshold is None else novelty_threshold
        try:
            in_set = self.head.predict_set(X, coverage)
        except InvalidInputError:
            if not 0.0 < coverage < 1.0:
                raise
            in_set = None  # too few examples for any set
        classes = self.classes
        best = prob.argmax(1)
        return [
            Prediction(
                name,
                classes[best[i]],
                float(prob[i, best[i]]),
                bool(novelty[i] > threshold),
                None if in_set is None else tuple(c for c, is_in in zip(classes, in_set[i], strict=True) if is_in),
                float(novelty[i]),
                float(parts.epistemic[i]),
                float(parts.aleatoric[i]),
                dict(zip(classes, map(float, prob[i]), strict=True)),
            )
            for i, name in enumerate(found.items.names)
        ]

    def explain(self, found: Encoded, label: str | None = None, n: int = 5) -> list[list[Reason]]:
        """The examples that speak most for or against a class at each item, the strongest first.

        Args:
            found: from `encode_items`.
            label: the class. None: the most probable one of each item.
            n: how many examples.
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

    def suggest(self, found: Encoded, k: int = 1) -> list[str]:
        """Names of the `k` items whose labels would help most, the most useful first."""
        rows = self.head.suggest(self.check_embeddings(found.embeddings), min(k, len(found.embeddings)))
        return [found.items.names[i] for i in rows]

    def add(self, found: Encoded, labels: Sequence[str]) -> "Model":
        """Add labelled examples, perhaps of new classes. The classifier learns them; nothing else is trained.

        Args:
            found: from `encode_items`, with the encoder of the model.
            labels: one for each; non-empty text.
        """
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
        self._keep(names, [*self.labels, *labels], together, thumbnails)
        return self

    def remove(self, names: Iterable[str]) -> "Model":
        """Take examples out by their names."""
        wanted = set(names)
        unknown = sorted(wanted - set(self.names))
        if unknown or not wanted:
            raise InvalidInputError(
                f"Expected names of examples of the model, but got {first(unknown) or 'none'}. "
                f"It has {first(self.names, 3)}."
            )
        rows = [i for i, name in enumerate(self.names) if name not in wanted]
        labels = [self.labels[i] for i in rows]
        if len(set(labels)) < 2:
            raise InvalidInputError("Expected examples of at least two classes to stay, but too few would. Keep some.")
        thumbnails = None if self.thumbnails is None else self.thumbnails[rows]
        self.head.remove(np.setdiff1d(np.arange(len(self.names)), rows), drop_class=True)
        self._keep([self.names[i] for i in rows], labels, self.embeddings[rows], thumbnails)
        return self

    def _keep(self, names: list[str], labels: list[str], X: Embeddings, thumbnails: NDArray[np.uint8] | None) -> None:
        self.names, self.labels, self.embeddings, self.thumbnails = names, labels, X, thumbnails

    def check_embeddings(self, X: Embeddings) -> Embeddings:
        """Refuse embeddings of another length than the model's."""
        if X.ndim != 2 or X.shape[1] != self.embeddings.shape[1]:
            raise InvalidInputError(
                f"Expected embeddings of length {self.embeddings.shape[1]}, as the model has, but got shape {X.shape}. "
                "Use the encoder that the model was fitted with."
            )
        return X

    def save(self, path: str | Path) -> None:
        """Write the model to one file, all or nothing; see `mirrorshot.tool.file`."""
        from mirrorshot.tool.file import save_model

        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, trust_encoder: bool = False, download: bool = False) -> "Model":
        """Read a model that `save` wrote.

        Args:
            path: the file.
            trust_encoder: whether a function that the file names as its encoder may be imported when it is needed.
            download: whether weights of its encoder may be fetched.

        Raises:
            CheckpointError: the file is cut off, changed, foreign, or of a newer mirrorshot.
        """
        from mirrorshot.tool.file import load_model

        return load_model(Path(path), trust_encoder=trust_encoder, download=download)


def _class_names(labels: Sequence[str]) -> list[str]:
    """Checked names; the user is told of two forms that become one class."""
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

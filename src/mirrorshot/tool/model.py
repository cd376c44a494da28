"""Fitted models: an encoder, a labelled support and a classifier."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier import Learned, Suspects, decide, explain, predict, promise
from mirrorshot.classifier.inputs import check_share
from mirrorshot.data.decoding import Progress
from mirrorshot.encoders import Embeddings, Encoder, make_encoder
from mirrorshot.files.texts import checked_class_names, first
from mirrorshot.files.writing import write_atomically
from mirrorshot.tool.choosing import table_encoder
from mirrorshot.tool.encoding import Encoded, check_damaged, class_names, encode_items, unique_names
from mirrorshot.tool.items import Items
from mirrorshot.tool.priors import with_prior
from mirrorshot.tool.results import Prediction, Reason, Word
from mirrorshot.tool.scores import Scores, scores_of
from mirrorshot.tool.words import words_that_count
from mirrorshot.types import DataError, InvalidInputError

if TYPE_CHECKING:
    from mirrorshot.classifier import FewShotClassifier

NOVELTY_RATE = 0.05
"""Share of items of known classes that may be called "none of these"."""


class Model:
    """An encoder, a labelled support, and a classifier that was fitted on it.

    Create a model with `Model.fit` or `Model.load`. `add` and `remove` edit the support; if they raise an error, the
    model is unchanged. Methods that take an `Encoded` expect it from `encode_items` with the encoder of the model.
    Names are unique. The order of the classifier's examples is that of the embeddings (n, D). Thumbnails are
    (n, 48, 48, 3) bytes, or None.

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
        learned: Learned,
        thumbnails: NDArray[np.uint8] | None = None,
    ) -> None:
        self.encoder, self.learned = encoder, learned
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
        """Fit a model on labelled items of at least two classes.

        Args:
            items: the examples.
            encoder: the encoder of images or texts; ignored for embeddings.
            parameters: parameters of `FewShotClassifier`. The default `prior` is that of the encoder, unless they name
                another kernel than "auto" and "cosine".
            thumbnails: whether to keep thumbnails of the examples in the model.
            skip_corrupt: whether to skip unreadable items; otherwise they are an error.
            progress: called with the number of images read, their total and the activity.

        Raises:
            DataError: there are no labels, only one class, or damaged items.
        """
        if items.labels is None:
            raise DataError("Expected labelled items, but got none with a label. Use a folder for each class.")
        encoder = table_encoder(items) if items.kind == "embedding" else encoder
        encoder = encoder or make_encoder("embeddings")
        encoder = encoder.fit([str(text) for text in items.content]) if items.kind == "text" else encoder
        found = encode_items(encoder, items, thumbnails=thumbnails, progress=progress)
        check_damaged(found, skip_corrupt, items.labels)
        labels = class_names(found.items.labels or [])
        if len(set(labels)) < 2:
            raise DataError(
                f"Expected examples of at least two classes, but got {len(labels)} of one: {first(list(set(labels)))}. "
                "Add another class; for 'this or something else' make one of other things."
            )
        learned = Learned.fit(found.embeddings, np.array(labels, dtype=np.str_), **with_prior(encoder, parameters))
        return cls(encoder, unique_names(found.items.names), labels, found.embeddings, learned, found.thumbnails)

    @property
    def head(self) -> "FewShotClassifier":
        """A scikit-learn estimator with the current state of the classifier; changes to it do not affect the model."""
        from mirrorshot.classifier import FewShotClassifier

        return FewShotClassifier.from_learned(self.learned)

    @property
    def classes(self) -> list[str]:
        """The classes, in the order of the columns of probabilities."""
        return [str(label) for label in self.learned.fitted.classes]

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the table that the model was fitted on; empty if there are none."""
        return list(self.encoder.settings.get("columns") or [])

    def predict(
        self,
        items: Items,
        *,
        coverage: float = 0.9,
        novelty_threshold: float | None = None,
        progress: Progress | None = None,
    ) -> list[Prediction]:
        """Classify items. An unreadable one is an error; to skip it, use `encode_items` and `predict_encoded`."""
        found = encode_items(self.encoder, items, progress=progress)
        check_damaged(found, False)
        return self.predict_encoded(found, coverage=coverage, novelty_threshold=novelty_threshold)

    def predict_encoded(
        self, found: Encoded, *, coverage: float = 0.9, novelty_threshold: float | None = None
    ) -> list[Prediction]:
        """Classify encoded items, with sets of labels of the given `coverage`.

        An item whose novelty exceeds `novelty_threshold` is none of the classes. By default about one in twenty items
        of known classes exceeds it.
        """
        X = self.check_embeddings(found.embeddings)
        query = self.learned.queries(X)
        prob, novelty, parts = predict.proba(*query), decide.novelty(*query), decide.uncertainty(*query)
        threshold = self.novelty_threshold() if novelty_threshold is None else novelty_threshold
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
        check_share("coverage", coverage)
        try:
            in_set = promise.predict_set(*self.learned.queries(X), coverage, guarantee=False)
        except InvalidInputError:
            return [None] * len(X)
        return [tuple(c for c, is_in in zip(self.classes, row, strict=True) if is_in) for row in in_set]

    def score(self, found: Encoded) -> Scores:
        """Compare the predictions for labelled items with their labels."""
        labels = np.array(found.items.labels or [], dtype=np.str_)
        known = np.isin(labels, self.classes)
        if not known.any():
            raise DataError(
                f"Expected items of the classes of the model ({first(self.classes)}), but got "
                f"{first(sorted(set(labels.tolist())))}. Name the folders as the classes."
            )
        X = self.check_embeddings(found.embeddings)
        is_novel = decide.novelty(*self.learned.queries(X)) > self.novelty_threshold()
        return scores_of(self.classes, labels, predict.log_proba(*self.learned.queries(X[known])), is_novel)

    def explain(self, found: Encoded, label: str | None = None, n: int = 5) -> list[list[Reason]]:
        """Return the `n` examples that contribute most to the latent of a class at each item, the strongest first.

        The class is `label` or, by default, the most probable class of each item.
        """
        classes = self.classes
        if label is not None and label not in classes:
            raise InvalidInputError(f"Expected a class of the model ({first(classes)}), but got {label!r}.")
        X = self.check_embeddings(found.embeddings)
        fitted, x, prior_mean = self.learned.queries(X)
        added, best = explain.contributions(fitted, x), predict.proba(fitted, x, prior_mean).argmax(1)
        rows = [added[i, best[i] if label is None else classes.index(label)] for i in range(len(X))]
        orders = [np.argsort(-np.abs(row), kind="stable")[:n] for row in rows]
        return [
            [Reason(self.names[j], self.labels[j], float(row[j])) for j in order]
            for row, order in zip(rows, orders, strict=True)
        ]

    def words(self, found: Encoded, label: str | None = None, n: int = 5) -> list[list[Word]]:
        """Return the `n` words of each text whose removal changes the log-odds of a class (as in `explain`) most."""
        best = predict.proba(*self.learned.queries(self.check_embeddings(found.embeddings))).argmax(1)
        chosen = best if label is None else np.full(len(best), self.classes.index(label))
        texts = zip(map(str, found.items.content), map(int, chosen), strict=True)
        return [words_that_count(self.learned, self.encoder, text, c, n) for text, c in texts]

    def suggest(self, found: Encoded, k: int = 1) -> list[str]:
        """Return the names of the `k` items whose labels would help most, the most useful first."""
        return [found.items.names[i] for i in self.suggest_rows(found.embeddings, k)]

    def suggest_rows(self, embeddings: Embeddings, k: int = 1) -> list[int]:
        """Return the indices of the `k` embeddings (n, D) whose labels would help most."""
        fitted, pool, _ = self.learned.queries(self.check_embeddings(embeddings))
        return [int(row) for row in decide.suggest(fitted, pool, min(k, len(embeddings)))]

    def suspects(self) -> Suspects:
        """Rank the examples by the probability of their label given the other examples, the lowest first."""
        return decide.suspects(self.learned.fitted)

    def novelty_threshold(self) -> float:
        """Return the novelty that about one in twenty items of the known classes exceeds."""
        return decide.novelty_threshold(self.learned.fitted, NOVELTY_RATE)

    def add(self, found: Encoded, labels: Sequence[str]) -> "Model":
        """Add labelled examples, also of new classes. The encoder stays the same."""
        X = self.check_embeddings(found.embeddings)
        if len(labels) != len(X) or not all(labels):
            raise InvalidInputError(f"Expected a label for each of {len(X)} items, but got {labels!r}.")
        labels = checked_class_names(labels, self.classes)
        together = np.concatenate([self.embeddings, X])
        names = unique_names([*self.names, *found.items.names])
        thumbnails = self.thumbnails
        if thumbnails is not None:
            thumbnails = None if found.thumbnails is None else np.concatenate([thumbnails, found.thumbnails])
        self.learned = self.learned.add(X, np.array(labels, dtype=np.str_))
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
        self.learned = self.learned.remove(np.setdiff1d(np.arange(len(self.names)), kept))
        self.names, self.labels, self.embeddings = [self.names[i] for i in kept], labels, self.embeddings[kept]
        self.thumbnails = None if self.thumbnails is None else self.thumbnails[kept]
        return self

    def check_embeddings(self, X: Embeddings) -> Embeddings:
        """Return the embeddings; raise an `InvalidInputError` if their length is not that of the model."""
        if X.ndim != 2 or X.shape[1] != self.embeddings.shape[1]:
            raise InvalidInputError(
                f"Expected embeddings of length {self.embeddings.shape[1]}, as the model has, but got shape {X.shape}. "
                "Use the columns or the encoder that the model was fitted with."
            )
        return X

    def save(self, path: str | Path) -> None:
        """Write the model to one file, atomically; see `mirrorshot.tool.model_file`."""
        from mirrorshot.tool.model_file import model_bytes

        write_atomically(Path(path), model_bytes(self))

    @classmethod
    def load(cls, path: str | Path, *, trust_encoder: bool = False, download: bool = False) -> "Model":
        """Read a model that `save` wrote; a missing or damaged file raises a `CheckpointError`.

        A user's function is imported as its encoder only with `trust_encoder`; weights of an encoder are downloaded
        only with `download`.
        """
        from mirrorshot.tool.model_file import load_model

        return load_model(Path(path), trust_encoder=trust_encoder, download=download)

"""A fitted classifier with its settings, for programs with plain arrays.

Design note: `FewShotClassifier` accepts frames, lists and other data, but its base class needs scikit-learn. Importing
it takes half a second, as long as all the rest of `mirrorshot predict`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier import edit
from mirrorshot.classifier.examples import Examples
from mirrorshot.classifier.fit import Settings, learn
from mirrorshot.classifier.fitted import Fitted
from mirrorshot.classifier.inputs import check_embeddings
from mirrorshot.classifier.predict import queries
from mirrorshot.types import InvalidInputError


class Learned(NamedTuple):
    """An immutable classifier: `add` and `remove` return a new one.

    Attributes:
        fitted: the fitted value.
        settings: the checked parameters, which an edit uses again.
        feature_names: names of the features, if it was fitted to a data frame.

    Example:
        >>> X, y = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0]]), np.array(["a", "a", "b"])
        >>> found = Learned.fit(X, y, kernel="cosine")
        >>> found.remove([1]).add(X[1:2], y[1:2]).fitted.classes.tolist()
        ['a', 'b']
    """

    fitted: Fitted
    settings: Settings
    feature_names: list[str] | None = None

    @classmethod
    def fit(cls, X: NDArray[Any], y: NDArray[Any], **parameters: Any) -> "Learned":
        """Fit embeddings (n, D) and labels (n,), with the parameters of `FewShotClassifier`."""
        settings = Settings(**parameters).check()
        return cls(learn(settings, _examples(X, y)), settings)

    def add(self, X: NDArray[Any], y: NDArray[Any]) -> "Learned":
        """Return a classifier with additional examples, appended to the existing ones."""
        more = _examples(X, y)._replace(declared=self.fitted.examples.declared)
        return self._replace(fitted=edit.extend(self.fitted, self.settings, more, None))

    def remove(self, index: Any) -> "Learned":
        """Return a classifier without the examples at `index`; a class without examples is removed."""
        return self._replace(fitted=edit.reduce(self.fitted, self.settings, index, drop_class=True))

    def queries(self, X: NDArray[Any]) -> tuple[Fitted, NDArray[np.float64], NDArray[np.float64]]:
        """Return the arguments for functions of `predict`, `decide`, `promise` and `explain` from embeddings (M, D)."""
        if not len(X):
            raise InvalidInputError(f"Expected at least one query, but got an array of shape {X.shape}.")
        return queries(self.fitted, _as_double(X)[None], None)


def _examples(X: NDArray[Any], y: NDArray[Any]) -> Examples:
    if X.ndim != 2 or y.shape != X.shape[:1] or X.size == 0:
        raise InvalidInputError(f"Expected embeddings (n, D) and n labels, but got shapes {X.shape} and {y.shape}.")
    return Examples(_as_double(X), y, np.ones(len(X)), None)


def _as_double(X: NDArray[Any]) -> NDArray[np.float64]:
    return check_embeddings(np.asarray(X, dtype=np.float64), X)

"""The examples of a classifier, and operations on them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier.inputs import as_written
from mirrorshot.classifier.prior import FeatureMap
from mirrorshot.classifier.selection import Support
from mirrorshot.files.texts import first
from mirrorshot.types import InvalidInputError


class Examples(NamedTuple):
    """The examples of the user, in order.

    Attributes:
        x: embeddings, (n_examples, n_features).
        targets: their labels.
        weight: how often each counts; examples of weight zero are ignored.
        declared: classes that exist even without an example (`partial_fit`), or None.
        prior: prior scores, (n_examples, n_classes), or None.
    """

    x: NDArray[np.float64]
    targets: NDArray[Any]
    weight: NDArray[np.float64]
    declared: NDArray[Any] | None
    prior: NDArray[np.float64] | None = None

    def classes(self) -> NDArray[Any]:
        """Return all labels, sorted."""
        return np.unique(self.targets if self.declared is None else np.concatenate([self.targets, self.declared]))

    def labels(self) -> NDArray[np.intp]:
        """Return the index of each label among the classes."""
        return np.searchsorted(self.classes(), self.targets)


def support_of(rows: Examples, feature_map: FeatureMap) -> Support:
    """Return the examples of positive weight as a batch of one task, with the features that the kernel sees."""
    used = rows.weight > 0
    return Support(
        feature_map(rows.x[used])[None],
        rows.labels()[used],
        rows.weight[used],
        len(rows.classes()),
        None if rows.prior is None else np.ascontiguousarray(rows.prior[used].T)[None],
    )


def check_index(index: Any, size: int) -> NDArray[np.intp]:
    """Return indices of examples; refuse indices out of range and duplicates."""
    places = np.atleast_1d(np.asarray(index))
    is_integer = places.ndim == 1 and np.issubdtype(places.dtype, np.integer)
    if not is_integer or not len(places) or places.min() < 0 or places.max() >= size:
        got = "a mask; use np.flatnonzero(mask)" if places.dtype.kind == "b" else first(places.tolist()) or "none"
        raise InvalidInputError(f"Expected `index` to be integers from 0 to {size - 1}, but got {got}.")
    if len(np.unique(places)) < len(places):
        raise InvalidInputError(f"Expected `index` to name each example once, but got {first(places.tolist())}.")
    return places


def join_labels(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Return both sets of labels as one array; refuse text and numbers together, which do not sort."""
    try:
        if (old.dtype.kind in "US") != (new.dtype.kind in "US") and "O" not in (old.dtype.kind, new.dtype.kind):
            raise TypeError("text and numbers")
        joined = np.concatenate([old, new])
        np.unique(joined)
    except TypeError as error:
        raise InvalidInputError(
            f"Expected labels that sort with those that are there, such as {as_written(old[0])}, but got "
            f"{as_written(new[0])}."
        ) from error
    return joined

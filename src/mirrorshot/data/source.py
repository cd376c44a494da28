"""A labelled set of items, ready for drawing episodes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrorshot.types import DataError, InvalidInputError


class ClassSource(NamedTuple):
    """Items of several classes: pictures as bytes, or embeddings.

    Make one with `ClassSource.from_arrays`, which checks its arguments.

    Attributes:
        items: pictures (n, channels, height, width) as uint8, or embeddings (n, D) as floats.
        labels: class of each item, 0 to `n_classes - 1`, (n,).
        class_names: name of each class.
        sizes: width and height of the original pictures, (n, 2), where the stored ones are squashed to a square.
            None: the stored pictures have the shape of the originals.

    Example:
        >>> source = ClassSource.from_arrays([[0.0], [1.0], [2.0], [3.0]], ["cat", "cat", "dog", "dog"])
        >>> source.class_names, source.counts.tolist()
        (('cat', 'dog'), [2, 2])
        >>> source.subset(["dog"]).items.tolist()
        [[2.0], [3.0]]
    """

    items: Shaped[Tensor, "n ..."]
    labels: Int[Tensor, " n"]
    class_names: tuple[str, ...]
    sizes: Int[Tensor, "n 2"] | None = None

    @classmethod
    def from_arrays(
        cls, X: ArrayLike | Tensor, y: ArrayLike | Tensor, class_names: Sequence[str] | None = None
    ) -> "ClassSource":
        """Check arrays and bring them into one form.

        Args:
            X: pictures (n, channels, height, width) or (n, height, width) as uint8, or embeddings (n, D) as floats.
            y: a label of each item. Without `class_names` anything that can be sorted; with them, their positions.
            class_names: names of the classes. None: the distinct labels, sorted.

        Raises:
            DataError: no items, a class without items, a value that is not finite, or `X` and `y` do not match.
        """
        items = _as_items(X)
        targets = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        _check_lengths(items, targets)
        _check_finite(items)
        if class_names is None:
            labels, names = _encode(targets)
        else:
            labels, names = _check_positions(targets, len(class_names)), tuple(map(str, class_names))
            _check_no_empty_class(labels, names)
        return cls(items, torch.from_numpy(labels).to(items.device), names)

    @property
    def n_items(self) -> int:
        """Number of items of all classes."""
        return self.items.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def counts(self) -> Int[Tensor, " n_classes"]:
        """Number of items of each class."""
        return torch.bincount(self.labels, minlength=self.n_classes)

    def to(self, device: torch.device | str) -> "ClassSource":
        """The same set on another device; episodes are then gathered there."""
        sizes = None if self.sizes is None else self.sizes.to(device)
        return ClassSource(self.items.to(device), self.labels.to(device), self.class_names, sizes)

    def subset(self, classes: Sequence[int] | Sequence[str]) -> "ClassSource":
        """The items of some classes, given by name or position. Labels are renumbered in the given order."""
        positions = self._positions(classes)
        new_label = torch.full((self.n_classes,), -1, dtype=torch.int64, device=self.labels.device)
        new_label[positions] = torch.arange(len(positions), device=self.labels.device)
        labels = new_label[self.labels]
        keep = labels >= 0
        sizes = None if self.sizes is None else self.sizes[keep]
        return ClassSource(self.items[keep], labels[keep], tuple(self.class_names[i] for i in positions), sizes)

    def split(self, classes: Sequence[int] | Sequence[str]) -> tuple["ClassSource", "ClassSource"]:
        """Two sets without a common class: the items of `classes`, and those of all others.

        Example:
            >>> source = ClassSource.from_arrays([[0.0], [1.0], [2.0]], ["a", "b", "c"])
            >>> test, train = source.split(["b"])
            >>> test.class_names, train.class_names
            (('b',), ('a', 'c'))
        """
        positions = self._positions(classes)
        others = sorted(set(range(self.n_classes)) - set(positions))
        if not others:
            raise DataError(f"Expected `classes` to leave some of the {self.n_classes} classes, but got all of them.")
        return self.subset(positions), self.subset(others)

    def _positions(self, classes: Sequence[int] | Sequence[str]) -> list[int]:
        place = {name: i for i, name in enumerate(self.class_names)}
        positions = [place.get(c, -1) if isinstance(c, str) else int(c) for c in classes]
        unknown = [c for c, i in zip(classes, positions, strict=True) if not 0 <= i < self.n_classes]
        if unknown:
            known = f"names or positions of the {self.n_classes} classes"
            raise DataError(f"Expected `classes` to be {known}, but got {first(unknown)}.")
        if not positions or len(set(positions)) < len(positions):
            raise DataError(
                f"Expected `classes` to be distinct and at least one, but got {len(positions)} entries"
                f" of {len(set(positions))} classes."
            )
        return positions


def first(things: Sequence[Any], n: int = 5) -> str:
    """The first few of a list in words, and how many more there are.

    Example:
        >>> first(["a", "b", "c"], 2)
        "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, things[:n]))
    return shown if len(things) <= n else f"{shown} and {len(things) - n} more"


def _as_items(X: ArrayLike | Tensor) -> Tensor:
    items = X.detach() if isinstance(X, Tensor) else torch.as_tensor(np.ascontiguousarray(X))
    if items.dtype == torch.uint8 and items.ndim == 3:
        items = items[:, None]
    is_picture = items.dtype == torch.uint8 and items.ndim == 4
    is_embedding = items.is_floating_point() and items.ndim == 2
    if not (is_picture or is_embedding):
        raise InvalidInputError(
            "Expected `X` to be pictures (n, channels, height, width) as uint8 or embeddings (n, D) as floats, "
            f"but got shape {tuple(items.shape)} of {items.dtype}."
        )
    if items.numel() == 0:
        raise DataError(f"Expected `X` to hold items, but got shape {tuple(items.shape)}.")
    return items


def _check_lengths(items: Tensor, targets: NDArray[Any]) -> None:
    if targets.shape != (len(items),):
        raise DataError(
            f"Expected `y` to hold one label for each of {len(items)} items, but got shape {targets.shape}."
        )


def _check_finite(items: Tensor) -> None:
    if items.is_floating_point():
        bad = (~items.isfinite().all(1)).nonzero()[:, 0].tolist()
        if bad:
            raise DataError(f"Expected `X` to be finite, but got NaN or infinity in {len(bad)} rows: {first(bad)}.")


def _encode(targets: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if targets.dtype.kind == "f" and not np.isfinite(targets).all():
        bad = np.flatnonzero(~np.isfinite(targets)).tolist()
        raise DataError(f"Expected `y` to be labels, but got NaN or infinity in {len(bad)} rows: {first(bad)}.")
    try:
        values, labels = np.unique(targets, return_inverse=True)
    except TypeError as error:  # None among strings, for instance
        raise DataError(f"Expected `y` to be labels of one kind, but got a mixture: {error}.") from error
    return labels.astype(np.int64), tuple(map(str, values))


def _check_positions(targets: NDArray[Any], n_classes: int) -> NDArray[np.int64]:
    if targets.dtype.kind not in "iu":
        raise DataError(f"Expected `y` to be positions in `class_names`, but got {targets.dtype}.")
    if targets.min() < 0 or targets.max() >= n_classes:
        raise DataError(
            f"Expected `y` to be positions 0 to {n_classes - 1} in `class_names`, "
            f"but got {targets.min()} to {targets.max()}."
        )
    return targets.astype(np.int64)


def _check_no_empty_class(labels: NDArray[np.int64], names: tuple[str, ...]) -> None:
    counts = np.bincount(labels, minlength=len(names))
    empty = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if empty:
        raise DataError(f"Expected every class to have items, but {len(empty)} have none: {first(empty)}.")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(f"Expected `class_names` to be distinct, but these occur more than once: {first(twice)}.")

"""Labelled sets of items, the source of episodes."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, Shaped
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError


class ClassSource(NamedTuple):
    """Items of several classes: images as bytes, or embeddings.

    Create one with `ClassSource.from_arrays`, which checks its arguments.

    Example:
        >>> source = ClassSource.from_arrays([[0.0], [1.0], [2.0], [3.0]], ["cat", "cat", "dog", "dog"])
        >>> source.class_names, source.counts.tolist()
        (('cat', 'dog'), [2, 2])
        >>> source.subset(["dog"]).items.tolist()
        [[2.0], [3.0]]
    """

    items: Shaped[Tensor, "n ..."]  # images (n, channels, height, width) as uint8, or embeddings (n, D) as floats
    labels: Int[Tensor, " n"]  # 0 to `n_classes - 1`
    class_names: tuple[str, ...]
    sizes: Int[Tensor, "n 2"] | None = None  # width and height of the original images

    @classmethod
    def from_arrays(
        cls, X: ArrayLike | Tensor, y: ArrayLike | Tensor, class_names: Sequence[str] | None = None
    ) -> "ClassSource":
        """Create a source from arrays and check them.

        `X` are images, also (n, height, width), or embeddings; `y` are sortable labels or, with `class_names`, indices
        into these. Raises `DataError`: no items, a class without items, a value that is not finite, or `X` and `y` do
        not match.
        """
        items = _as_items(X)
        targets = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        _check_items(items, targets)
        if class_names is None:
            labels, names = _encode(targets)
        else:
            labels, names = _check_positions(targets, len(class_names)), tuple(map(str, class_names))
            _check_classes(labels, names)
        return cls(items, torch.from_numpy(labels).to(items.device), names)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return self.items.shape[0]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def counts(self) -> Int[Tensor, " n_classes"]:
        """Number of items of each class."""
        return torch.bincount(self.labels, minlength=self.n_classes)

    @property
    def fingerprint(self) -> str:
        """Hash of labels and class names without items, so different embeddings of the same images can be compared."""
        digest = hashlib.sha256("\0".join(self.class_names).encode())
        digest.update(self.labels.cpu().numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str) -> "ClassSource":
        """Return the same set on another device. Episodes are gathered there."""
        sizes = None if self.sizes is None else self.sizes.to(device)
        return ClassSource(self.items.to(device), self.labels.to(device), self.class_names, sizes)

    def subset(self, classes: Sequence[int] | Sequence[str]) -> "ClassSource":
        """Return the items of some classes, given by name or index. Labels are renumbered in the given order."""
        positions = self._positions(classes)
        new_label = torch.full((self.n_classes,), -1, dtype=torch.int64, device=self.labels.device)
        new_label[positions] = torch.arange(len(positions), device=self.labels.device)
        labels = new_label[self.labels]
        keep = labels >= 0
        sizes = None if self.sizes is None else self.sizes[keep]
        return ClassSource(self.items[keep], labels[keep], tuple(self.class_names[i] for i in positions), sizes)

    def split(self, classes: Sequence[int] | Sequence[str]) -> tuple["ClassSource", "ClassSource"]:
        """Return two sets without a common class: the items of `classes`, and all others."""
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


def empty_classes(labels: NDArray[Any], names: Sequence[str]) -> list[str]:
    """Return the names of the classes without labels."""
    counts = np.bincount(labels, minlength=len(names))
    return [name for name, count in zip(names, counts, strict=True) if count == 0]


def _as_items(X: ArrayLike | Tensor) -> Tensor:
    items = X.detach() if isinstance(X, Tensor) else torch.as_tensor(np.ascontiguousarray(X))
    if items.dtype == torch.uint8 and items.ndim == 3:
        items = items[:, None]
    is_image = items.dtype == torch.uint8 and items.ndim == 4
    is_embedding = items.is_floating_point() and items.ndim == 2
    if not (is_image or is_embedding):
        raise InvalidInputError(
            "Expected `X` to be images (n, channels, height, width) as uint8 or embeddings (n, D) as floats, "
            f"but got shape {tuple(items.shape)} of {items.dtype}."
        )
    if items.numel() == 0:
        raise DataError(f"Expected `X` to hold items, but got shape {tuple(items.shape)}.")
    return items


def _check_items(items: Tensor, targets: NDArray[Any]) -> None:
    if targets.shape != (len(items),):
        raise DataError(
            f"Expected `y` to hold one label for each of {len(items)} items, but got shape {targets.shape}."
        )
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
    except TypeError as error:  # for instance None among strings
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


def _check_classes(labels: NDArray[np.int64], names: tuple[str, ...]) -> None:
    if empty := empty_classes(labels, names):
        raise DataError(f"Expected every class to have items, but {len(empty)} have none: {first(empty)}.")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DataError(f"Expected `class_names` to be distinct, but these occur more than once: {first(twice)}.")

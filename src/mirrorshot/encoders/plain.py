"""Encoders without weights: pixels, and the identity for given embeddings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, Kind, unit
from mirrorshot.types import InvalidInputError

_MAX_SIDE = 256


class Pixels(Encoder):
    """Images resized to `size` x `size` in colour, flattened and scaled to length one.

    Sufficient for images of a uniform view: scans, screens, a fixed camera. Photographs need a network.

    Example:
        >>> Pixels(size=4).encode([Image.new("RGB", (40, 30), "white")]).shape
        (1, 48)
    """

    def __init__(self, size: int = 24) -> None:
        if type(size) is not int or not 1 <= size <= _MAX_SIDE:
            raise InvalidInputError(f"Expected `size` to be between 1 and {_MAX_SIDE}, but got {size!r}.")
        self.name, self.settings = "pixels", {"size": size}

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return embeddings of images, (n, 3 * size**2)."""
        size = self.settings["size"]
        rows = [
            np.asarray(item.convert("RGB").resize((size, size), Image.Resampling.BILINEAR), dtype=np.float32).ravel()
            for item in items
            if isinstance(item, Image.Image)
        ]
        return unit(np.stack(rows) / np.float32(255.0))


class NoEncoder(Encoder):
    """Stands for the unknown encoder of given embeddings: returns embeddings, standardised or unchanged.

    Args:
        mean, scale: (D,), to standardise the columns of a table of measurements; None: return embeddings unchanged.
        columns: names of the columns; None if they have none.

    Example:
        >>> NoEncoder(np.array([1.0]), np.array([2.0])).encode(np.array([[5.0]]))
        array([[2.]])
    """

    kind: Kind = "embedding"

    def __init__(
        self,
        mean: NDArray[Any] | None = None,
        scale: NDArray[Any] | None = None,
        *,
        columns: list[str] | None = None,
    ) -> None:
        if columns is not None and not _are_names(columns):
            raise EncoderError("Expected names of the columns of a table, but got others.")
        self.name, self.settings = "embeddings", {} if columns is None else {"columns": columns}
        self._scale = None if mean is None or scale is None else (np.asarray(mean), np.asarray(scale))
        if self._scale is not None and not _is_scale(*self._scale):
            raise EncoderError("Expected means and positive scales of the columns of a table, but got others.")

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return mean and scale, if there are any."""
        return {} if self._scale is None else dict(zip(("mean", "scale"), self._scale, strict=True))

    def encode(self, items: Sequence[Item] | Embeddings) -> Embeddings:
        """Return the embeddings, standardised or unchanged; refuse images and texts with an `EncoderError`."""
        if not isinstance(items, np.ndarray):
            raise EncoderError(
                "Expected embeddings, because the model was fitted on embeddings, but got images or texts. Compute "
                "their embeddings in the same way and pass a .npz or .csv file, or fit a model on images."
            )
        if self._scale is None:
            return items
        mean, scale = self._scale
        if items.shape[1] != len(mean):
            raise InvalidInputError(f"Expected embeddings of length {len(mean)}, but got shape {items.shape}.")
        scaled: Embeddings = (items - mean) / scale
        return scaled


def _are_names(columns: Any) -> bool:
    return isinstance(columns, list) and all(isinstance(name, str) for name in columns)


def _is_scale(mean: NDArray[Any], scale: NDArray[Any]) -> bool:
    are_alike = mean.shape == scale.shape and mean.ndim == 1 and {mean.dtype.kind, scale.dtype.kind} == {"f"}
    return are_alike and bool(np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all())

"""Encoders without weights: pixels, and none for embeddings that exist already."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, Kind, unit
from mirrorshot.types import InvalidInputError

_MAX_SIDE = 256


class Pixels(Encoder):
    """Every image resized to `size` x `size` in colour, flattened and scaled to length one.

    Enough for images that are taken alike: scans, screens, a fixed camera. Photographs need a network.

    Example:
        >>> Pixels(size=4).encode([Image.new("RGB", (40, 30), "white")]).shape
        (1, 48)
    """

    def __init__(self, size: int = 24) -> None:
        if type(size) is not int or not 1 <= size <= _MAX_SIDE:
            raise InvalidInputError(f"Expected `size` to be between 1 and {_MAX_SIDE}, but got {size!r}.")
        self.name, self.settings = "pixels", {"size": size}

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Embeddings of images."""
        size = self.settings["size"]
        rows = [
            np.asarray(item.convert("RGB").resize((size, size), Image.Resampling.BILINEAR), dtype=np.float32).ravel()
            for item in items
            if isinstance(item, Image.Image)
        ]
        return unit(np.stack(rows) / np.float32(255.0))


class NoEncoder(Encoder):
    """Stands for the unknown origin of given embeddings: passes them on, and refuses anything else.

    Args:
        mean, scale: of the columns of a table of measurements, (D,), to be taken out; None: pass on as they are.
        columns: their names; None if they have none.

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
        """Means and scales, if there are any."""
        return {} if self._scale is None else dict(zip(("mean", "scale"), self._scale, strict=True))

    def encode(self, items: Sequence[Item] | Embeddings) -> Embeddings:
        """Embeddings as they are, or scaled.

        Raises:
            EncoderError: images or texts, which cannot be compared with embeddings of unknown origin.
            InvalidInputError: embeddings of another length.
        """
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

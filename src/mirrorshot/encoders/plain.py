"""Encoders without weights: pixels, and none for embeddings that exist already."""

from collections.abc import Sequence

import numpy as np
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
    """Stands for the unknown origin of given embeddings; refuses to encode anything."""

    kind: Kind = "embedding"

    def __init__(self) -> None:
        self.name, self.settings = "embeddings", {}

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Refuse: images and texts cannot be compared with embeddings of unknown origin."""
        raise EncoderError(
            "Expected embeddings, because the model was fitted on embeddings, but got images or texts. Compute their "
            "embeddings in the same way and pass a .npz or .csv file, or fit a model on images."
        )

"""The encoder that needs nothing: small pictures, as vectors of length one."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from mirrorshot.encoders.base import Embeddings, Encoder, Item, unit
from mirrorshot.types import InvalidInputError

_MAX_SIDE = 256


class Pixels(Encoder):
    """Every picture brought to `size` x `size` in colour, and flattened.

    Enough for pictures that are taken alike: scans, screens, a fixed camera. Photographs need a network.

    Args:
        size: pixels of a side.

    Example:
        >>> Pixels(size=4).encode([Image.new("RGB", (40, 30), "white")]).shape
        (1, 48)
    """

    def __init__(self, size: int = 24) -> None:
        if type(size) is not int or not 1 <= size <= _MAX_SIDE:
            raise InvalidInputError(f"Expected `size` to be between 1 and {_MAX_SIDE}, but got {size!r}.")
        self.name, self.settings = "pixels", {"size": size}

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Embeddings of pictures."""
        size = self.settings["size"]
        rows = [
            np.asarray(item.convert("RGB").resize((size, size), Image.Resampling.BILINEAR), dtype=np.float32).ravel()
            for item in items
            if isinstance(item, Image.Image)
        ]
        return unit(np.stack(rows) / np.float32(255.0))

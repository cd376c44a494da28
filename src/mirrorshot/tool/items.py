"""Items of one kind, with names and optional labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mirrorshot.encoders import Embeddings, Kind


class Items(NamedTuple):
    """Items of one kind.

    Attributes:
        kind: "picture", "text" or "embedding".
        names: paths, names of a table's column, or row numbers.
        content: images as paths or as the bytes of their files, texts, or embeddings (n, D).
        labels: their classes; None for unlabelled items.
        columns: names of the columns of embeddings from a table; None if they have no names.
    """

    kind: Kind
    names: list[str]
    content: list[Path] | list[bytes] | list[str] | Embeddings
    labels: list[str] | None
    columns: list[str] | None = None

    def take(self, index: Sequence[int]) -> "Items":
        """Return the items at some indices, in that order."""
        content: Any = self.content
        content = content[list(index)] if isinstance(content, np.ndarray) else [content[i] for i in index]
        labels = None if self.labels is None else [self.labels[i] for i in index]
        return Items(self.kind, [self.names[i] for i in index], content, labels, self.columns)

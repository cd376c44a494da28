"""Interface of encoders, and checks of their embeddings."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.types import InvalidInputError, MirrorshotError

Kind = Literal["picture", "text", "embedding"]
Embeddings = NDArray[np.float32] | NDArray[np.float64]
Item = Image.Image | str


class EncoderError(MirrorshotError, RuntimeError):
    """An encoder cannot be created or fails: a package or weights are missing, or it is not trusted."""


class Encoder(abc.ABC):
    """Computes embeddings of items. The embedding of an item does not depend on the other items.

    Attributes:
        name: name for users.
        settings: JSON that, with the name and `tensors`, determines the encoder.
        kind: kind of the items that it takes.
        prior: prior of the classifier, learned on embeddings of this encoder; None if there is none.
    """

    name: str
    settings: dict[str, Any]
    kind: Kind = "picture"
    prior: Any = None

    @abc.abstractmethod
    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return embeddings (n, D) of images, grey ("L") or colour ("RGB") of any size, or of texts."""

    def fit(self, items: Sequence[Item]) -> "Encoder":
        """Return an encoder that is fitted on the items of a model, without labels; `self` by default."""
        return self

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return the weights that a model file has to contain; none by default."""
        return {}


def checked_embeddings(embeddings: Any, n_items: int, name: str) -> Embeddings:
    """Convert the output of an encoder to an array (n, D) of finite floats, or raise an `InvalidInputError`."""
    if hasattr(embeddings, "detach"):  # a torch tensor
        embeddings = embeddings.detach().cpu().float().numpy()
    array = np.asarray(embeddings)
    if array.ndim != 2 or len(array) != n_items or array.dtype.kind not in "fiu" or array.shape[1] == 0:
        raise InvalidInputError(
            f"Expected encoder {name!r} to return an array of shape ({n_items}, D) of numbers, but got shape "
            f"{array.shape} of {array.dtype}."
        )
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)
    if not np.isfinite(array).all():
        raise InvalidInputError(f"Expected encoder {name!r} to return finite numbers, but got NaN or infinity.")
    return array


def unit(embeddings: Embeddings) -> Embeddings:
    """Scale rows to length one; zero rows stay zero."""
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return embeddings / np.where(length > 0, length, 1.0)

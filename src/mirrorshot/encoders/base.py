"""What an encoder is: from pictures (or texts) to embeddings."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mirrorshot.types import InvalidInputError, MirrorshotError

Kind = Literal["picture", "text", "embedding"]
Embeddings = NDArray[np.float32] | NDArray[np.float64]
Item = Image.Image | str


class EncoderError(MirrorshotError, RuntimeError):
    """An encoder cannot be had or does not do its work: a package or weights are missing, or it is not trusted."""


class Encoder(abc.ABC):
    """Turns items into embeddings, always the same for the same item, whatever is beside it.

    Attributes:
        name: what a user calls it by.
        settings: what else is needed to make the same encoder again, as JSON.
        kind: what it takes.
    """

    name: str
    settings: dict[str, Any]
    kind: Kind = "picture"

    @abc.abstractmethod
    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Embeddings (n, D) of pictures, grey ("L") or colour ("RGB") of any size, or of texts."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Weights that a model file has to hold because nothing else does. Usually none."""
        return {}


class NoEncoder(Encoder):
    """For embeddings that somebody else has computed: nothing is left to do."""

    kind: Kind = "embedding"

    def __init__(self) -> None:
        self.name, self.settings = "embeddings", {}

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Refuse: pictures and texts cannot be compared with embeddings of an unknown kind."""
        raise EncoderError(
            "Expected embeddings, because the model was fitted on embeddings, but got pictures or texts. Compute their "
            "embeddings in the same way and pass a .npz or .csv file, or fit a model on pictures."
        )


def checked_embeddings(embeddings: Any, n_items: int, name: str) -> Embeddings:
    """The output of an encoder of unknown origin as an array (n, D) of finite floats."""
    if isinstance(embeddings, Tensor):
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


def unit(embeddings: Embeddings) -> NDArray[np.float32]:
    """Rows scaled to length one; zero rows stay zero."""
    length = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return np.asarray(embeddings / np.where(length > 0, length, 1.0), dtype=np.float32)

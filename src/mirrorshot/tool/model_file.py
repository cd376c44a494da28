"""Model files: one safetensors file with JSON in its header and a checksum.

It holds the encoder's name and settings, weights that are found nowhere else (`Encoder.tensors`), the support with
thumbnails, and the state of the classifier. On the same machine predictions are bitwise equal after loading. Nothing in
the file is executed; a user's function that it names as encoder is imported only with `trust_encoder`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier.save import HeadState, head_state, restore_head
from mirrorshot.encoders import Embeddings, Encoder, Item, Kind, restore_encoder
from mirrorshot.files.checkpoint import Checkpoint, CheckpointError
from mirrorshot.files.sealed import load_sealed, sealed_bytes
from mirrorshot.tool.encoding import THUMBNAIL
from mirrorshot.tool.model import Model

MODEL_VERSION = 1
_HEAD, _ENCODER = "head.", "encoder."


class LazyEncoder(Encoder):
    """The encoder of a model file, created by `restore_encoder` on first use, because editing does not need it."""

    def __init__(self, about: Mapping[str, Any], weights: dict[str, NDArray[Any]], **options: bool) -> None:
        name, settings, kind = about["name"], about["settings"], about["kind"]
        is_known = isinstance(kind, str) and kind in ("picture", "text", "embedding")
        if not isinstance(name, str) or not isinstance(settings, dict) or not is_known:
            raise ValueError("its encoder is not described as one")
        self.name, self.settings, self.kind = name, settings, cast("Kind", kind)
        self._weights, self._options = weights, options

    @cached_property
    def _made(self) -> Encoder:
        return restore_encoder(self.name, self.settings, self._weights, **self._options)

    @property
    def prior(self) -> Any:
        """The prior of the encoder."""
        return self._made.prior

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the weights in the file."""
        return self._weights

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return the embeddings of the encoder."""
        return self._made.encode(items)


def model_bytes(model: Model) -> bytes:
    """Return the content of a model file."""
    state = head_state(model.learned)
    tensors: dict[str, Any] = {f"{_HEAD}{name}": tensor for name, tensor in state.tensors.items()}
    tensors |= {f"{_ENCODER}{name}": tensor for name, tensor in model.encoder.tensors().items()}
    tensors["embeddings"] = np.ascontiguousarray(model.embeddings)
    if model.thumbnails is not None:
        tensors["thumbnails"] = np.ascontiguousarray(model.thumbnails)
    info = {
        "encoder": {"name": model.encoder.name, "settings": model.encoder.settings, "kind": model.encoder.kind},
        "names": [_plain(name) for name in model.names],
        "labels": model.labels,
        "head": state.info,
    }
    return sealed_bytes(tensors, info, kind="model", version=MODEL_VERSION)


def load_model(path: Path, *, trust_encoder: bool = False, download: bool = False) -> Model:
    """Read a model; see `Model.load`."""
    saved = load_sealed(path, kind="model", version=MODEL_VERSION)
    try:
        options = {"trust_encoder": trust_encoder, "download": download}
        encoder = LazyEncoder(saved.info["encoder"], _part(saved, _ENCODER), **options)
        names, labels = saved.info["names"], saved.info["labels"]
        embeddings = saved.tensors["embeddings"]
        thumbnails = saved.tensors.get("thumbnails")
        _check(names, labels, embeddings, thumbnails)
        state = HeadState(_part(saved, _HEAD), saved.info["head"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"Expected {path} to hold a model, but a part is missing or wrong: {error}.") from error
    learned = restore_head(state, str(path))
    n, n_features = learned.fitted.examples.x.shape
    fits = n == len(names) and n_features == embeddings.shape[1]
    if not fits or sorted({*labels}) != list(learned.fitted.classes):
        raise CheckpointError(f"Expected the classifier in {path} to be that of its examples, but it is not.")
    return Model(encoder, names, labels, embeddings, learned, thumbnails)


def _part(saved: Checkpoint, prefix: str) -> dict[str, NDArray[Any]]:
    return {name[len(prefix) :]: tensor for name, tensor in saved.tensors.items() if name.startswith(prefix)}


def _check(names: Any, labels: Any, embeddings: Any, thumbnails: NDArray[Any] | None) -> None:
    if not all(isinstance(part, list) and all(isinstance(x, str) for x in part) for part in (names, labels)):
        raise ValueError("names and labels are not text")
    is_matrix = embeddings.ndim == 2 and embeddings.shape[1] > 0 and embeddings.dtype.kind == "f"
    if not is_matrix or not np.isfinite(embeddings).all():
        raise ValueError("its embeddings are not finite numbers of shape (n, D)")
    if not len(names) == len(labels) == len(embeddings) or len(set(names)) < len(names):
        raise ValueError("names, labels and embeddings do not match")
    wanted = (len(names), THUMBNAIL, THUMBNAIL, 3)
    if thumbnails is not None and (thumbnails.dtype != np.uint8 or thumbnails.shape != wanted):
        raise ValueError("its thumbnails are not images")


def _plain(name: str) -> str:
    """Replace bytes of a file name that are not valid text."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

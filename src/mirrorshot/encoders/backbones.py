"""Backbones of `mirrorshot.networks` in eval mode as ONNX graphs, which run without torch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders.graph import Graph, fold_norm

Weights = Mapping[str, NDArray[Any]]
_EPS = 1e-5  # of the batch normalisation
_NORM = ("weight", "bias", "running_mean", "running_var")


def conv4(graph: Graph, x: str, weights: Weights) -> str:
    """Conv4: four blocks of convolution, normalisation, 2 x 2 max-pooling and ReLU; the last map is flattened."""
    for i in range(4):
        x = graph.node("MaxPool", _conv_norm(graph, x, weights, f"blocks.{i}", pad=1), **_window(2, stride=2))
        x = graph.node("Relu", x)
    return graph.node("Flatten", x)


def resnet(graph: Graph, x: str, weights: Weights) -> str:
    """ResNet-10 and ResNet-18: a stem and residual blocks; a block that doubles the channels halves the map."""
    x = _conv_norm(graph, x, weights, "blocks.0", stride=2, pad=3)
    x = graph.node("Relu", graph.node("MaxPool", x, **_window(3, stride=2, pad=1)))
    for i in range(1, _n_blocks(weights)):
        n_out, n_in = weights[f"blocks.{i}.convs.0.conv.weight"].shape[:2]
        x = graph.node("Relu", _residual(graph, x, weights, f"blocks.{i}", n_convs=2, stride=n_out // n_in, slope=0.0))
    return graph.node("Flatten", graph.node("GlobalAveragePool", x))


def resnet12(graph: Graph, x: str, weights: Weights) -> str:
    """ResNet-12: residual blocks of three convolutions, each with 2 x 2 max-pooling and leaky ReLU."""
    for i in range(_n_blocks(weights)):
        x = _residual(graph, x, weights, f"blocks.{i}", n_convs=3, stride=1, slope=0.1)
        x = graph.node("LeakyRelu", graph.node("MaxPool", x, **_window(2, stride=2)), alpha=0.1)
    return graph.node("Flatten", graph.node("GlobalAveragePool", x))


GRAPHS: dict[str, Callable[[Graph, str, Weights], str]] = {
    "conv4": conv4,
    "conv4s": conv4,
    "resnet10": resnet,
    "resnet12": resnet12,
    "resnet18": resnet,
}
"""Graphs by the names of `mirrorshot.networks.backbones.BACKBONES`, except `identity` and those that return maps."""


def new_graph(channels: int, size: int) -> Graph:
    """Return a graph whose input `x` is normalised images (n, channels, size, size)."""
    return Graph([("x", np.float32, ("n", channels, size, size))])


def _residual(graph: Graph, x: str, weights: Weights, name: str, *, n_convs: int, stride: int, slope: float) -> str:
    out = x
    for i in range(n_convs):
        out = graph.node("LeakyRelu", out, alpha=slope) if i else out
        out = _conv_norm(graph, out, weights, f"{name}.convs.{i}", stride=1 if i else stride, pad=1)
    if f"{name}.shortcut.conv.weight" in weights:
        x = _conv_norm(graph, x, weights, f"{name}.shortcut", stride=stride)
    return graph.node("Add", out, x)


def _conv_norm(graph: Graph, x: str, weights: Weights, name: str, *, stride: int = 1, pad: int = 0) -> str:
    norm = [weights[f"{name}.norm.{part}"] for part in _NORM]
    folded = fold_norm(weights[f"{name}.conv.weight"], weights.get(f"{name}.conv.bias"), norm, _EPS)
    return graph.conv(x, *folded, strides=[stride, stride], pads=[pad] * 4)


def _window(size: int, *, stride: int, pad: int = 0) -> dict[str, list[int]]:
    return {"kernel_shape": [size, size], "strides": [stride, stride], "pads": [pad] * 4}


def _n_blocks(weights: Weights) -> int:
    return 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))

"""Writer of ONNX graphs from arrays. A graph needs only a small part of protocol buffers, the format of ONNX.

Design note: the package `onnx` would replace this page of code, but is a dependency of 60 MB.
`tests/encoders/test_graph.py` reads the graphs with that package.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_IR_VERSION, _OPSET = 8, 17
_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}
Attribute = int | float | str | Sequence[int]


class Graph:
    """A graph that is built node by node. Methods that add to it return the name of the new value.

    Args:
        inputs: name, type (np.float32 or np.int64) and shape of each input; a string is a variable size.

    Example:
        >>> graph = Graph([("x", np.float32, ("n", 3))])
        >>> total = graph.node("ReduceSum", "x", graph.constant(np.array([1])), keepdims=0)
        >>> len(graph.encoded(total)) > 100
        True
    """

    def __init__(self, inputs: Sequence[tuple[str, Any, tuple[int | str, ...]]]) -> None:
        self._inputs = b"".join(_field(11, _value(*described)) for described in inputs)
        self._nodes: list[bytes] = []
        self._constants: list[list[bytes]] = []

    def constant(self, array: NDArray[Any] | float) -> str:
        """Add an array of float32 or int64, or a number as float32."""
        name = f"c{len(self._constants)}"
        array = np.asarray(array, np.float32) if isinstance(array, float) else np.ascontiguousarray(array)
        dims = b"".join(_number(1, n) for n in array.shape)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        about = dims + _number(2, _TYPES[array.dtype]) + _field(8, name)
        self._constants.append(_nested(5, [about, *_nested(9, [little])]))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """Add an ONNX operator with one output."""
        name = f"n{len(self._nodes)}"
        parts = [*(_field(1, given) for given in inputs), _field(2, name), _field(4, operator)]
        parts += [_field(5, _attribute(key, value)) for key, value in attributes.items()]
        self._nodes.append(b"".join(parts))
        return name

    def conv(self, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32], **attributes: Attribute) -> str:
        """Add a convolution with its weight and bias."""
        return self.node("Conv", x, self.constant(weight), self.constant(bias), **attributes)

    def encoded(self, output: str) -> bytes:
        """Return the bytes of an ONNX file with one output, a float32 matrix."""
        nodes = [_field(1, node) for node in self._nodes]
        constants = [part for constant in self._constants for part in constant]
        result = _field(12, _value(output, np.float32, ("n", "d")))
        graph = _nested(7, [*nodes, _field(2, "mirrorshot"), *constants, self._inputs, result])
        return b"".join([_number(1, _IR_VERSION), *graph, _field(8, _field(1, "") + _number(2, _OPSET))])


def fold_norm(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    norm: Sequence[NDArray[np.float32]],
    eps: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Fold a batch normalisation (weight, bias, mean, variance) into the convolution before it."""
    scale, shift, mean, variance = (part.astype(np.float64) for part in norm)
    if {part.shape for part in norm} != {weight.shape[:1]} or variance.min() < 0:
        raise ValueError("a batch normalisation does not fit its convolution")
    factor = scale / np.sqrt(variance + eps)
    moved = shift + factor * ((0.0 if bias is None else bias) - mean)
    return (weight * factor.reshape(-1, 1, 1, 1)).astype(np.float32), moved.astype(np.float32)


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _nested(field: int, parts: Sequence[bytes]) -> list[bytes]:
    """A field as parts that are joined only once, because weights are large."""
    return [_varint(field << 3 | 2) + _varint(sum(map(len, parts))), *parts]


def _attribute(name: str, value: Attribute) -> bytes:
    """Encode a FLOAT, INT, STRING or INTS, by the type of the value."""
    if isinstance(value, float):
        return _field(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return _field(1, name) + _number(3, value) + _number(20, 2)
    if isinstance(value, str):
        return _field(1, name) + _field(4, value) + _number(20, 3)
    return _field(1, name) + b"".join(_number(8, int(n)) for n in value) + _number(20, 7)


def _value(name: str, dtype: Any, shape: tuple[int | str, ...]) -> bytes:
    sizes = (_field(2, size) if isinstance(size, str) else _number(1, size) for size in shape)
    dims = b"".join(_field(1, size) for size in sizes)
    return _field(1, name) + _field(2, _field(1, _number(1, _TYPES[np.dtype(dtype)]) + _field(2, dims)))

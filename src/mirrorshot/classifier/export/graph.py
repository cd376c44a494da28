"""Construction of ONNX graphs: values with operators, in double precision."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike

OPSET, IR_VERSION = 18, 9

Operand = Union["Value", float, ArrayLike]


class Value:
    """A tensor of a graph under construction; arithmetic adds nodes."""

    def __init__(self, graph: "Graph", name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Operand) -> "Value":
        return self.graph.op("Add", self, other)

    def __sub__(self, other: Operand) -> "Value":
        return self.graph.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> "Value":
        return self.graph.op("Sub", other, self)

    def __mul__(self, other: Operand) -> "Value":
        return self.graph.op("Mul", self, other)

    def __truediv__(self, other: Operand) -> "Value":
        return self.graph.op("Div", self, other)

    def __matmul__(self, other: Operand) -> "Value":
        return self.graph.op("MatMul", self, other)

    def __getattr__(self, name: str) -> "Callable[..., Value]":
        """Return the ONNX operator of that name, applied to the value: `value.Exp()`."""
        if not name[:1].isupper():
            raise AttributeError(name)
        return functools.partial(self.graph.op, name, self)

    def total(self, axis: int, *, keep: bool = False) -> "Value":
        """Sum along an axis."""
        return self.graph.op("ReduceSum", self, self.graph.integers([axis]), keepdims=int(keep))

    def largest(self, axis: int) -> "Value":
        """Maximum along an axis, which is kept."""
        return self.graph.op("ReduceMax", self, self.graph.integers([axis]), keepdims=1)

    def unsqueeze(self, axis: int) -> "Value":
        """Insert an axis."""
        return self.graph.op("Unsqueeze", self, self.graph.integers([axis]))

    def squeeze(self, axis: int) -> "Value":
        """Remove an axis of length one."""
        return self.graph.op("Squeeze", self, self.graph.integers([axis]))

    def at_least(self, low: float) -> "Value":
        """Return the larger of the value and a number."""
        return self.graph.op("Max", self, low)


class Graph:
    """Nodes and constants, in the order of their creation."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(self, kind: str, *operands: Operand, **attributes: Any) -> Value:
        """Add a node."""
        from onnx import helper

        inputs = [operand.name if isinstance(operand, Value) else self._constant(operand) for operand in operands]
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return Value(self, name)

    def where(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """Select `yes` where the condition holds, else `no`."""
        return self.op("Where", condition, yes, no)

    def integers(self, numbers: Sequence[int]) -> Value:
        """Add a constant of integers."""
        return Value(self, self._store(np.array(numbers, dtype=np.int64)))

    def output(self, value: Value, name: str) -> None:
        """Add an output of the graph in single precision."""
        from onnx import TensorProto, helper

        self.nodes.append(helper.make_node("Cast", [value.name], [name], to=TensorProto.FLOAT))

    def _constant(self, number: ArrayLike) -> str:
        return self._store(np.asarray(number, dtype=np.float64))

    def _store(self, array: Any) -> str:
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

"""Covariances of queries with the examples as nodes of a graph, with the formulas of `mirrorshot.gp.kernels`."""

import functools
import math
import operator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier.export.graph import Graph, Value
from mirrorshot.gp.kernels import Kernel, Linear, Matern, Polynomial, Product, ScaledKernel, Stationary, Sum
from mirrorshot.types import InvalidInputError

_ROUNDING = 4.0  # as in gp.kernels.features
_EPS = float(np.finfo(np.float64).eps)


class Covariances(NamedTuple):
    """Covariances (H, n, N) of queries with examples, and variances (H, n) of queries."""

    cross: Value
    diagonal: Value


def covariances(
    graph: Graph, kernel: Kernel, x: Value, support: NDArray[np.float64], centre: NDArray[np.float64]
) -> Covariances:
    """Return nodes for the covariances of queries `x` (n, D) with the support (1, N, D).

    Raises:
        InvalidInputError: a kernel that is not of this package.
    """
    if isinstance(kernel, (Sum, Product)):
        parts = zip(*(covariances(graph, part, x, support, centre) for part in kernel.parts), strict=True)
        combine = operator.add if isinstance(kernel, Sum) else operator.mul
        return Covariances(*(functools.reduce(combine, values) for values in parts))
    if not isinstance(kernel, ScaledKernel):
        raise InvalidInputError(
            f"Expected a kernel of mirrorshot, but got {type(kernel).__name__}, which has no ONNX form."
        )
    prepared = _prepare(graph, kernel, x, centre)
    examples = kernel.prepare(support, centre)[0]
    scale = kernel.outputscale.astype(np.float64)
    if isinstance(kernel, Stationary):
        cross = _stationary(graph, kernel, prepared, examples)
        ones = prepared.total(-1).unsqueeze(0) * 0.0 + np.ones((len(scale), 1))
        return Covariances(cross * scale[:, None, None], ones * scale[:, None])
    inner, square = (prepared @ examples.T).unsqueeze(0), (prepared * prepared).total(-1).unsqueeze(0)
    if isinstance(kernel, Polynomial):
        offset = kernel.offset.astype(np.float64)
        inner, square = (functools.reduce(operator.mul, [v + c] * kernel.power) for v, c in (
            (inner, offset[:, None, None]), (square, offset[:, None])))  # fmt: skip
    elif not isinstance(kernel, Linear):
        raise InvalidInputError(f"Expected a kernel with an ONNX form, but got {type(kernel).__name__}.")
    return Covariances(inner * scale[:, None, None], square * scale[:, None])


def _prepare(graph: Graph, kernel: ScaledKernel, x: Value, centre: NDArray[np.float64]) -> Value:
    """Centre and normalise as the kernel does; features within the noise of rounding become zero."""
    least = math.sqrt(float(np.finfo(np.float64).tiny))
    noise: Value | float = least
    if kernel.centre:
        middle = centre[0]
        size = graph.op("Max", x.Abs(), np.abs(middle)).largest(-1)
        noise = (size * (2 * _ROUNDING * _EPS)).at_least(least)
        x = x - middle
    if not kernel.normalise:
        return x
    largest = x.Abs().largest(-1)
    vanishing = graph.op("LessOrEqual", largest, noise)
    x = graph.where(vanishing, 0.0, x / graph.where(vanishing, 1.0, largest))
    norm = (x * x).total(-1, keep=True).Sqrt()
    return x / graph.where(vanishing, 1.0, norm)


def _stationary(graph: Graph, kernel: Stationary, x: Value, examples: NDArray[np.float64]) -> Value:
    shift = examples.mean(0)
    z, x = examples - shift, x - shift
    total = (x * x).total(-1, keep=True) + (z * z).sum(-1)
    square = total - (x @ z.T) * 2.0
    noise = _ROUNDING * max(1.0, math.sqrt(z.shape[1] / 64)) * _EPS
    square = graph.where(graph.op("LessOrEqual", square, total * noise), 0.0, square)
    length = kernel.lengthscale.astype(np.float64)
    scaled = square.unsqueeze(0) / length[:, None, None] ** 2
    if not isinstance(kernel, Matern):
        return (scaled * -0.5).Exp()
    r = scaled.Sqrt() * math.sqrt(2 * kernel.nu)
    decay = (r * -1.0).Exp()
    if kernel.nu == 0.5:
        return decay
    polynomial = r + 1.0 if kernel.nu == 1.5 else r + 1.0 + r * r / 3.0
    return polynomial * decay

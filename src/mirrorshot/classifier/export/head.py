"""The fitted classifier as an ONNX graph: embeddings in; probabilities, latent mean and latent variance out.

Everything is closed-form. ONNX has no triangular solve, so the matrix that whitens covariances is computed here, once,
and the graph multiplies by it. The quadrature of `mirrorshot.softmax.quadrature` is a few products, with nodes chosen
for the largest prior variance. onnxruntime has no error function in double precision: the normal CDF is a polynomial
fitted here, to 1e-11.
"""

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from mirrorshot.classifier import FewShotClassifier
from mirrorshot.classifier.export.graph import IR_VERSION, OPSET, Graph, Value
from mirrorshot.classifier.export.kernels import covariances
from mirrorshot.classifier.prior import FeatureMap
from mirrorshot.files.lazy import need
from mirrorshot.files.writing import write_atomically
from mirrorshot.softmax.quadrature import U_LEFT, WIDE_STD, Rule, choose_rule, gumbel_taps, hermite
from mirrorshot.types import InvalidInputError

_TINY = float(np.finfo(np.float64).tiny)


def export_onnx(
    head: FewShotClassifier,
    path: str | Path,
    *,
    mean: NDArray[Any] | None = None,
    scale: NDArray[Any] | None = None,
) -> None:
    """Write a fitted classifier as an ONNX file.

    Input `embeddings` (n, D) of float32. Outputs `probabilities`, `latent_mean` and `latent_variance`, each (n, C) of
    float32 with the classes in the order of `classes_`, which the file has in its metadata as JSON. Any n.

    Args:
        head: fitted. A prior variance above 256 is beyond the range of the quadrature.
        path: name of the file.
        mean: of the columns (D,), if the head was fitted on standardised ones: the graph takes it out too.
        scale: of the columns (D,), likewise.

    Raises:
        MissingPackageError: the package onnx is not installed.
        InvalidInputError: the kernel has no ONNX form, or its variance is too large.
    """
    check_is_fitted(head)
    if head.fitted_.support.prior_mean is not None:
        raise InvalidInputError(
            "Expected a classifier without prior scores, which the graph has no input for, but got one."
        )
    labels = head.classes_.tolist()
    if not all(isinstance(label, (str, int, float)) for label in labels):
        raise InvalidInputError(
            f"Expected labels that are text, numbers or booleans, but got {labels[0]!r}, which cannot be written."
        )
    onnx = need("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    graph = Graph()
    _build(graph, head, mean, scale)
    n_way, size = len(head.classes_), int(head.n_features_in_)
    outputs = ("probabilities", "latent_mean", "latent_variance")
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "mirrorshot",
            [helper.make_tensor_value_info("embeddings", number, ["n", size])],
            [helper.make_tensor_value_info(name, number, ["n", n_way]) for name in outputs],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="mirrorshot",
    )
    model.ir_version = IR_VERSION
    helper.set_model_props(model, {"classes": json.dumps(labels), "kind": "mirrorshot head"})
    onnx.checker.check_model(model)
    write_atomically(Path(path), model.SerializeToString())


def _build(graph: Graph, head: FewShotClassifier, mean_of: NDArray[Any] | None, scale: NDArray[Any] | None) -> None:
    from onnx import TensorProto

    x = graph.op("Cast", Value(graph, "embeddings"), to=TensorProto.DOUBLE)
    x = x if mean_of is None else x - np.asarray(mean_of, dtype=np.float64)
    x = x if scale is None else x / np.asarray(scale, dtype=np.float64)
    fitted = head.fitted_
    posterior = fitted.posterior
    x = _mapped(x, fitted.map)
    K = covariances(graph, fitted.kernel, x, fitted.support.x, fitted.centre)
    # mean = k*^T alpha; var = k** - |G k*|^2
    mean = (K.cross @ posterior.alpha[0][..., None]).squeeze(-1)
    G = posterior.gain_at(np.eye(posterior.mean.shape[-1])[None, None])
    explained = K.cross @ G.mT[0]
    var = (K.diagonal - (explained * explained).total(-1)).at_least(0.0)
    mean, var = (value.Transpose(perm=[1, 0]) for value in (mean, var))
    graph.output(_linked(graph, head, mean, var, K.bound), "probabilities")
    graph.output(mean, "latent_mean")
    graph.output(var, "latent_variance")


def _linked(graph: Graph, head: FewShotClassifier, mean: Value, var: Value, bound: float) -> Value:
    """The probabilities, as `Link` computes them."""
    link = head.fitted_.link
    if link.moderation is None:
        rule = choose_rule(_max_std(bound), len(head.classes_), np.dtype(np.float64))
        prob = _probabilities(graph, mean, var.at_most(WIDE_STD**2), rule)
        return (prob.at_least(_TINY).Log() / link.temperature).Softmax(axis=-1)
    z = (mean - mean.total(-1, keep=True) / float(len(head.classes_))) / (var * link.moderation + 1.0).Sqrt()
    first, *others = [(z / temperature).Softmax(axis=-1) * weight for temperature, weight in link.terms()]
    for other in others:
        first = first + other
    return first


def _mapped(x: Value, feature_map: FeatureMap) -> Value:
    """The features of embeddings, as `FeatureMap` computes them."""
    if feature_map.root:
        x = x.at_least(0.0).Sqrt()
    x = _unit_length(x) if feature_map.unit else x
    if feature_map.mean is None:
        return x
    x = x - feature_map.mean
    if feature_map.directions is not None and feature_map.gain is not None:
        x = x + (x @ feature_map.directions.T) * feature_map.gain @ feature_map.directions
    return _unit_length(x) if feature_map.unit else x


def _unit_length(x: Value) -> Value:
    return x / (x * x).total(-1, keep=True).Sqrt().at_least(_TINY)


def _max_std(bound: float) -> float:
    """Largest standard deviation that the nodes have to serve; kernels without a bound are cut off at 16."""
    if math.isfinite(bound) and bound > WIDE_STD**2:
        raise InvalidInputError(
            f"Expected a prior variance of at most {WIDE_STD**2:g} for the export, but got {bound:g}. Fit with a "
            "smaller outputscale."
        )
    return math.sqrt(bound) if math.isfinite(bound) else WIDE_STD


def _probabilities(graph: Graph, mean: Value, var: Value, rule: Rule) -> Value:
    """`E[softmax]` (n, C), as `softmax_integrals._integrate_fine` computes it."""
    std = var.Sqrt()
    mean = mean - mean.largest(-1)
    start = (mean - std * rule.n_std).largest(-1) - U_LEFT
    offset = (start - mean).unsqueeze(-1)
    s = std.unsqueeze(-1)
    narrow = _narrow(graph, offset, s.at_most(rule.narrow_std), rule)
    cdf, density = narrow
    if rule.has_broad:
        broad = _broad(graph, offset, s.at_least(rule.narrow_std), rule)
        is_broad = graph.op("Greater", s, rule.narrow_std)
        cdf, density = (graph.where(is_broad, b, a) for a, b in zip(narrow, broad, strict=True))
    cdf = cdf.at_least(_TINY)
    F = cdf.Log().total(1, keep=True).Exp() * rule.spacing
    mass = F * density / cdf
    beyond = math.exp(-rule.spacing) / (1 - math.exp(-rule.spacing))
    return mass.total(-1) + mass.columns(rule.n_nodes - 1, rule.n_nodes).total(-1) * beyond


def _narrow(graph: Graph, offset: Value, s: Value, rule: Rule) -> tuple[Value, Value]:
    """`G` and `G'` (n, C, U) by Gauss-Hermite over the latent."""
    z, w = hermite(rule.n_hermite, np.dtype(np.float64), None)
    decay = np.exp(-rule.spacing * np.arange(rule.n_nodes))
    rate = (s * z - offset).Exp().unsqueeze(-1)  # (n, C, H, 1)
    survive = (rate * -decay).Exp()
    weighted = survive * w[:, None]
    return weighted.total(2), (weighted * rate).total(2) * decay


def _broad(graph: Graph, offset: Value, s: Value, rule: Rule) -> tuple[Value, Value]:
    """`G` and `G'` (n, C, U) by a trapezoid over the Gumbel noise, with the exponential tail in closed form."""
    taps, right = gumbel_taps(rule.spacing, rule.n_nodes, np.dtype(np.float64), None)
    a = (offset + (rule.spacing * np.arange(len(taps)) - right)) / s
    density = (a * a * -0.5).Exp() / (s * math.sqrt(2 * math.pi))
    normal = _normal_cdf(graph, a)
    end = a.columns(0, rule.n_nodes)
    tail = (s * (s * 0.5 - end) - right).at_most(80.0).Exp() * _normal_cdf(graph, end - s)
    closed = (normal.columns(0, rule.n_nodes) * math.exp(-right) - tail).at_least(0.0)
    return normal @ taps + closed, density @ taps + tail


def _normal_cdf(graph: Graph, a: Value) -> Value:
    """Normal CDF: `erfc(b) = g(y) exp(-b^2) / (1 + 2 b)` for b >= 0, with a polynomial g of `y = (b - c) / (b + c)`."""
    b = a.Abs() * math.sqrt(0.5)
    y = (b - _MIDDLE) / (b + _MIDDLE)
    coefficients = _erfc_polynomial()
    g = y * float(coefficients[-1]) + float(coefficients[-2])
    for coefficient in coefficients[-3::-1]:
        g = g * y + float(coefficient)
    upper = g * (b * b * -1.0).Exp() / (b * 2.0 + 1.0) * 0.5
    return graph.where(graph.op("Less", a, 0.0), upper, 1.0 - upper)


_MIDDLE = 3.75  # as in Shepherd and Laframboise (1981), whose form of the function this is


@functools.lru_cache(maxsize=1)
def _erfc_polynomial() -> NDArray[np.float64]:
    """Coefficients of g, from the lowest power on, by interpolation at Chebyshev nodes."""
    from scipy.special import erfcx

    def g(y: NDArray[np.float64]) -> Any:
        b = _MIDDLE * (1 + y) / (1 - y)
        return (1 + 2 * b) * erfcx(b)

    return np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebinterpolate(g, 22))

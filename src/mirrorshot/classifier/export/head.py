"""The fitted classifier as an ONNX graph, from embeddings to probabilities, latent means and latent variances.

ONNX has no triangular solve, so the matrix that whitens covariances is computed here, and the graph multiplies by it.

Rejected: the quadrature of `mirrorshot.softmax.quadrature` as nodes, for the link in files of earlier versions. It took
as many lines as all the rest.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from mirrorshot.classifier import FewShotClassifier
from mirrorshot.classifier.export.graph import IR_VERSION, OPSET, Graph, Value
from mirrorshot.classifier.export.kernels import covariances
from mirrorshot.classifier.link import Link
from mirrorshot.classifier.prior import FeatureMap
from mirrorshot.files.lazy import need
from mirrorshot.files.writing import write_atomically
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

    The input is `embeddings` (n, D) of float32, for any n. The outputs `probabilities`, `latent_mean` and
    `latent_variance` are (n, C) of float32 in the order of `classes_`, which the metadata of the file contain as JSON.

    Args:
        head: a classifier fitted by this version, not read from a file of an earlier one.
        path: name of the file.
        mean: means of the columns (D,), if the classifier was fitted to standardised columns; the graph subtracts them.
        scale: scales of the columns (D,), likewise; the graph divides by them.

    Raises:
        MissingPackageError: the package onnx is not installed.
        InvalidInputError: there are prior scores, or kernel, labels or an earlier version's link have no ONNX form.
    """
    check_is_fitted(head)
    if head.fitted_.support.prior_mean is not None:
        raise InvalidInputError(
            "Expected a classifier without prior scores, which the graph has no input for, but got one."
        )
    if head.fitted_.link.moderation is None:
        raise InvalidInputError(
            "Expected a classifier of this version, but got one from a file of an earlier one, whose link has no ONNX "
            "form. Fit its examples again, or add one: an edit chooses the link anew."
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
    cross, diagonal = covariances(graph, fitted.kernel, x, fitted.support.x, fitted.centre)
    # mean = k*^T alpha; var = k** - |G k*|^2
    mean = (cross @ posterior.alpha[0][..., None]).squeeze(-1)
    G = posterior.gain_at(np.eye(posterior.mean.shape[-1])[None, None])
    explained = cross @ G.mT[0]
    var = (diagonal - (explained * explained).total(-1)).at_least(0.0)
    mean, var = (value.Transpose(perm=[1, 0]) for value in (mean, var))
    graph.output(_linked(fitted.link, mean, var, len(head.classes_)), "probabilities")
    graph.output(mean, "latent_mean")
    graph.output(var, "latent_variance")


def _linked(link: Link, mean: Value, var: Value, n_way: int) -> Value:
    assert link.moderation is not None
    z = (mean - mean.total(-1, keep=True) / float(n_way)) / (var * link.moderation + 1.0).Sqrt()
    first, *others = [(z / temperature).Softmax(axis=-1) * weight for temperature, weight in link.terms()]
    for other in others:
        first = first + other
    return first


def _mapped(x: Value, feature_map: FeatureMap) -> Value:
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

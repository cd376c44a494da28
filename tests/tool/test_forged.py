"""Forged files with a seal that fits: refused with an error of the package, or a model that works, in little memory."""

import copy
import json
import resource
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from mirrorshot import FewShotClassifier
from mirrorshot.encoders import make_encoder
from mirrorshot.encoders.networks import RunNetwork, read_run
from mirrorshot.files.checkpoint import BLANK, FORMAT_VERSION, Checkpoint, load_checkpoint, with_seal
from mirrorshot.gp.kernels import RBF, Linear, Matern, Polynomial
from mirrorshot.networks.backbones import make_backbone
from mirrorshot.tool import Items, Model
from mirrorshot.training import build_method
from mirrorshot.training.config import Config
from mirrorshot.training.folder import RunFolder, read_config
from mirrorshot.training.runs import stand_in
from mirrorshot.types import MirrorshotError

MAX_GROWTH = 400 * 2**20
MISSING = object()
VALUES = (
    MISSING, None, True, False, 0, -1, 1, 2, 10**6, 10**12, 2**70, 0.0, -0.5, 1e-300, 1e308, float("nan"), float("inf"),
    "", "x", "cosine", "\x1b[2J", "y" * 100_000, [], [1], ["a", "b", "c"], [[]], {}, {"x": 1},
)  # fmt: skip
TENSORS = {
    "missing": lambda t: None,
    "NaN": lambda t: torch.full_like(t.double(), torch.nan).to(t.dtype),
    "infinite": lambda t: torch.full_like(t.double(), torch.inf).to(t.dtype),
    "zero": torch.zeros_like,
    "negative": lambda t: -1 - t,
    "large": lambda t: (t.double() * 1e300).to(t.dtype),
    "small": lambda t: (t.double() * 1e-300).to(t.dtype),
    "one odd number": lambda t: t.flatten().index_fill(0, torch.tensor([0]), 99).reshape(t.shape),
    "float32": lambda t: t.float() if t.dtype != torch.float32 else t.double(),
    "bfloat16": lambda t: t.bfloat16(),
    "int64": lambda t: t.long() if t.dtype != torch.int64 else t.int(),
    "bool": lambda t: t.bool(),
    "swapped": lambda t: t.transpose(0, -1) if t.ndim else t[None],
    "flat": lambda t: t.flatten()[None],
    "cut": lambda t: t[..., :-1] if t.ndim else t[None],
    "twice": lambda t: torch.cat([t, t]) if t.ndim else t[None],
    "empty": lambda t: t.flatten()[:0],
    "no width": lambda t: torch.zeros(10**9, 0, dtype=t.dtype),
}


def forge(path, tensors, info):
    """Write a file with a seal that fits, whatever is in it."""
    stamp = {"seal": BLANK, "format_version": FORMAT_VERSION, "mirrorshot_version": "0.1.0"}
    header = {"mirrorshot": json.dumps({**stamp, **info})}
    plain = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    path.write_bytes(with_seal(safetensors.torch.save(plain, header)))


def places(content, at=()):
    """Paths of all fields of nested JSON, tables included."""
    children = content.items() if isinstance(content, dict) else enumerate(content[:2])
    for key, child in children:
        yield (*at, key)
        if isinstance(child, (dict, list)):
            yield from places(child, (*at, key))


def changed(info, place, value):
    """A copy with another value in one place."""
    info = copy.deepcopy(info)
    target = info
    for key in place[:-1]:
        target = target[key]
    if value is MISSING:
        del target[place[-1]]
    else:
        target[place[-1]] = value
    return info


def forgeries(path):
    """Every field of a file in many forms: what was done, tensors, info."""
    tensors, info = load_checkpoint(path)
    info = {name: value for name, value in info.items() if name not in ("format_version", "mirrorshot_version")}
    for place in places(info):
        for value in VALUES:
            yield f"{place} = {str(value)[:30]}", tensors, changed(info, place, value)
    for name, tensor in tensors.items():
        for what, change in TENSORS.items():
            other = change(tensor)
            rest = {key: t for key, t in tensors.items() if key != name}
            yield f"{name}: {what}", rest if other is None else {**rest, name: other}, info
    yield "another tensor", {**tensors, "extra": torch.ones(3), "head.kernel.extra": torch.ones(3)}, info
    yield "another field", tensors, {**info, "extra": {"x": [1]}}
    first, *others = tensors
    for other in others:
        yield f"{first} is {other}", {**tensors, first: tensors[other], other: tensors[first]}, info


def growth():
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def assert_harmless(path, use, share=1.0):
    """Forge a file in all ways, or a seeded share of them; returns how many were refused and how many worked."""
    chosen, before = np.random.default_rng(0), growth()
    counts = {"refused": 0, "works": 0}
    forged = path.with_name("forged")
    for what, tensors, info in list(forgeries(path)):
        if chosen.random() >= share:
            continue
        forge(forged, tensors, info)
        try:
            prob = use(forged)
        except MirrorshotError:
            counts["refused"] += 1
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")
        else:
            assert np.isfinite(prob).all(), what
            assert np.allclose(prob.sum(1), 1.0, atol=1e-6), what
            counts["works"] += 1
        assert growth() - before < MAX_GROWTH, what
    return counts


def probabilities(answers):
    return np.array([[*answer.probabilities.values()] for answer in answers])


SHARES = [pytest.param(0.35, id="some"), pytest.param(1.0, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("share", SHARES)
def test_forged_models_of_embeddings(tmp_path, points, blobs, share):
    Model.fit(points).save(tmp_path / "model")
    queries = blobs(seed=1)
    counts = assert_harmless(tmp_path / "model", lambda path: probabilities(Model.load(path).predict(queries)), share)
    assert counts["refused"] + counts["works"] > 300
    assert counts["refused"] > counts["works"] > 0


KERNELS = {"sum": RBF(outputscale=3.0) + Linear(n_way=3), "powers": Matern(nu=1.5) * Polynomial(power=2)}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # a forgery may add them
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("share", [pytest.param(0.1, id="some"), SHARES[1]])
def test_forged_heads(tmp_path, kernel, share):
    X = np.random.default_rng(0).normal(size=(9, 3))
    head = FewShotClassifier(kernel=KERNELS[kernel]).fit(X, np.arange(9) % 3, prior_scores=np.zeros((9, 3)))
    head.save(tmp_path / "head")

    def use(path):
        read = FewShotClassifier.load(path)
        has_prior = read.fitted_.examples.prior is not None
        return read.predict_proba(X, np.zeros((9, 3)) if has_prior else None)

    counts = assert_harmless(tmp_path / "head", use, share)
    assert counts["refused"] > counts["works"] > 0


def pictures(n):
    draws = np.random.default_rng(0).integers(0, 255, (n, 20, 20), dtype=np.uint8)
    return [Image.fromarray(draw) for draw in draws]


@pytest.mark.parametrize("share", [pytest.param(0.15, id="some"), SHARES[1]])
def test_forged_encoders(tmp_path, share):
    network = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    settings = {"backbone": "conv4s", "image_size": 28, "channels": 1, "mean": [0.0], "std": [1.0]}
    encoder = RunNetwork(settings, network.state_dict())
    X = encoder.encode(pictures(4)).astype(np.float64)
    labelled = Items("embedding", list("abcd"), X, ["a", "b", "a", "b"])
    fitted = Model.fit(labelled)
    Model(encoder, fitted.names, fitted.labels, fitted.embeddings, fitted.learned).save(tmp_path / "model")

    def use(path):
        model = Model.load(path)
        found = model.encoder.encode(pictures(2))
        return model.head.predict_proba(model.check_embeddings(found))

    counts = assert_harmless(tmp_path / "model", use, share)
    assert counts["refused"] > counts["works"] > 0


def test_a_network_of_a_million_channels_takes_no_memory(tmp_path, points):
    Model.fit(points).save(tmp_path / "model")
    tensors, info = load_checkpoint(tmp_path / "model")
    settings = {"backbone": "conv4", "channels": 10**6, "image_size": 84, "mean": [0.0], "std": [1.0]}
    info["encoder"] = {"name": "run", "settings": settings, "kind": "picture"}
    forge(tmp_path / "model", tensors, info)
    before = growth()
    with pytest.raises(MirrorshotError, match="channels"):
        Model.load(tmp_path / "model").encoder.encode(pictures(1))
    assert growth() - before < MAX_GROWTH


@pytest.mark.parametrize("size", [True, 24.0, 0, 257, "24", None, [24]])
def test_a_size_of_pixels_is_an_integer(tmp_path, points, size):
    encoder = make_encoder("pixels")
    with pytest.raises(MirrorshotError, match="size"):
        type(encoder)(size=size)


@pytest.mark.parametrize("share", [pytest.param(0.08, id="some"), SHARES[1]])
def test_forged_runs(tmp_path, share):
    config = Config(data="glyphs", method="baseline_pp", method_options={"n_base_classes": 4})
    method = build_method(config, stand_in("glyphs", Checkpoint({}, {})))
    content = {"method": "baseline_pp", "config": config.to_dict(), "step": 3}
    with RunFolder.create(tmp_path / "run", config.to_dict()) as folder:
        folder.save("best", {f"method.{name}": t for name, t in method.state_dict().items()}, content)

    def use(path):
        path.replace(tmp_path / "run" / "best.safetensors")
        found = read_run(tmp_path / "run").encode(pictures(2))
        return np.full((2, 2), 0.5) * np.isfinite(found).all()

    before = tmp_path / "run" / "best.safetensors"
    before.rename(tmp_path / "whole")
    counts = assert_harmless(tmp_path / "whole", use, share)
    assert counts["refused"] > 0
    assert counts["works"] > 0


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 100_000, '[["data", 1]]', "\ufeff{}", ""])
def test_settings_that_are_no_table_are_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(MirrorshotError, match="to be a JSON object"):
        read_config(tmp_path)

"""Hostile model files: whatever was done to one, it is refused with one clear message, and nothing in it is run."""

import json
import struct

import numpy as np
import pytest
import torch

from mirrorshot.encoders import EncoderError, make_encoder
from mirrorshot.files.checkpoint import CheckpointError, CheckpointNotFoundError, load_checkpoint, save_checkpoint
from mirrorshot.files.sealed import save_sealed
from mirrorshot.tool import Items, Model, read_labelled
from mirrorshot.tool.model_file import MODEL_VERSION


@pytest.fixture
def saved(tmp_path, points):
    """A file of a model."""
    Model.fit(points, parameters={"kernel": "cosine"}).save(tmp_path / "model")
    return tmp_path / "model"


def reseal(path, change):
    """Change the content of a model file, and give it a checksum that fits."""
    tensors, info = load_checkpoint(path)
    info = {k: v for k, v in info.items() if k not in ("format_version", "mirrorshot_version", "checksum")}
    kind, version = info.pop("kind"), info.pop("version")
    change(tensors, info)
    save_sealed(path, tensors, info, kind=info.pop("new_kind", kind), version=info.pop("new_version", version))


def test_a_model_comes_back_bit_by_bit(saved, points, blobs):
    model, queries = Model.fit(points, parameters={"kernel": "cosine"}), blobs(seed=1)
    again = Model.load(saved)
    assert (again.names, again.labels, again.classes) == (model.names, model.labels, model.classes)
    assert again.predict(queries) == model.predict(queries)
    again.save(saved.with_name("again"))
    assert saved.with_name("again").read_bytes() == saved.read_bytes()


def test_a_model_of_pictures_comes_back_bit_by_bit(pictures, tmp_path):
    model = Model.fit(read_labelled(pictures / "support"), make_encoder("glyphs"))
    model.save(tmp_path / "model")
    again, queries = Model.load(tmp_path / "model"), read_labelled(pictures / "query")
    assert again.predict(queries) == model.predict(queries)
    assert np.array_equal(again.thumbnails, model.thumbnails)
    assert again.thumbnails.shape == (12, 48, 48, 3)


@pytest.mark.parametrize("tenths", range(10))
def test_a_file_that_is_cut_off_is_refused(saved, tenths):
    data = saved.read_bytes()
    saved.write_bytes(data[: len(data) * tenths // 10])
    with pytest.raises(CheckpointError, match=r"cut off|something else"):
        Model.load(saved)


@pytest.mark.parametrize("tenths", range(1, 10))
def test_a_file_with_one_bit_flipped_is_refused(saved, tenths):
    data = bytearray(saved.read_bytes())
    header = 8 + struct.unpack("<Q", data[:8])[0]
    data[header + (len(data) - header) * tenths // 10] ^= 1
    saved.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksum"):
        Model.load(saved)


@pytest.mark.parametrize("word", ["item 3", "class 1", "cosine", "embeddings"])
def test_a_header_that_was_edited_is_refused(saved, word):
    other = word[:-1] + "x"
    data = saved.read_bytes()
    assert word.encode() in data
    saved.write_bytes(data.replace(word.encode(), other.encode(), 1))
    with pytest.raises(CheckpointError, match="Expected"):
        Model.load(saved)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04 a zip", b"\x80\x04\x95 a pickle", b"{}", b"\x89PNG\r\n", b"\0" * 100, b"\xff" * 100,
     struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 50) + b"[" * 50],
)  # fmt: skip
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(CheckpointError, match="something else"):
        Model.load(tmp_path / "model")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="no such file"):
        Model.load(tmp_path / "model")
    with pytest.raises(CheckpointError, match="folder"):
        Model.load(tmp_path)


def test_a_file_that_is_too_large_is_refused_unread(saved, monkeypatch):
    monkeypatch.setattr("mirrorshot.files.sealed.load_checkpoint", lambda path: pytest.fail("it was read"))
    from mirrorshot.files.sealed import load_sealed

    with pytest.raises(CheckpointError, match="at most 100 bytes"):
        load_sealed(saved, kind="model", version=1, max_bytes=100)


def test_a_checkpoint_or_a_head_is_no_model(tmp_path, points):
    save_checkpoint(tmp_path / "run", {"x": torch.ones(1)}, {"step": 1})
    with pytest.raises(CheckpointError, match="but got a checkpoint of a run"):
        Model.load(tmp_path / "run")
    Model.fit(points).head.save(tmp_path / "head")
    with pytest.raises(CheckpointError, match="but got a head"):
        Model.load(tmp_path / "head")


def test_a_file_of_a_newer_version_says_so(saved):
    reseal(saved, lambda tensors, info: info.update(new_version=MODEL_VERSION + 1))
    with pytest.raises(CheckpointError, match="Update mirrorshot"):
        Model.load(saved)


WRONG = {
    "no names": lambda tensors, info: info.pop("names"),
    "fewer names": lambda tensors, info: info["names"].pop(),
    "one name twice": lambda tensors, info: info["names"].__setitem__(0, info["names"][1]),
    "names of numbers": lambda tensors, info: info.update(names=list(range(12))),
    "labels of others": lambda tensors, info: info.update(labels=["x"] * 12),
    "labels are a text": lambda tensors, info: info.update(labels="class 0"),
    "no head": lambda tensors, info: info.pop("head"),
    "head is a list": lambda tensors, info: info.update(head=[]),
    "no encoder": lambda tensors, info: info.pop("encoder"),
    "encoder is a text": lambda tensors, info: info.update(encoder="pixels"),
    "encoder without a kind": lambda tensors, info: info["encoder"].pop("kind"),
    "encoder of another kind": lambda tensors, info: info["encoder"].update(kind="sound"),
    "no embeddings": lambda tensors, info: tensors.pop("embeddings"),
    "fewer embeddings": lambda tensors, info: tensors.update(embeddings=tensors["embeddings"][:3]),
    "embeddings of integers": lambda tensors, info: tensors.update(embeddings=tensors["embeddings"].long()),
    "NaN": lambda tensors, info: tensors.update(embeddings=tensors["embeddings"] * float("nan")),
    "thumbnails of floats": lambda tensors, info: tensors.update(thumbnails=torch.zeros(12, 48, 48, 3)),
    "huge thumbnails": lambda tensors, info: tensors.update(
        thumbnails=torch.zeros(12, 1, 1, 3, dtype=torch.uint8)
    ),
    "head of fewer examples": lambda tensors, info: tensors.update({"head.rows.x": tensors["head.rows.x"][:5]}),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_content_that_does_not_fit_is_refused_even_with_a_right_checksum(saved, what):
    reseal(saved, WRONG[what])
    with pytest.raises(CheckpointError, match="Expected"):
        Model.load(saved)


@pytest.mark.parametrize("name", ["os:system", "subprocess:run", "spy:encode"])
def test_a_function_that_a_file_names_is_not_imported(saved, pictures, tmp_path, monkeypatch, name):
    (tmp_path / "spy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    reseal(saved, lambda tensors, info: info.update(encoder={"name": name, "settings": {}, "kind": "picture"}))
    model = Model.load(saved)  # looking at it is harmless
    with pytest.raises(EncoderError, match="--trust-encoder"):
        model.predict(read_labelled(pictures / "query"))


@pytest.mark.parametrize(
    "encoder",
    [
        {"name": "unheard-of", "settings": {}},
        {"name": "glyphs", "settings": {}},
        {"name": "glyphs", "settings": {"digest": "0" * 16}},
        {"name": "pixels", "settings": {"size": 10**9}},
        {"name": "pixels", "settings": {"size": "x"}},
        {"name": "run", "settings": {}},
        {"name": "run", "settings": {"backbone": "conv4", "channels": 3, "image_size": 10**6, "mean": [], "std": []}},
        {"name": "timm:../../etc", "settings": {}},
        {"name": "transformers:/etc/passwd", "settings": {}},
    ],
)
def test_an_encoder_that_cannot_be_is_refused_when_it_is_needed(saved, pictures, encoder):
    reseal(saved, lambda tensors, info: info.update(encoder={**encoder, "kind": "picture"}))
    with pytest.raises((EncoderError, ValueError), match="Expected"):
        Model.load(saved).predict(read_labelled(pictures / "query"))


def test_a_model_of_a_run_holds_its_network(tmp_path, pictures):
    from mirrorshot.encoders.networks import RunNetwork
    from mirrorshot.networks.backbones import make_backbone

    network = make_backbone("conv4s", generator=torch.Generator().manual_seed(0))
    settings = {"backbone": "conv4s", "image_size": 28, "channels": 1, "mean": [0.0], "std": [1.0]}
    model = Model.fit(read_labelled(pictures / "support"), RunNetwork(settings, network.state_dict()))
    model.save(tmp_path / "model")
    queries = read_labelled(pictures / "query")
    assert Model.load(tmp_path / "model").predict(queries) == model.predict(queries)


def test_names_with_odd_characters_survive(tmp_path, points):
    names = ["ä", "\udcff", "a\nb", "=cmd()", "\u202eb", "x" * 5000, "'", '"', "..", "/", "\\", " "]
    model = Model.fit(Items("embedding", names, points.content, points.labels))
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert [name for name in again.names if "\ufffd" not in name] == [name for name in names if name != "\udcff"]
    assert json.dumps(again.names)

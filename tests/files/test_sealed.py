"""Damage to the checkpoints of a run: no flipped bit goes unnoticed."""

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mirrorshot.files.checkpoint import BLANK, CheckpointError, load_checkpoint, save_checkpoint
from mirrorshot.files.sealed import load_sealed, save_sealed
from mirrorshot.training.folder import RunFolder, read_log


@pytest.fixture
def run(tmp_path):
    """A run with both checkpoints."""
    weights = {f"method.{i}": torch.randn(40, 30, generator=torch.Generator().manual_seed(i)) for i in range(4)}
    with RunFolder.create(tmp_path / "run", {"lr": 1e-5}) as folder:
        folder.log({"step": 1})
        folder.log({"step": 2})
        for name in ("best", "last"):
            folder.save(name, weights, {"step": 2, "config": {"lr": 1e-5, "name": "größe"}})
    return tmp_path / "run"


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def assert_refused(path, data, bits):
    for bit in bits:
        path.write_bytes(flipped(data, int(bit)))
        with pytest.raises(CheckpointError):
            load_checkpoint(path)


@pytest.mark.parametrize("name", ["best", "last"])
def test_each_of_150_flipped_bits_is_refused(run, name):
    path = run / f"{name}.safetensors"
    data = path.read_bytes()
    bits = np.random.default_rng(0).choice(8 * len(data), 150, replace=False)
    assert_refused(path, data, bits)


def test_bits_all_over_the_header_are_guarded(run):
    path = run / "best.safetensors"
    data = path.read_bytes()
    assert_refused(path, data, range(0, 8 * (8 + int.from_bytes(data[:8], "little")), 7))


def test_a_damaged_checkpoint_leaves_the_log_as_it_was(run):
    path = run / "last.safetensors"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'\\"step\\": 2', b'\\"step\\": 1'))
    assert path.read_bytes() != data
    with pytest.raises(CheckpointError, match="to fit its checksum"):
        RunFolder.resume(run)
    assert len(read_log(run)) == 2


def test_bytes_at_the_end_are_refused(run):
    path = run / "best.safetensors"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_content_that_looks_like_a_seal_does_no_harm(tmp_path):
    info = {BLANK: BLANK, "seal": BLANK, "kept": [BLANK]}
    save_checkpoint(tmp_path / "file", {BLANK: torch.ones(2)}, info)
    assert load_checkpoint(tmp_path / "file").info["kept"] == [BLANK]


def write_old(path, tensors, info):
    """A file as mirrorshot wrote it before there were seals."""
    info = {**info, "format_version": 1, "mirrorshot_version": "0.1.0"}
    save_file(tensors, path, {"mirrorshot": json.dumps(info)})


def test_an_old_checkpoint_is_read_with_a_warning(tmp_path):
    write_old(tmp_path / "best.safetensors", {"x": torch.ones(2)}, {"step": 3})
    with pytest.warns(UserWarning, match=r"best\.safetensors was written before checkpoints had a checksum"):
        assert load_checkpoint(tmp_path / "best.safetensors").info["step"] == 3


def test_an_old_sealed_file_is_read_by_its_checksum(tmp_path):
    tensors, content = {"x": torch.ones(2)}, {"way": 5, "kind": "head", "version": 1}
    checksum = "847f83fb4aa6f2eda0dae1641d5bf72c1cdf9192d6b80786d16a375a0db22a97"  # by the version that wrote them
    write_old(tmp_path / "head", tensors, {**content, "checksum": checksum})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_sealed(tmp_path / "head", kind="head", version=1).info["way"] == 5
    write_old(tmp_path / "head", {"x": torch.zeros(2)}, {**content, "checksum": checksum})
    with pytest.raises(CheckpointError, match="to fit its checksum"):
        load_sealed(tmp_path / "head", kind="head", version=1)


def test_a_new_sealed_file_cannot_pass_for_an_old_one(tmp_path):
    save_sealed(tmp_path / "head", {"x": torch.ones(2)}, {"way": 5}, kind="head", version=1)
    data = (tmp_path / "head").read_bytes()
    (tmp_path / "head").write_bytes(data.replace(b'\\"format_version\\": 2', b'\\"format_version\\": 1'))
    with pytest.warns(UserWarning, match="checksum"), pytest.raises(CheckpointError, match="to fit its checksum"):
        load_sealed(tmp_path / "head", kind="head", version=1)

import errno
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mirrorshot.files.checkpoint import (
    CheckpointError,
    CheckpointNotFoundError,
    load_checkpoint,
    load_info,
    save_checkpoint,
)
from mirrorshot.files.writing import CheckpointWriteError, write_atomically
from mirrorshot.types import MirrorshotError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last.safetensors"


@pytest.fixture
def saved(path):
    save_checkpoint(path, {"weight": torch.arange(1000.0)}, {"method": "dkt", "step": 3})
    return path


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_tensors_and_info_come_back(path):
    info = {"method": "dkt", "config": {"lr": 1e-3, "sizes": [1, 2]}, "step": 7, "best": None, "name": "größe"}
    tensors = {"a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), "b": torch.tensor([torch.nan])}
    save_checkpoint(path, tensors, info)
    loaded = load_checkpoint(path)
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_equal(loaded.tensors[name], tensor)
    assert {key: loaded.info[key] for key in info} == info
    assert loaded.info["format_version"] == 2
    assert load_info(path) == loaded.info


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.tensor(7),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.arange(5, dtype=torch.uint8),
        torch.tensor([1e-300], dtype=torch.float64),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(12.0).reshape(3, 4).T,
        torch.ones(1).expand(5),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["0-dim", "integer", "empty", "bool", "uint8", "double", "bfloat16", "channels_last", "transposed", "expanded",
         "parameter"],
)  # fmt: skip
def test_every_kind_of_tensor_survives(path, tensor):
    save_checkpoint(path, {"x": tensor}, {})
    loaded = load_checkpoint(path).tensors["x"]
    assert loaded.dtype == tensor.dtype
    assert loaded.is_contiguous()
    assert_equal(loaded, tensor.detach())


def test_tensors_that_share_storage_are_saved_one_by_one(path):
    whole = torch.arange(6.0)
    save_checkpoint(path, {"whole": whole, "tied": whole, "part": whole[2:4]}, {})
    loaded = load_checkpoint(path).tensors
    loaded["whole"].zero_()
    assert_equal(loaded["tied"], whole)
    assert loaded["part"].tolist() == [2.0, 3.0]


def test_file_is_plain_safetensors(saved):
    assert_equal(load_file(saved)["weight"], torch.arange(1000.0))


def test_new_checkpoint_takes_the_place_of_the_old_one(saved):
    save_checkpoint(saved, {"weight": torch.zeros(2)}, {"step": 4})
    assert load_checkpoint(saved).info["step"] == 4
    assert os.listdir(saved.parent) == [saved.name]


def test_a_reader_never_sees_half_a_checkpoint(path):
    def write():
        for i in range(60):
            save_checkpoint(path, {"x": torch.full((20_000,), float(i))}, {"step": i})

    save_checkpoint(path, {"x": torch.zeros(20_000)}, {"step": 0})
    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        tensors, info = load_checkpoint(path)
        assert (tensors["x"] == info["step"]).all()
    writer.join()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(saved, monkeypatch, call):
    def fail(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = saved.read_bytes()
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(
        CheckpointWriteError, match=r"40,\d\d\d bytes to .*last\.safetensors, but got: No space"
    ) as caught:
        save_checkpoint(saved, {"weight": torch.zeros(10_000)}, {"step": 4})
    assert "the file that was there is unchanged. Make room" in str(caught.value)
    assert isinstance(caught.value, OSError)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_write_that_stops_half_way_leaves_the_old_file(saved):
    code = (
        "import resource, sys, torch; from pathlib import Path;"
        "from mirrorshot.files.checkpoint import save_checkpoint;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "save_checkpoint(Path(sys.argv[1]), {'x': torch.zeros(100_000)}, {})"
    )
    before = saved.read_bytes()
    result = subprocess.run([sys.executable, "-c", code, saved], capture_output=True, text=True, timeout=300)
    assert "CheckpointWriteError: Expected to write 400," in result.stderr
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_an_interrupted_write_leaves_nothing_behind(path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(path, {}, {})
    assert os.listdir(path.parent) == []


def test_a_missing_folder_is_explained(tmp_path):
    with pytest.raises(CheckpointWriteError, match=r"no file was left there. Check that the folder exists"):
        save_checkpoint(tmp_path / "nowhere" / "last.safetensors", {}, {})


@pytest.mark.parametrize("value", [float("nan"), torch.zeros(1), object()])
def test_info_that_is_not_json_is_refused(path, value):
    with pytest.raises(CheckpointError, match="to be JSON"):
        save_checkpoint(path, {}, {"x": value})
    assert not path.exists()


def test_a_missing_file_is_explained(path):
    with pytest.raises(FileNotFoundError, match=r"Expected a checkpoint at .* but got no such file"):
        load_checkpoint(path)
    with pytest.raises(CheckpointNotFoundError):
        load_info(path)
    with pytest.raises(MirrorshotError):
        load_checkpoint(path)


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="it is a folder"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"hello, this is a text of some length",
        os.urandom(4096),
        (2**63).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{" * 100,
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
    ],
    ids=["empty", "one byte", "text", "random", "huge header", "no JSON", "no info", "no object"],
)
def test_what_is_not_a_checkpoint_is_refused(path, data):
    path.write_bytes(data)
    for load in (load_checkpoint, load_info):
        with pytest.raises(CheckpointError, match="to be a file of mirrorshot, but got something else"):
            load(path)


def test_deeply_nested_header_is_refused(path):
    depth = 200_000
    path.write_bytes((6 * depth + 5).to_bytes(8, "little") + b'{"a":' + b"[" * 6 * depth)
    with pytest.raises(CheckpointError, match="its header is not that of one"):
        load_checkpoint(path)


def test_tensors_of_other_programs_are_refused(path):
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="its header is not that of one"):
        load_checkpoint(path)


@pytest.mark.parametrize("n_bytes", [100, 4000, -1])
def test_a_truncated_file_is_recognised(saved, n_bytes):
    data = saved.read_bytes()
    saved.write_bytes(data[:n_bytes])
    n = len(data[:n_bytes])
    for load in (load_checkpoint, load_info):
        with pytest.raises(CheckpointError, match=f"to have .* bytes, but got {n:,}: it was cut off"):
            load(saved)


def test_offsets_that_lie_are_refused(saved):
    data = saved.read_bytes()
    saved.write_bytes(data.replace(b"[0,4000]", b"[4,4000]"))
    with pytest.raises(CheckpointError, match="to fit its checksum"):
        load_checkpoint(saved)


def test_a_newer_format_is_recognised(path):
    info = {"format_version": 3, "mirrorshot_version": "9.0"}
    save_file({"x": torch.zeros(1)}, path, {"mirrorshot": json.dumps(info)})
    with pytest.raises(CheckpointError, match=r"version 2 or older, but got 3, written by mirrorshot 9\.0"):
        load_checkpoint(path)


def test_written_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint8", "int64", "bool"])
def test_arrays_come_back_bit_by_bit(path, dtype):
    array = np.random.default_rng(0).normal(size=(6, 4)).astype(dtype)[::2, ::-1]  # not contiguous
    save_checkpoint(path, {"a": array, "none": array[:0], "one": array[0, 0, ...]}, {})
    found = load_checkpoint(path, as_arrays=True).tensors
    assert found["a"].dtype == array.dtype
    np.testing.assert_array_equal(found["a"], array)
    assert (found["none"].shape, found["one"].shape) == ((0, 4), ())


def test_arrays_and_tensors_are_the_same_file(tmp_path):
    array = np.arange(6.0).reshape(2, 3)
    save_checkpoint(tmp_path / "array", {"a": array}, {"step": 1})
    save_checkpoint(tmp_path / "tensor", {"a": torch.from_numpy(array)}, {"step": 1})
    save_checkpoint(tmp_path / "both", {"a": array, "b": torch.ones(1)}, {})
    assert (tmp_path / "array").read_bytes() == (tmp_path / "tensor").read_bytes()
    assert_equal(load_checkpoint(tmp_path / "both").tensors["a"], torch.from_numpy(array))

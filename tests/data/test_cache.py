import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from mirrorshot.data import cache
from mirrorshot.data.cache import cache_folder, cached_folder, read_npz
from mirrorshot.types import DataError


class Maker:
    """Makes arrays and counts how often."""

    def __init__(self):
        self.n_calls = 0

    def __call__(self):
        self.n_calls += 1
        return {"x": np.random.default_rng(0).integers(0, 256, (50, 40), dtype=np.uint8), "n": np.arange(3)}


def keep(folder, make):
    return cached_folder(folder / "set", "key", make)


@pytest.fixture
def make():
    return Maker()


def test_what_is_kept_is_not_made_again(tmp_path, make):
    made, read = (keep(tmp_path / "deep" / "folder", make) for _ in range(2))
    assert make.n_calls == 1
    for arrays in (made, read):
        assert sorted(arrays) == ["n", "x"]
        assert np.array_equal(arrays["x"], Maker()()["x"])
    assert len(list((tmp_path / "deep" / "folder").iterdir())) == 1  # no temporary files are left


@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_damaged_cache_is_made_again(tmp_path, make, damage):
    keep(tmp_path, make)
    path = tmp_path / "set/x.npy"
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[: len(whole) // 2], "text": b"not an array", "empty": b""}[damage])
    with pytest.warns(UserWarning, match=r"The cache .* cannot be read .*; it is made again"):
        keep(tmp_path, make)
    assert np.array_equal(keep(tmp_path, make)["x"], Maker()()["x"])  # without a warning
    assert make.n_calls == 2


def test_another_key_replaces_what_was_kept(tmp_path, make):
    cached_folder(tmp_path / "set", "old", make)
    cached_folder(tmp_path / "set", "new", lambda: {"y": np.zeros(2)})
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == ["key", "y.npy"]
    cached_folder(tmp_path / "set", "old", make)
    assert make.n_calls == 2


def test_mapped_arrays_can_be_changed_without_changing_the_files(tmp_path, make):
    keep(tmp_path, make)["n"][:] = 9
    assert keep(tmp_path, make)["n"].tolist() == [0, 1, 2]


def test_a_useless_cache_folder_is_no_error(tmp_path, make):
    (tmp_path / "file").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot be kept in .*; set MIRRORSHOT_CACHE"):
        assert keep(tmp_path / "file", make)["n"].tolist() == [0, 1, 2]


def test_a_failed_write_leaves_nothing(tmp_path, make, monkeypatch):
    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full_disk)
    with pytest.warns(UserWarning, match="cannot be kept in .*No space left"):
        keep(tmp_path, make)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_faster_is_no_error(tmp_path, make, monkeypatch):
    def other_process(path, **kwargs):
        monkeypatch.undo()
        keep(tmp_path, Maker())

    monkeypatch.setattr("shutil.rmtree", other_process)
    assert np.array_equal(keep(tmp_path, make)["x"], Maker()()["x"])
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_pickles_are_neither_read_nor_written(tmp_path):
    path = tmp_path / "set.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="plain arrays, but it cannot be read: Object arrays cannot be loaded"):
        read_npz(path)
    with pytest.warns(UserWarning, match="Object arrays cannot be saved"):
        cached_folder(tmp_path / "new", "key", lambda: {"x": np.array([{}], dtype=object)})
    path.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="cannot be read"):
        read_npz(path)


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(10**6))
    monkeypatch.setattr(cache, "_load", None)
    with pytest.raises(DataError, match=r"bomb\.npz to unpack to at most 1000000 bytes, but it has 8000\d+"):
        read_npz(tmp_path / "bomb.npz", max_bytes=10**6)


def test_a_lying_header_is_an_error(tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)})
    with zipfile.ZipFile(tmp_path / "liar.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue() + bytes(80))
    with pytest.raises(DataError, match=r"liar\.npz to be an \.npz file of plain arrays, but it cannot be read"):
        read_npz(tmp_path / "liar.npz")


def test_missing_and_single_arrays_are_named(tmp_path):
    with pytest.raises(DataError, match=r"Expected an \.npz file at .*nowhere\.npz, but there is none"):
        read_npz(tmp_path / "nowhere.npz")
    np.save(tmp_path / "single.npy", np.zeros(3))
    os.rename(tmp_path / "single.npy", tmp_path / "single.npz")
    with pytest.raises(DataError, match=r"single\.npz to be an \.npz file of plain arrays"):
        read_npz(tmp_path / "single.npz")


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MIRRORSHOT_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MIRRORSHOT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mirrorshot"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mirrorshot"

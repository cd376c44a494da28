import numpy as np
import pytest
import torch

from mirrorshot.data import decoding
from mirrorshot.data.packed import packed_splits, read_packed
from mirrorshot.types import DataError

SPLITS = ["train", "val", "train", "test"]


@pytest.fixture
def path(tmp_path, draw):
    draw.pack(tmp_path / "set.npz", 3, SPLITS, sizes=(50, 40))
    return tmp_path / "set.npz"


def test_all_pictures_come_out_with_classes_and_sizes(path):
    source = read_packed(path)
    assert source.items.shape == (12, 3, 12, 12)
    assert source.class_names == ("000.class", "001.class", "002.class", "003.class")
    assert source.labels.tolist() == [c for c in range(4) for _ in range(3)]
    assert source.sizes.tolist() == [[50, 40]] * 12
    assert source.items[:, 0, :, -1].float().mean(1).tolist() == [20 * c + 40 for c in range(4) for _ in range(3)]


def test_a_split_has_its_classes_only(path):
    source = read_packed(path, split="train")
    assert source.class_names == ("000.class", "002.class")
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(source.items, read_packed(path).subset([0, 2]).items)
    assert len(source.sizes) == 6


def test_splits_are_known_without_decoding(path, monkeypatch):
    monkeypatch.setattr(decoding, "decode", None)
    assert packed_splits(path) == {
        "train": ("000.class", "002.class"),
        "val": ("001.class",),
        "test": ("003.class",),
    }


def test_parts_make_one_set(path, tmp_path, draw):
    whole = dict(np.load(path))
    for part, rows in enumerate((slice(0, 5), slice(5, 12))):
        mine = {key: whole[key][rows] for key in ("labels", "orig_size_wh")}
        mine["offsets"] = whole["offsets"][rows.start : rows.stop + 1]
        np.savez(tmp_path / f"part{part}.npz", **{**whole, **mine})
    both = read_packed([tmp_path / "part0.npz", tmp_path / "part1.npz"])
    assert torch.equal(both.items, read_packed(path).items)
    assert torch.equal(both.labels, read_packed(path).labels)
    with pytest.raises(DataError, match=r"have pictures, but 2 have none: '002\.class', .*; is a part missing"):
        read_packed(tmp_path / "part0.npz")


def test_the_second_reading_decodes_nothing(path, monkeypatch):
    source = read_packed(path)
    monkeypatch.setattr("mirrorshot.data.packed.decode_all", None)
    assert torch.equal(read_packed(path).items, source.items)


def test_without_cache_no_file_is_written(path, folder):
    read_packed(path, cache=False)
    assert not folder.exists()


def test_archives_without_sizes_have_none(tmp_path, draw):
    draw.pack(tmp_path / "set.npz", 2, SPLITS)
    assert read_packed(tmp_path / "set.npz").sizes is None


def test_a_damaged_picture_is_named(path):
    arrays = dict(np.load(path))
    arrays["data"][arrays["offsets"][4] :][:20] = 0
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=r"set\.npz to be readable, but 1 are not: 4 \(no image in .*copy"):
        read_packed(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None, "data": None}, "these arrays are missing: 'data', 'labels'"),
        ({"labels": np.full(12, 4)}, "to fit together, but got .*; copy the file again"),
        ({"labels": np.full(12, -1)}, "to fit together"),
        ({"labels": np.zeros(11, int)}, "to fit together"),
        ({"labels": np.zeros(12)}, "to fit together"),
        ({"offsets": np.arange(13)[::-1]}, "to fit together"),
        ({"offsets": np.arange(13) * 10**9}, "to fit together"),
        ({"offsets": np.array([0])}, "to fit together"),
        ({"offsets": np.array(3)}, "to fit together"),
        ({"data": np.zeros((2, 2), np.uint8)}, "to fit together"),
        ({"class_split": np.array(["train"])}, "to fit together"),
        ({"orig_size_wh": np.zeros((12, 2), int)}, "to fit together"),
    ],
)
def test_archives_that_make_no_sense_are_refused(path, changes, message):
    arrays = {key: value for key, value in {**np.load(path), **changes}.items() if value is not None}
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        read_packed(path)


def test_parts_of_different_sets_are_refused(path, tmp_path, draw):
    draw.pack(tmp_path / "other.npz", 3, SPLITS[::-1])
    with pytest.raises(DataError, match=r"other\.npz to have the classes of .*set\.npz, but they differ"):
        read_packed([path, tmp_path / "other.npz"])


def test_an_unknown_split_is_named(path):
    with pytest.raises(DataError, match=r"classes of split 'dev', but it has \['test', 'train', 'val'\]"):
        read_packed(path, split="dev")

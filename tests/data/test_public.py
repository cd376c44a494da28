import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from mirrorshot.data import load_dataset
from mirrorshot.data.public import (
    cub_splits,
    find_cub,
    find_emnist,
    find_mini_imagenet,
    find_omniglot,
    mini_imagenet_splits,
    omniglot_splits,
    read_emnist,
    read_mini_imagenet,
    read_omniglot,
)
from mirrorshot.types import DataError


@pytest.fixture
def omniglot(tmp_path):
    """A few characters of three alphabets: black ink on white, one bit per pixel."""
    for place in ("background/Latin/character01", "background/Hebrew/character01", "evaluation/Tengwar/character01"):
        folder = tmp_path / f"images_{place}"
        folder.mkdir(parents=True)
        for i in range(3):
            pixels = np.full((105, 105), 255, np.uint8)
            pixels[20:80, 10 * i + 20 : 10 * i + 40] = 0
            Image.fromarray(pixels).convert("1").save(folder / f"0001_{i:02d}.png")
    return tmp_path


@pytest.fixture
def mini_imagenet(tmp_path, draw):
    root = tmp_path / "mini_imagenet"
    (root / "images").mkdir(parents=True)
    for split, labels in (("train", "ab"), ("val", "c"), ("test", "d")):
        rows = ["filename,label"]
        for label in labels:
            for i in range(3):
                draw.paint((ord(label), 100, 20 * i), (84, 84)).save(root / "images" / f"{label}{i}.jpg")
                rows.append(f"{label}{i}.jpg,{label}")
        (root / f"{split}.csv").write_text("\n".join(rows) + "\n")
    return root


def write_idx(path, array):
    header = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_emnist(root, labels, part="train", suffix=".gz"):
    """Pictures whose upright form has its label in the first row and 255 in the first column."""
    pictures = np.zeros((len(labels), 28, 28), np.uint8)
    pictures[:, :, 0] = 255
    pictures[:, 0, :] = np.array(labels)[:, None]
    write_idx(root / f"emnist-byclass-{part}-images-idx3-ubyte{suffix}", pictures.transpose(0, 2, 1))
    write_idx(root / f"emnist-byclass-{part}-labels-idx1-ubyte{suffix}", np.array(labels))


def test_omniglot_becomes_white_ink_on_black(omniglot):
    source = read_omniglot(find_omniglot(omniglot))
    assert source.class_names == ("Hebrew/character01", "Latin/character01", "Tengwar/character01")
    assert source.items.shape == (9, 1, 28, 28)
    assert source.items[:, 0, 0].max() == 0
    assert source.items[0, 0, 12, 8] > 240
    assert source.sizes is None


def test_omniglot_is_split_by_alphabets(omniglot):
    splits = omniglot_splits(omniglot)
    assert splits == {"train": ("Latin/character01", "Tengwar/character01"), "val": ("Hebrew/character01",), "test": ()}


def test_omniglot_is_loaded_for_the_cross_domain_task(omniglot):
    source = load_dataset("omniglot_to_emnist", folder=omniglot, splits=["train"]).train
    assert source.class_names == ("Hebrew/character01", "Tengwar/character01")


def test_cub_is_split_by_turns(tmp_path, draw):
    names = {f"{i:03d}.Bird": 2 for i in range(1, 9)}
    draw.class_folders(tmp_path / "CUB_200_2011" / "images", names, ".jpg", (50, 30))
    assert find_cub(tmp_path) == tmp_path / "CUB_200_2011" / "images"
    data = load_dataset("cub", folder=tmp_path)
    assert data.train.class_names == ("001.Bird", "003.Bird", "005.Bird", "007.Bird")
    assert data.val.class_names == ("002.Bird", "006.Bird")
    assert data.test.class_names == ("004.Bird", "008.Bird")
    assert data.train.items.shape == (8, 3, 192, 192)
    assert data.train.sizes.tolist() == [[50, 30]] * 8
    assert data.test.items.shape == (4, 3, 84, 84)


def test_cub_of_200_classes_has_the_numbers_of_the_paper():
    assert [len(names) for names in cub_splits([f"{i:03d}" for i in range(200)]).values()] == [100, 50, 50]


def test_mini_imagenet_follows_its_lists(mini_imagenet, tmp_path):
    assert find_mini_imagenet(tmp_path) == mini_imagenet
    data = load_dataset("mini_imagenet", folder=tmp_path)
    assert [part.class_names for part in (data.train, data.val, data.test)] == [("a", "b"), ("c",), ("d",)]
    assert data.train.items.shape == (6, 3, 84, 84)
    assert read_mini_imagenet(mini_imagenet).class_names == ("a", "b", "c", "d")


def test_lists_without_their_pictures_are_named(mini_imagenet):
    (mini_imagenet / "images" / "c1.jpg").unlink()
    with pytest.raises(DataError, match=r"but 1 are missing: 'c1\.jpg'; get them again"):
        read_mini_imagenet(mini_imagenet)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.jpg,a\n", "list of filename,label, but got: KeyError"),
        ("filename,label\n../secret.jpg,a\n", r"names of files, without folders, but got '\.\./secret\.jpg'"),
        ("filename,label\na.jpg\n", r"names of files, without folders, but got 'a\.jpg'"),
        ("filename,label\n", "names of files, without folders, but got none"),
        ("", "but got none"),
        ("filename,label\nd0.jpg,d\n", "share no class, but they do: 'd'"),
    ],
)
def test_strange_lists_are_refused(mini_imagenet, text, message):
    (mini_imagenet / "train.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        mini_imagenet_splits(mini_imagenet)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_emnist_is_upright_and_sorted_by_character(tmp_path, suffix):
    write_emnist(tmp_path, [*range(61, -1, -1), 5], suffix=suffix)
    source = read_emnist(find_emnist(tmp_path))
    assert source.items.shape == (63, 1, 28, 28)
    assert "".join(source.class_names) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert torch.equal(source.items[:, 0, 0, 5].long(), source.labels)
    assert (source.items[:, 0, 1:, 0] == 255).all()
    assert source.counts.tolist() == [1] * 5 + [2] + [1] * 56


def test_emnist_has_200_pictures_of_a_character_from_both_files(tmp_path):
    write_emnist(tmp_path, [*range(62), *[7] * 150])
    write_emnist(tmp_path, [*[7] * 150, 8], "test", "")
    counts = read_emnist(find_emnist(tmp_path)).counts
    assert counts[7] == 200
    assert counts[8] == 2


def test_even_labels_validate_and_odd_ones_test(tmp_path):
    write_emnist(tmp_path, list(range(62)))
    data = load_dataset("omniglot_to_emnist", folder=tmp_path, splits=["val", "test"])
    assert "".join(data.val.class_names) == "02468ACEGIKMOQSUWYacegikmoqsuwy"
    assert "".join(data.test.class_names) == "13579BDFHJLNPRTVXZbdfhjlnprtvxz"


def test_a_character_without_pictures_is_named(tmp_path):
    write_emnist(tmp_path, list(range(61)))
    with pytest.raises(DataError, match=r"62 characters in .*, but 1 have none: 'z'"):
        read_emnist(tmp_path)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("images-idx3", struct.pack(">IIII", 0x803, 2**31, 28, 28), "cannot be read: the header has 0x803, 2147483648"),
        ("images-idx3", struct.pack(">IIII", 0x803, 62, 2**16, 28), r"62 items of shape \(65536, 28\)"),
        ("images-idx3", struct.pack(">IIII", 0x803, 62, 28, 28) + bytes(100), "complete, but it ends too early"),
        ("images-idx3", struct.pack(">IIII", 0x803, 3, 28, 28) + bytes(3 * 784), "each of 62 labels, but it has fewer"),
        ("images-idx3", b"abc", "cannot be read: unpack requires"),
        ("labels-idx1", struct.pack(">II", 0x801, 1) + b"\x3e", "labels 0 to 61 in .*, but got 62"),
        ("labels-idx1", None, "a file of labels beside .*, but there is none"),
    ],
)
def test_damaged_files_of_emnist_are_named(tmp_path, kind, content, message):
    write_emnist(tmp_path, list(range(62)), suffix="")
    path = tmp_path / f"emnist-byclass-train-{kind}-ubyte"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_emnist(tmp_path)


def test_a_damaged_archive_of_emnist_is_named(tmp_path):
    write_emnist(tmp_path, list(range(62)))
    path = tmp_path / "emnist-byclass-train-images-idx3-ubyte.gz"
    for content in (path.read_bytes()[:-200], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="to be a file of EMNIST, but it cannot be read"):
            read_emnist(tmp_path)


def test_nothing_is_found_where_nothing_is(tmp_path):
    assert [find(tmp_path) for find in (find_omniglot, find_cub, find_mini_imagenet, find_emnist)] == [None] * 4

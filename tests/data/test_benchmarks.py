import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mirrorshot.data import DATASETS, load_dataset
from mirrorshot.data.decoding import decode
from mirrorshot.data.public import cub_splits, omniglot_splits, read_omniglot
from mirrorshot.types import DataError, InvalidInputError

SPLITS = ["train", "val", "train", "test"]


@pytest.fixture
def real():
    """The folder of the real data."""
    folder = os.environ.get("MIRRORSHOT_DATA")
    if not folder:
        pytest.skip("MIRRORSHOT_DATA is not set: the benchmark data are not here")
    return Path(folder)


@pytest.fixture
def packed(tmp_path, draw):
    """Tiny packed files of all benchmarks."""
    folder = tmp_path / "data"
    folder.mkdir()
    draw.pack(folder / "cub192.npz", 2, SPLITS, size=192, sizes=(300, 200))
    for part, count in enumerate(([2, 2, 0, 0], [0, 0, 2, 2])):
        draw.pack(folder / f"miniimagenet84_{part}.npz", count, SPLITS, size=84)
    names = ["Greek/character01", "Latin/character01", "Greek/character02", "Keble/character01"]
    np.savez(
        folder / "omniglot.npz",
        images28=np.full((8, 28, 28), 250, np.uint8),
        cls=np.arange(8, dtype=np.int16) // 2,
        class_names=names,
        class_vinyals_split=np.array([0, 0, 1, 2], np.int8),
    )
    characters = list("01AB")
    np.savez(
        folder / "emnist.npz", images=np.zeros((8, 28, 28), np.uint8), labels=np.arange(8) % 4, label_chars=characters
    )
    return folder


def n_classes(data):
    return tuple(part.n_classes for part in (data.train, data.val, data.test))


def test_cub_trains_on_large_pictures_and_tests_on_small_ones(packed):
    data = load_dataset("cub", folder=packed)
    assert (data.name, data.image_size, data.channels, data.augment) == ("cub", 84, 3, True)
    assert data.mean == (0.485, 0.456, 0.406)
    assert n_classes(data) == (2, 1, 1)
    assert data.train.items.shape == (4, 3, 192, 192)
    assert data.train.sizes.tolist() == [[300, 200]] * 4
    assert data.test.items.shape == data.val.items.shape == (2, 3, 84, 84)
    assert data.test.sizes is None


def test_mini_imagenet_is_joined_from_its_parts(packed):
    data = load_dataset("mini_imagenet", folder=packed)
    assert data.train.class_names == ("000.class", "002.class")
    assert data.train.items.shape == (4, 3, 84, 84)
    assert data.train.sizes is None


def test_the_cross_domain_task_trains_on_all_of_mini_imagenet(packed):
    data = load_dataset("mini_imagenet_to_cub", folder=packed)
    assert n_classes(data) == (4, 1, 1)
    assert data.train.items.shape == (8, 3, 84, 84)
    assert data.test.class_names == ("003.class",)


def test_omniglot_is_white_on_black_in_the_split_of_vinyals(packed):
    data = load_dataset("omniglot", folder=packed)
    assert (data.image_size, data.channels, data.augment, data.mean, data.std) == (28, 1, False, (0.0,), (1.0,))
    assert data.train.class_names == ("Greek/character01", "Latin/character01")
    assert data.test.class_names == ("Keble/character01",)
    assert data.train.items.shape == (4, 1, 28, 28)
    assert data.train.items.unique().tolist() == [5]


def test_omniglot_to_emnist_leaves_latin_out(packed):
    data = load_dataset("omniglot_to_emnist", folder=packed)
    assert data.train.class_names == ("Greek/character01", "Greek/character02", "Keble/character01")
    assert data.val.class_names == ("0", "A")
    assert data.test.class_names == ("1", "B")


def test_only_what_is_asked_for_is_loaded(packed, monkeypatch):
    monkeypatch.setenv("MIRRORSHOT_DATA", str(packed))
    (packed / "cub192.npz").unlink()
    data = load_dataset("mini_imagenet_to_cub", splits=["train"])
    assert (data.val, data.test) == (None, None)


def test_glyphs_need_no_folder(monkeypatch):
    monkeypatch.delenv("MIRRORSHOT_DATA", raising=False)
    data = load_dataset("glyphs", splits=("test",))
    assert data.test.n_items == 1797
    assert data.train is None


def test_own_pictures_are_read_from_a_folder_of_splits(tmp_path, draw):
    for split, names in (("train", "abc"), ("val", "de"), ("test", "fg")):
        draw.class_folders(tmp_path / "own" / split, dict.fromkeys(names, 2), size=(40, 90))
    data = load_dataset(tmp_path / "own")
    assert n_classes(data) == (3, 2, 2)
    assert data.name == str(tmp_path / "own")
    assert data.train.items.shape[1:] == (3, 192, 192)
    assert data.train.sizes[0].tolist() == [40, 90]
    assert data.val.items.shape[1:] == data.test.items.shape[1:] == (3, 84, 84)
    with Image.open(tmp_path / "own" / "test" / "f" / "00.png") as image:
        theirs = np.asarray(image.resize((96, 96), Image.Resampling.BILINEAR))[6:90, 6:90]
    assert torch.equal(data.test.items[0], torch.from_numpy(theirs.copy()).permute(2, 0, 1))


def test_own_pictures_may_lack_a_split_that_is_not_asked_for(tmp_path, draw):
    draw.class_folders(tmp_path / "own" / "test", {"a": 2, "b": 2})
    assert load_dataset(tmp_path / "own", splits=["test"]).test.n_classes == 2
    with pytest.raises(DataError, match="but 'train', 'val' are missing; add them, or name the splits that are there"):
        load_dataset(tmp_path / "own")


def test_a_damaged_picture_can_be_left_out(tmp_path, draw):
    draw.class_folders(tmp_path / "own" / "test", {"a": 2, "b": 2})
    (tmp_path / "own" / "test" / "a" / "00.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"00\.png"):
        load_dataset(tmp_path / "own", splits=["test"])
    with pytest.warns(UserWarning, match="1 images cannot be read and are left out"):
        data = load_dataset(tmp_path / "own", splits=["test"], skip_corrupt=True)
    assert data.test.counts.tolist() == [1, 2]


def test_a_class_in_two_splits_is_a_warning(tmp_path, draw):
    for split, names in (("train", "abc"), ("test", "cd")):
        draw.class_folders(tmp_path / "own" / split, dict.fromkeys(names, 2))
    with pytest.warns(UserWarning, match="1 classes of .* are in more than one split, .*: 'c'"):
        load_dataset(tmp_path / "own", splits=["train", "test"])


def test_own_embeddings_are_read_from_a_file_or_a_folder(tmp_path):
    for name, letters in (("train", "abc"), ("val", "de"), ("test", "fg")):
        np.savez(tmp_path / f"{name}.npz", X=np.zeros((6, 4)), y=np.resize(list(letters), 6))
    assert n_classes(load_dataset(tmp_path)) == (3, 2, 2)
    data = load_dataset(tmp_path / "val.npz")
    assert data.test.class_names == ("d", "e")
    assert (data.train, data.val, data.image_size, data.augment, data.mean) == (None, None, 0, False, ())
    with pytest.raises(DataError, match="`splits` to contain 'test', the only split of the file"):
        load_dataset(tmp_path / "val.npz", splits=["train"])


def test_pictures_and_embeddings_do_not_mix(tmp_path, draw):
    draw.class_folders(tmp_path / "train", {"a": 2})
    np.savez(tmp_path / "test.npz", X=np.zeros((2, 4)), y=["a", "b"])
    with pytest.raises(DataError, match="all images or all embeddings, but got both"):
        load_dataset(tmp_path, splits=["train", "test"])


@pytest.mark.parametrize(
    ("name", "file", "origin"),
    [
        ("cub", "cub192.npz or CUB_200_2011/images", "vision.caltech.edu"),
        ("mini_imagenet", "miniimagenet84_0.npz and miniimagenet84_1.npz, or images, train.csv", "image-net.org"),
        ("omniglot", "omniglot.npz or images_background", "brendenlake/omniglot"),
        ("omniglot_to_emnist", "emnist.npz or emnist-byclass-train-images-idx3-ubyte.gz", "nist.gov"),
    ],
)
def test_missing_data_are_named_with_where_to_get_them(tmp_path, monkeypatch, name, file, origin):
    monkeypatch.setenv("MIRRORSHOT_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        load_dataset(name, splits=["test"])
    for part in (file, f"in {tmp_path}", f"(MIRRORSHOT_DATA is '{tmp_path}')", origin):
        assert part in str(error.value)
    monkeypatch.delenv("MIRRORSHOT_DATA")
    with pytest.raises(DataError, match=rf"`folder` is None and MIRRORSHOT_DATA is not set; set it to .*{origin}"):
        load_dataset(name, splits=["test"])
    with pytest.raises(DataError, match=r"but there is no such folder \(MIRRORSHOT_DATA is not set\)"):
        load_dataset(name, splits=["test"], folder=tmp_path / "nowhere")


@pytest.mark.parametrize("damage", ["arrays", "pictures"])
def test_damaged_characters_are_named(packed, damage):
    content = (
        {"cls": np.zeros(3)} if damage == "arrays" else {**np.load(packed / "omniglot.npz"), "images28": np.zeros(3)}
    )
    np.savez(packed / "omniglot.npz", **content)
    with pytest.raises(
        DataError, match=r"these arrays are missing: 'images28'|omniglot\.npz is damaged; copy it again"
    ):
        load_dataset("omniglot", folder=packed)


@pytest.mark.parametrize("name", ["no_such_set", "x" * 5000, "with\0zero"])
def test_an_unknown_name_is_named(name):
    with pytest.raises(
        DataError, match=r"a data set \(glyphs, cub, .* or a path, but .* is neither; check the spelling"
    ):
        load_dataset(name)


@pytest.mark.parametrize("splits", [[], ["dev"], "train"])
def test_unknown_splits_are_named(splits):
    with pytest.raises(InvalidInputError, match=r"`splits` to be some of \['train', 'val', 'test'\], but got"):
        load_dataset("glyphs", splits=splits)


def test_every_benchmark_says_in_what_it_differs():
    for name, description in DATASETS.items():
        assert description.title
        assert description.deviations or name == "glyphs"


@pytest.mark.parametrize("name", ["cub192", "miniimagenet84_0", "miniimagenet84_1"])
def test_the_real_photographs_have_the_classes_of_the_paper(real, name):
    with np.load(real / f"{name}.npz") as file:
        names, of_class = file["class_names"], file["class_split"]
    splits = {split: tuple(names[of_class == split].tolist()) for split in ("train", "val", "test")}
    counts = tuple(len(names) for names in splits.values())
    assert counts == DATASETS["cub" if name == "cub192" else "mini_imagenet"].classes
    if name == "cub192":
        assert splits == cub_splits([name for names in splits.values() for name in names])


@pytest.mark.parametrize(("name", "n", "size"), [("cub192", 11788, 192), ("miniimagenet84_1", 30000, 84)])
def test_some_of_the_real_photographs_can_be_decoded(real, name, n, size):
    with np.load(real / f"{name}.npz") as file:
        data, offsets = file["data"], file["offsets"]
    assert len(offsets) == n + 1
    for i in range(0, n, n // 5):
        pixels, original = decode(data[offsets[i] : offsets[i + 1]].tobytes(), size, 3)
        assert original == (size, size)
        assert pixels.std() > 5


@pytest.mark.parametrize("name", ["omniglot", "omniglot_to_emnist"])
def test_the_real_characters_have_the_classes_of_the_paper(real, name):
    data = load_dataset(name, folder=real)
    assert n_classes(data) == DATASETS[name].classes
    assert data.train.counts.unique().tolist() == [20]
    for part in (data.train, data.val, data.test):
        assert part.items.float().mean() < 100  # white ink on black
    assert not set(data.train.class_names) & set(data.test.class_names)


def test_the_public_omniglot_is_the_packed_one(real, tmp_path):
    with np.load(real / "omniglot.npz") as file:
        names, of_class, is_evaluation = file["class_names"], file["class_vinyals_split"], file["split"]
        cls, small, bits = file["cls"], file["images28"], file["images105_packed"]
    first = np.searchsorted(cls, np.arange(len(names)))
    parts = np.array(["images_background", "images_evaluation"])[is_evaluation[first]]
    for part, name in zip(parts, names, strict=True):
        (tmp_path / "all" / part / name).mkdir(parents=True)
    assert omniglot_splits(tmp_path / "all") == {
        split: tuple(sorted(names[of_class == i].tolist())) for i, split in enumerate(("train", "val", "test"))
    }
    some = np.arange(0, len(names), 300)
    for c in some:
        pixels = np.unpackbits(bits[first[c]])[: 105 * 105].reshape(105, 105)
        folder = tmp_path / "some" / parts[c] / names[c]
        folder.mkdir(parents=True)
        Image.fromarray((1 - pixels) * 255).convert("1").save(folder / "0.png")
    source = read_omniglot(tmp_path / "some")
    order = [source.class_names.index(names[c]) for c in some]
    assert torch.equal(source.items[order, 0], torch.from_numpy(255 - small[first[some]]))

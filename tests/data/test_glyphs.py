import unicodedata

import numpy as np
import pytest
import torch

from mirrorshot.data import EpisodeSampler, glyphs, load_glyphs
from mirrorshot.types import InvalidInputError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("MIRRORSHOT_CACHE", str(tmp_path / "cache"))
    glyphs._glyphs.cache_clear()
    yield tmp_path / "cache"
    glyphs._glyphs.cache_clear()


def small(split="train", n_classes=6, n_per_class=4, seed=0, cache=False):
    return load_glyphs(split, n_classes=n_classes, n_per_class=n_per_class, seed=seed, cache=cache)


def test_pictures_are_bytes_of_one_channel():
    source = small()
    assert source.items.shape == (24, 1, 28, 28)
    assert source.items.dtype == torch.uint8
    assert source.labels.tolist() == [c for c in range(6) for _ in range(4)]
    assert source.counts.tolist() == [4] * 6


def test_the_same_seed_gives_the_same_pictures_and_another_one_others():
    source = small()
    glyphs._glyphs.cache_clear()
    again = small()
    assert again.items is not source.items
    assert torch.equal(again.items, source.items)
    assert again.class_names == source.class_names
    assert not torch.equal(small(seed=1).items, source.items)


def test_loading_twice_renders_once():
    assert small() is small()


def test_a_larger_set_contains_a_smaller_one():
    few, many = small(), small(n_classes=15, n_per_class=7)
    assert set(few.class_names) < set(many.class_names)
    pictures = many.subset(few.class_names).items.view(6, 7, 1, 28, 28)
    assert torch.equal(pictures[:, :4], few.items.view(6, 4, 1, 28, 28))


def test_there_are_many_classes_of_several_scripts():
    classes = glyphs.glyph_classes()
    assert 1800 < len(classes) < 2000
    scripts = {unicodedata.name(chr(c), "").split(" ")[0] for c in classes}
    assert {"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN"} <= scripts


def test_no_class_is_in_two_splits():
    train, val = (set(map(chr, glyphs._choose(split, None))) for split in ("train", "val"))
    test = set(load_glyphs("test").class_names)
    assert not train & val
    assert not (train | val) & test
    assert train | val == set(map(chr, glyphs.glyph_classes()))
    assert 0.15 < len(val) / len(train | val) < 0.25


def test_no_class_is_a_digit_or_looks_like_one():
    classes = set(map(chr, glyphs.glyph_classes()))
    assert not classes & set("0123456789²₂½①OolI|\u039f\u03bf\u041e\u043e\u0417\u01b7")
    assert all(not c.isnumeric() for c in classes)


def test_characters_with_the_same_picture_are_one_class():
    classes = set(map(chr, glyphs.glyph_classes()))
    assert {"A", "B", "a", "Ж"} <= classes
    assert not classes & set("\u0391\u0410\u0412\u0430ᴬ")


def test_blank_characters_and_accents_are_no_classes():
    assert not set(map(chr, glyphs.glyph_classes())) & set(" \u00a0\u00ad\u2003\u0301\u200b")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_ink_is_white_on_black_and_within_the_frame(split):
    items = (load_glyphs("test") if split == "test" else small(split, n_classes=40)).items[:, 0].float() / 255
    ink = items.mean((1, 2))
    assert ink.min() > 0.005
    assert ink.max() < 0.8
    assert (items.amax((1, 2)) > 0.25).all()
    border = torch.cat([items[:, 0], items[:, -1], items[:, :, 0], items[:, :, -1]], 1)
    assert border.mean() < 0.02


def test_pictures_of_one_class_differ():
    pictures = glyphs.render_class("A", 30, seed=0)
    assert len({p.tobytes() for p in pictures}) == 30


def test_characters_of_every_typeface_look_alike():
    """The nearest mean knows letters: no font draws something else in their place."""
    train = np.stack([glyphs.render_class(c, 42, seed=0) for c in "AEMSkgw"]).reshape(7, 42, -1) / 255.0
    fresh = np.stack([glyphs.render_class(c, 42, seed=1) for c in "AEMSkgw"]).reshape(7, 42, -1) / 255.0
    distance = ((fresh[:, :, None] - train.mean(1)) ** 2).sum(-1)
    assert (distance.argmin(-1) == np.arange(7)[:, None]).mean() > 0.85


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    source = load_glyphs("test")
    assert source.items.shape == (1797, 1, 28, 28)
    assert source.labels.tolist() == y.tolist()
    blocks = source.items[:, 0, 2:26, 2:26].float().view(-1, 8, 3, 8, 3).mean((2, 4)).numpy()
    assert np.corrcoef(blocks.ravel(), X.ravel())[0, 1] > 0.97


def test_episodes_can_be_drawn():
    tasks, query_y = EpisodeSampler(small(n_classes=8, n_per_class=6), 5, 1, 5, seed=0).draw(2)
    assert tasks.support_x.shape == (2, 5, 1, 28, 28)
    assert query_y.shape == (2, 25)


def test_the_cache_is_read_instead_of_rendering(folder, monkeypatch):
    source = small(cache=True)
    assert len(list(folder.iterdir())) == 1
    glyphs._glyphs.cache_clear()
    monkeypatch.setattr(glyphs, "render_class", None)
    again = small(cache=True)
    assert torch.equal(again.items, source.items)
    assert torch.equal(again.labels, source.labels)
    assert again.class_names == source.class_names


def test_without_cache_no_file_is_written(folder):
    small()
    assert not folder.exists()


def test_a_cache_of_other_fonts_is_made_again(folder, monkeypatch):
    source = small(cache=True)
    glyphs._glyphs.cache_clear()
    monkeypatch.setattr(glyphs, "version", lambda package: "0.0")
    again = small(cache=True)
    assert torch.equal(again.items, source.items)
    assert [(p / "key").read_text() for p in folder.iterdir()] == ["1 0.0 0.0"]


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "dev"}, "'train', 'val' or 'test', but got 'dev'"),
        ({"n_classes": 0}, "`n_classes` to be at least 1, but got 0"),
        ({"n_classes": 5000}, r"`n_classes` to be at most \d+, the characters of split 'train', but got 5000"),
        ({"n_per_class": 0}, "`n_per_class` to be at least 1, but got 0"),
        ({"seed": -1}, "`seed` to be at least 0, but got -1"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        load_glyphs(**{"split": "train", "cache": False, **arguments})

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("MIRRORSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def paint(colour, size=(12, 10), mode="RGB"):
    """A picture with a ramp from left to right, times the colour."""
    ramp = np.linspace(0.2, 1.0, size[0])[None, :, None] * np.array(colour) * np.ones((size[1], 1, 1))
    return Image.fromarray(ramp.astype(np.uint8)).convert(mode)


def encode(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def pack(path, n_per_class, splits, size=12, sizes=None, **others):
    """Write packed pictures: class c has the colour (20 c + 40, 100, 10 i)."""
    names = [f"{c:03d}.class" for c in range(len(splits))]
    labels = np.repeat(np.arange(len(splits)), n_per_class)
    files = [
        encode(paint((20 * c + 40, 100, 10 * (i % 20)), (size, size)), "WEBP", lossless=True)
        for i, c in enumerate(labels)
    ]
    arrays = {
        "data": np.frombuffer(b"".join(files), np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "labels": labels.astype(np.int16),
        "class_names": np.array(names),
        "class_split": np.array(splits),
        **({} if sizes is None else {"orig_size_wh": np.array([sizes] * len(labels), np.int16)}),
        **others,
    }
    np.savez(path, **arrays)
    return arrays


def class_folders(root, counts, suffix=".png", size=(12, 10)):
    """Write a folder of class folders."""
    for c, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            paint((20 * c + 40, 100, 10 * i), size).save(root / name / f"{i:02d}{suffix}")
    return root


@pytest.fixture
def draw():
    """Makes pictures, encoded pictures, packed ones and folders of them."""
    return SimpleNamespace(paint=paint, encode=encode, pack=pack, class_folders=class_folders)

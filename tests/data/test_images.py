import os
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from mirrorshot.data import decoding, images
from mirrorshot.data.images import read_folder
from mirrorshot.types import DataError, InvalidInputError


@pytest.fixture
def root(tmp_path, draw):
    return draw.class_folders(tmp_path / "pets", {"dog": 3, "cat": 2})


def huge_png():
    """A picture of 60,000 x 60,000 pixels in 60 bytes."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def test_class_folders_become_classes_in_order(root):
    source = read_folder(root, size=8)
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [0, 0, 1, 1, 1]
    assert source.items.shape == (5, 3, 8, 8)
    assert source.items.dtype == torch.uint8
    assert source.sizes.tolist() == [[12, 10]] * 5


def test_pictures_are_squashed_antialiased(root):
    source = read_folder(root, size=5)
    with Image.open(root / "dog" / "02.png") as image:
        theirs = np.asarray(image.resize((5, 5), Image.Resampling.BILINEAR))
    assert torch.equal(source.items[4], torch.from_numpy(theirs.copy()).permute(2, 0, 1))


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".webp", ".bmp", ".gif", ".tif", ".PNG"])
def test_common_formats_are_read(tmp_path, draw, suffix):
    source = read_folder(draw.class_folders(tmp_path / "set", {"a": 1, "b": 1}, suffix), size=10)
    expected = np.asarray(draw.paint((40, 100, 0)).resize((10, 10), Image.Resampling.BILINEAR))
    assert (source.items[0].permute(1, 2, 0).numpy().astype(int) - expected).__abs__().mean() < 6


def test_other_files_and_hidden_ones_are_ignored(root):
    (root / "notes.txt").write_text("text")
    (root / "cat" / "Thumbs.db").write_bytes(b"x")
    (root / "cat" / ".hidden.png").write_bytes(b"no picture")
    (root / "cat" / "deeper").mkdir()
    (root / ".git").mkdir()
    assert read_folder(root, size=4).counts.tolist() == [2, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_links_that_lead_back_are_ignored(root):
    (root / "loop").symlink_to(root)
    (root / "up").symlink_to(root.parent)
    (root / "itself").symlink_to(root / "itself")
    (root / "cat" / "back").symlink_to(root)
    (root / "cat" / "self.png").symlink_to(root / "cat" / "self.png")
    (root / "cat" / "dangling.png").symlink_to(root / "nowhere.png")
    (root / "wolf").symlink_to(root / "dog")  # this one is a class
    assert read_folder(root, size=4).class_names == ("cat", "dog", "wolf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_no_picture(root):
    os.mkfifo(root / "cat" / "pipe.png")
    assert read_folder(root, size=4).counts.tolist() == [2, 3]


def damage(path, how):
    whole = path.read_bytes()
    path.write_bytes({"cut": whole[: len(whole) // 2], "text": b"no picture", "empty": b"", "bomb": huge_png()}[how])


@pytest.mark.parametrize("how", ["cut", "text", "empty", "bomb"])
def test_a_damaged_picture_is_named(root, how):
    damage(root / "dog" / "01.png", how)
    with pytest.raises(DataError, match=r"1 are not: '.*dog.01\.png \(.*\)'; remove them or pass skip_corrupt"):
        read_folder(root, size=4)


def test_damaged_pictures_are_left_out_with_one_warning(root):
    damage(root / "dog" / "01.png", "cut")
    damage(root / "dog" / "02.png", "bomb")
    for _ in range(2):  # the second time from the cache
        with pytest.warns(UserWarning, match=r"^2 images cannot be read and are left out: .*01\.png.*02\.png") as found:
            source = read_folder(root, size=4, skip_corrupt=True)
        assert len(found) == 1
        assert source.counts.tolist() == [2, 1]
        assert len(source.sizes) == len(source.items) == 3
    with pytest.raises(DataError, match="2 are not"):
        read_folder(root, size=4)


def test_a_class_of_which_nothing_is_left_is_named(root):
    for i in range(2):
        damage(root / "cat" / f"0{i}.png", "text")
    with (
        pytest.warns(UserWarning, match="2 images cannot be read"),
        pytest.raises(DataError, match="readable image, but 1 have none: 'cat'"),
    ):
        read_folder(root, size=4, skip_corrupt=True)


def test_pillow_is_left_as_it_was(root):
    from PIL import ImageFile

    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    damage(root / "dog" / "01.png", "bomb")
    with pytest.raises(DataError):
        read_folder(root, size=4)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_the_second_reading_decodes_nothing(root, monkeypatch):
    source = read_folder(root, size=6)
    monkeypatch.setattr(images, "decode_all", None)
    again = read_folder(root, size=6)
    assert torch.equal(again.items, source.items)
    assert torch.equal(again.sizes, source.sizes)


@pytest.mark.parametrize("change", ["content", "added", "removed", "size"])
def test_a_change_of_the_files_is_noticed(root, draw, folder, change):
    source = read_folder(root, size=6)
    if change == "content":
        draw.paint((250, 250, 250)).save(root / "cat" / "00.png")
    elif change == "added":
        draw.paint((250, 250, 250)).save(root / "cat" / "aa.png")
    elif change == "removed":
        (root / "cat" / "00.png").unlink()
    again = read_folder(root, size=7 if change == "size" else 6)
    assert not torch.equal(again.items, source.items)
    assert len(list(folder.iterdir())) == (2 if change == "size" else 1)  # the old one is replaced


def test_without_cache_no_file_is_written(root, folder):
    read_folder(root, size=6, cache=False)
    assert not folder.exists()


def test_progress_reaches_the_end(root, monkeypatch):
    monkeypatch.setattr(decoding, "_BATCH", 2)
    calls = []
    read_folder(root, size=4, progress=lambda *call: calls.append(call))
    assert [call[0] for call in calls] == [0, 2, 4, 5]
    assert {call[1:] for call in calls} == {(5, "decoding pets")}


def test_folders_that_cannot_serve_are_named(root, tmp_path):
    with pytest.raises(DataError, match=r"class folders at .*nowhere, but it does not exist; check the path"):
        read_folder(tmp_path / "nowhere", size=4)
    with pytest.raises(DataError, match="but it is a file"):
        read_folder(root / "cat" / "00.png", size=4)
    with pytest.raises(DataError, match="it has none and 2 images; put the images of each class into a folder"):
        read_folder(root / "cat", size=4)
    (root / "bird").mkdir()
    (root / "fish").mkdir()
    (root / "fish" / "notes.txt").write_text("text")
    with pytest.raises(DataError, match=r"\.png, .*but 2 of 4 have none: 'bird', 'fish'; remove them or add images"):
        read_folder(root, size=4)


def test_too_many_pictures_for_the_memory_are_refused(root, monkeypatch):
    monkeypatch.setattr(decoding, "MAX_BYTES", 1000)
    monkeypatch.setattr(images, "decode_all", None)
    with pytest.raises(DataError, match=r"at most 1000 bytes when decoded, but 5 images of 300 bytes take 1500; lower"):
        read_folder(root, size=10)


@pytest.mark.parametrize("arguments", [{"size": 0}, {"size": 4, "channels": 2}])
def test_bad_arguments_are_named(root, arguments):
    with pytest.raises(
        InvalidInputError, match=r"`size` to be at least 1, but got 0|`channels` to be 1 or 3, but got 2"
    ):
        read_folder(root, **arguments)

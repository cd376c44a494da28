import threading

import numpy as np
import pytest
from PIL import Image

from mirrorshot.data import decoding
from mirrorshot.data.decoding import decode, decode_all, why_damaged
from mirrorshot.files.imaging import ImageError, reading


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_every_kind_of_pixels_becomes_colour_or_grey(draw, mode):
    grey = np.full((6, 6), 200, np.uint8)
    if mode == "I;16":
        image = Image.fromarray(grey.astype(np.uint16) * 257)
    else:
        image = Image.fromarray(grey).convert(mode, dither=Image.Dither.NONE)
    file = draw.encode(image, "TIFF" if mode == "CMYK" else "PNG")
    for channels in (1, 3):
        pixels, original = decode(file, size=6, channels=channels)
        assert pixels.shape == (channels, 6, 6)
        assert original == (6, 6)
        assert (pixels == (255 if mode == "1" else 200)).all()


def test_only_the_first_frame_of_an_animation_counts(draw):
    frames = [draw.paint(colour) for colour in ((250, 0, 0), (0, 0, 250))]
    file = draw.encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    pixels, _ = decode(file, size=4, channels=3)
    assert pixels[0].mean() > 100 > pixels[2].mean()


def test_a_bomb_is_not_decoded(draw, monkeypatch):
    monkeypatch.setattr(decoding, "MAX_PIXELS", 100)
    monkeypatch.setattr(reading, "_eight_bits", None)
    with pytest.raises(ValueError, match="12 x 10 are more than 100 pixels"):
        decode(draw.encode(draw.paint((1, 2, 3))), size=4, channels=3)


def test_a_reader_may_take_fewer_pixels(draw):
    content = draw.encode(draw.paint((1, 2, 3)))
    with pytest.raises(ImageError, match=r"^12 x 10 are more than 119 pixels$"):
        reading.read_image(content, max_pixels=119)
    assert reading.read_image(content, max_pixels=120).size == (12, 10)


def test_a_file_that_is_too_large_is_not_opened(draw, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "MAX_FILE_BYTES", 20)
    (tmp_path / "a.png").write_bytes(draw.encode(draw.paint((1, 2, 3))))
    assert why_damaged(tmp_path / "a.png") == "its file has more than 20 bytes"


@pytest.mark.parametrize("n_bytes", range(0, 120, 7))
def test_a_picture_that_ends_anywhere_is_damaged_and_nothing_worse(draw, n_bytes):
    whole = draw.encode(Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)))
    made = decode_all([whole[:n_bytes], whole], 4, 3, progress=None, label="")
    assert made["sizes"].tolist() == [[0, 0], [20, 20]]
    assert not made["pictures"][0].any()
    assert why_damaged(whole[:n_bytes])


def test_pictures_with_changed_bytes_never_raise(draw):
    rng = np.random.default_rng(0)
    files = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"):
        whole = np.frombuffer(draw.encode(draw.paint((200, 100, 50)), kind), np.uint8)
        for _ in range(40):
            changed = whole.copy()
            changed[rng.integers(0, len(whole), 5)] = rng.integers(0, 256, 5)
            files.append(changed.tobytes())
    made = decode_all(files, 4, 3, progress=None, label="")
    assert made["pictures"].shape == (240, 3, 4, 4)


def test_no_thread_is_left(draw):
    before = set(threading.enumerate())  # of other tests; some may end meanwhile
    decode_all([draw.encode(draw.paint((1, 2, 3)))] * 9, 4, 3, progress=None, label="")
    assert set(threading.enumerate()) <= before

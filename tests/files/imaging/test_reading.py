"""Stripped files have the pixels that Pillow finds in whole ones."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from mirrorshot.files.imaging import ImageError, reading, stripping
from mirrorshot.files.imaging.reading import open_image, read_image
from mirrorshot.files.imaging.stripping import strip

PLENTY = 10**6


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(shape=(20, 31, 3)):
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8))


FILES = {
    "png": ("RGB", "PNG", {"pnginfo": None}),
    "png grey": ("L", "PNG", {}),
    "png palette": ("P", "PNG", {}),
    "png bits": ("1", "PNG", {}),
    "jpeg": ("RGB", "JPEG", {"comment": "hello", "icc_profile": b"p" * 100_000, "xmp": b"x" * 500}),
    "jpeg progressive": ("RGB", "JPEG", {"progressive": True, "restart_marker_rows": 1}),
    "jpeg grey": ("L", "JPEG", {"restart_marker_blocks": 1}),
    "jpeg cmyk": ("CMYK", "JPEG", {}),
    "webp": ("RGB", "WEBP", {"icc_profile": b"p" * 101, "xmp": b"x"}),
    "webp lossless": ("RGB", "WEBP", {"lossless": True}),
    "gif": ("P", "GIF", {"comment": b"hello"}),
    "bmp": ("RGB", "BMP", {}),
    "tiff": ("RGB", "TIFF", {"description": "hello", "icc_profile": b"p" * 101}),
    "tiff lzw": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    "tiff deflate": ("L", "TIFF", {"compression": "tiff_adobe_deflate", "big_tiff": True}),
    "tiff jpeg": ("RGB", "TIFF", {"compression": "jpeg"}),
    "tiff fax": ("1", "TIFF", {"compression": "group4"}),
    "tiff cmyk": ("CMYK", "TIFF", {"compression": "packbits"}),
    "tiff lab": ("LAB", "TIFF", {}),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_the_whole_file(name):
    mode, form, options = FILES[name]
    content = encoded(noise().convert(mode), form, **options)
    with Image.open(io.BytesIO(content)) as whole:
        expected = whole.convert("L" if whole.mode in ("1", "L") else "RGB")
    got = read_image(content, PLENTY)
    assert got.mode == expected.mode
    assert np.array_equal(np.asarray(got), np.asarray(expected))
    assert got.info == {}


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_as_its_camera_says(form, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    options = {"lossless": True} if form == "WEBP" else {}
    content = encoded(noise(), form, exif=exif, **options)
    with Image.open(io.BytesIO(content)) as whole:
        expected = ImageOps.exif_transpose(whole)
    assert np.array_equal(np.asarray(read_image(content, PLENTY)), np.asarray(expected))


def test_of_an_animation_the_first_frame_counts():
    frames = [Image.new("RGB", (9, 7), colour) for colour in ("red", "blue", "green")]
    for form in ("GIF", "PNG", "WEBP", "TIFF"):
        options = {"lossless": True} if form == "WEBP" else {}
        content = encoded(frames[0], form, save_all=True, append_images=frames[1:], **options)
        assert read_image(content, PLENTY).getpixel((3, 3)) == (255, 0, 0), form
        assert len(strip(content).content) <= len(content)


def test_sixteen_bits_keep_their_brightness():
    values = np.array([[0, 255, 256, 32_768, 65_535]], np.uint16)
    for form in ("PNG", "TIFF"):
        assert np.asarray(read_image(encoded(Image.fromarray(values), form), PLENTY)).tolist() == [[0, 0, 1, 128, 255]]


def test_numbers_beyond_sixteen_bits_are_refused():
    for value in (2**16, -1):
        content = encoded(Image.fromarray(np.full((2, 2), value, np.int32)), "TIFF")
        with pytest.raises(ImageError, match=f"from {value} to {value}, not from 0 to 65535"):
            read_image(content, PLENTY)


@pytest.mark.parametrize(("mode", "colour", "transparency"), [("L", 7, 7), ("RGB", (1, 2, 3), (1, 2, 3)), ("P", 0, 0)])
def test_a_transparent_colour_becomes_white(mode, colour, transparency):
    content = encoded(Image.new(mode, (4, 3), colour), "PNG", transparency=transparency)
    assert read_image(content, PLENTY).getpixel((1, 1)) == (255, 255, 255)


def test_the_only_metadata_left_is_a_sound_transparent_colour():
    content = encoded(Image.new("RGB", (4, 3)), "PNG", transparency=(0, 0, 0), dpi=(70, 70), icc_profile=b"p")
    assert open_image(content, PLENTY).image.info == {"transparency": (0, 0, 0)}


def test_files_of_several_images_end_with_the_first():
    content = encoded(noise(), "MPO", save_all=True, append_images=[noise()])
    assert len(strip(content).content) < 0.6 * len(content)


def test_passes_over_many_pixels_are_refused(monkeypatch):
    content = encoded(noise(), "JPEG", progressive=True)
    passes = strip(content).passes
    assert passes > 5
    monkeypatch.setattr(reading, "MAX_WORK", 20 * 31 * passes - 1)
    with pytest.raises(ImageError, match=rf"^{passes} passes over 31 x 20 pixels take too long$"):
        read_image(content, PLENTY)


def test_scans_are_counted_and_what_looks_like_one_is_not():
    content = encoded(noise(), "JPEG", comment=b"\xff\xda" * 1000)
    assert strip(content).passes == 1
    soft = encoded(noise(), "JPEG", progressive=True)
    many = soft[:-2] + soft[soft.rfind(b"\xff\xda") : -2] * stripping.MAX_SCANS + b"\xff\xd9"
    with pytest.raises(ImageError, match=rf"^its file has more than {stripping.MAX_SCANS} scans$"):
        strip(many)

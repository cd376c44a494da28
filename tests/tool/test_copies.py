"""Copies are found by content, and different images are not taken for copies."""

import io

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from mirrorshot.encoders import make_encoder
from mirrorshot.tool import Items, Model, encode_items
from mirrorshot.tool.copies import Content, copies_in_model, copies_of_examples, find_copies, without
from mirrorshot.tool.encoding import thumbnail

N = 100


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def as_jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(io.BytesIO(file.getvalue())).convert("L")


def noisy(image):
    pixels = np.asarray(image) + np.random.default_rng(0).normal(0, 4, (64, 64))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


SAVED_AGAIN = {
    "jpeg": as_jpeg,
    "smaller": lambda image: image.resize((40, 40), Image.Resampling.BILINEAR),
    "darker": lambda image: image.point(lambda level: int(0.9 * level)),
    "noisy": noisy,
}


@pytest.fixture(scope="module")
def digits():
    """1,100 handwritten digits, all different, as images of 64 x 64 pixels."""
    pixels = (255 - 15.9 * load_digits().images[: N + 1000]).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(image).resize((64, 64), Image.Resampling.BICUBIC) for image in pixels]


def encoded(images, name="glyphs", labels=None):
    items = Items("picture", [f"{i}.png" for i in range(len(images))], [png(image) for image in images], labels)
    return encode_items(make_encoder(name), items, thumbnails=True)


@pytest.fixture(scope="module", params=["glyphs", "pixels"])
def both(request, digits):
    """The examples (100 digits) and 1,000 other digits, encoded."""
    return request.param, encoded(digits[:N], request.param), encoded(digits[N:], request.param)


def content(found):
    return Content(found.embeddings, found.thumbnails)


def test_no_different_image_is_called_a_copy(both):
    _, examples, others = both
    assert find_copies(content(others), content(examples)) == []
    assert find_copies(content(others)) == []


def test_planted_copies_are_all_found(both, digits):
    name, examples, others = both
    planted = [*digits[N : 2 * N], *digits[:N]]
    found = find_copies(content(encoded(planted, name)), content(examples))
    assert [(copy.row, copy.other, copy.is_exact) for copy in found] == [(N + i, i, True) for i in range(N)]
    assert len(find_copies(content(encoded(digits[:N], name)), content(others))) == 0


@pytest.mark.parametrize("how", SAVED_AGAIN)
def test_images_that_were_saved_again_are_found(both, digits, how):
    name, examples, _ = both
    found = find_copies(content(encoded([SAVED_AGAIN[how](image) for image in digits[:N]], name)), content(examples))
    assert [(copy.row, copy.other) for copy in found] == [(i, i) for i in range(N)]


def test_a_fixed_camera_makes_no_copies():
    rng = np.random.default_rng(0)
    room = rng.integers(0, 255, (48, 48, 3))
    frames = []
    for place in rng.permutation(1600)[:200]:
        frame = room.copy()
        y, x = divmod(int(place), 40)
        frame[y : y + 4, x : x + 4] = 255 - frame[y : y + 4, x : x + 4]  # something small is elsewhere each time
        frames.append(thumbnail(Image.fromarray(frame.astype(np.uint8))))
    images = np.stack(frames)
    assert find_copies(Content(rng.normal(size=(200, 8)), images)) == []


def test_rows_of_a_table_are_compared_exactly():
    X = np.random.default_rng(0).normal(size=(1000, 4)).round(2)
    distinct = np.unique(X, axis=0)
    assert find_copies(Content(distinct, None)) == []
    assert [copy.other for copy in find_copies(Content(distinct[[5, 7]], None), Content(distinct, None))] == [5, 7]
    zeros = find_copies(Content(np.zeros((2, 3)), None))
    assert [(copy.row, copy.other) for copy in zeros] == [(1, 0)]


def test_a_model_knows_its_examples_without_small_images(digits):
    labels = ["a", "b"] * (N // 2)
    items = Items("picture", [str(i) for i in range(N)], [png(image) for image in digits[:N]], labels)
    model = Model.fit(items, make_encoder("glyphs"), thumbnails=False)
    assert copies_in_model(model) == []
    again = encoded(digits[N - 3 : N + 3])
    found = copies_of_examples(model, again)
    assert [copy.other for copy in found] == [N - 3, N - 2, N - 1]
    assert len(without(again, [copy.row for copy in found]).items.names) == 3


def test_examples_from_a_place_on_are_compared_with_all_earlier_ones():
    X = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0], [5.0, 5.0], [5.0, 5.0]])
    model = Model.fit(Items("embedding", list("abcdef"), X, list("xyxyyy")))
    assert [(copy.row, copy.other) for copy in copies_in_model(model)] == [(2, 0), (4, 3), (5, 3)]
    assert [(copy.row, copy.other) for copy in copies_in_model(model, 4)] == [(4, 3), (5, 3)]


def test_rows_far_from_zero_are_no_copies():
    times = 1.7e9 + np.array([[0.0, 60.0], [3600.0, 3660.0], [7200.0, 7300.0], [3600.0, 3660.0]])
    assert [(copy.row, copy.other) for copy in find_copies(Content(times, None))] == [(3, 1)]


def test_texts_without_a_known_word_are_no_copies_of_each_other():
    X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    assert find_copies(Content(X, None, are_texts=True)) == []
    assert [copy.row for copy in find_copies(Content(X, None))] == [2]

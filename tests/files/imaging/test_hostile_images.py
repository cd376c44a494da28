import contextlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging.reading import make_preview
from mirrorshot.files.imaging.workers import DecodeWorkers

_FILE = Path(__file__).with_name("hostile_images.py")
_FAILURES = ("its decoder crashed", "its decoder failed", "seconds to decode", "too much memory")


@pytest.fixture(scope="module")
def hostile(load_file):
    return load_file(_FILE)


def outcomes(files):
    """Image or error of each file, from one worker."""
    with contextlib.closing(DecodeWorkers(1, side=16)) as workers:
        for name, content in files:
            try:
                yield name, workers.decode(content)
            except ImageError as error:
                yield name, str(error)


def check(name, outcome):
    if isinstance(outcome, str):
        assert 5 < len(outcome) < 250, name
        assert "BytesIO" not in outcome, name
        assert not any(failure in outcome for failure in _FAILURES), (name, outcome)
    else:
        assert outcome.image.mode in ("L", "RGB"), name
        assert outcome.preview.startswith(b"\xff\xd8"), name


def test_every_hostile_image_is_decoded_or_refused_in_words(hostile):
    n_decoded = n_refused = 0
    for name, outcome in outcomes(hostile.hostile_images()):
        check(name, outcome)
        n_refused += isinstance(outcome, str)
        n_decoded += not isinstance(outcome, str)
    assert n_decoded > 200
    assert n_refused > 200


def test_damaged_images_are_decoded_or_refused_in_words(hostile):
    for name, outcome in outcomes(hostile.damaged_images(np.random.default_rng(0), 300)):
        check(name, outcome)


@pytest.mark.slow
def test_many_damaged_images_are_decoded_or_refused_in_words(hostile):
    for name, outcome in outcomes(hostile.damaged_images(np.random.default_rng(1), 20_000)):
        check(name, outcome)


@pytest.mark.parametrize("key", ["comment", "transparency", "exif", "icc_profile", "xmp"])
def test_a_preview_carries_no_metadata(key):
    image = Image.new("RGB", (4, 4))
    image.info = {key: "\u00e9" * 40_000}
    assert len(make_preview(image, 16)) < 2000

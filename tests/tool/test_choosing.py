import io

import numpy as np
import pytest
from PIL import Image

from mirrorshot.encoders import candidates
from mirrorshot.encoders.images import NETWORKS
from mirrorshot.tool import Items, decide


def as_items(images, labels):
    files = []
    for image in images:
        stream = io.BytesIO()
        image.save(stream, "PNG")
        files.append(stream.getvalue())
    return Items("picture", [str(i) for i in range(len(files))], files, labels)


def digits(how, n_shot=5, n_way=5):
    """Handwritten digits of scikit-learn on paper of some kind."""
    from sklearn.datasets import load_digits

    data, rng = load_digits(), np.random.default_rng(0)
    rows = np.concatenate([np.flatnonzero(data.target == c)[:n_shot] for c in range(n_way)])
    images = []
    for i in rows:
        small = Image.fromarray((data.images[i] * 15).astype(np.uint8))
        share = np.pad(np.asarray(small.resize((48, 48), Image.Resampling.BICUBIC), float) / 255, 8)[..., None]
        paper, ink = {
            "clean": ((1, 1, 1), (0, 0, 0)), "inverted": ((0, 0, 0), (1, 1, 1)),
            "tinted": ((0.9, 0.8, 0.6), (0.1, 0.1, 0.1)),
            "blue ink": ((1, 1, 1), (0.1, 0.2, 0.6)), "uneven light": ((0.9, 0.85, 0.7), (0.15, 0.2, 0.5)),
        }[how]  # fmt: skip
        light = np.linspace(1, 0.4, 64)[:, None] if how == "uneven light" else 1.0
        colours = light * ((1 - share) * np.array(paper) + share * np.array(ink)) + rng.normal(0, 0.02, (64, 64, 3))
        images.append(Image.fromarray((255 * np.clip(colours, 0, 1)).astype(np.uint8)))
    return as_items(images, [str(label) for label in data.target[rows]])


@pytest.mark.parametrize("n_shot", [1, 5])
@pytest.mark.parametrize("how", ["clean", "inverted", "tinted", "blue ink", "uneven light"])
def test_characters_go_to_the_character_network(how, n_shot):
    choice = decide(digits(how, n_shot))
    assert choice.name == "glyphs"
    assert ("leave-one-out" in choice.reason) == (n_shot > 1)


@pytest.mark.parametrize("n_shot", [1, 4])
def test_photographs_go_to_the_image_network_if_there_is_one(n_shot):
    from sklearn.datasets import load_sample_images

    images, labels = [], []
    for label, photograph in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for i in range(n_shot):
            images.append(Image.fromarray(photograph[60 * i : 60 * i + 200, 80 * i : 80 * i + 260]))
            labels.append(label)
    assert decide(as_items(images, labels)).name in (*NETWORKS, "pixels")
    assert decide(as_items(images, labels)).name == candidates("picture")[0]


def test_texts_are_compared_by_their_labels():
    sport = ["the team won the match", "a goal in the last minute", "the coach praised the players"]
    money = ["shares fell on the market", "the bank raised its rates", "profits of the company rose"]
    items = Items("text", list("abcdef"), sport + money, ["sport"] * 3 + ["money"] * 3)
    choice = decide(items)
    assert choice.name in candidates("text")
    assert ("leave-one-out log-likelihood" in choice.reason) == (len(candidates("text")) > 1)
    assert decide(items._replace(labels=None)).name == candidates("text")[0]


def test_damaged_images_and_empty_texts_do_not_decide():
    items = digits("clean", 2)
    damaged = items._replace(content=[b"damaged", *items.content[1:]])
    assert decide(damaged).name == "glyphs"
    assert decide(Items("text", ["a", "b", "c"], ["", "hello", "good bye"], None)).name in candidates("text")

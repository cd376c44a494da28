import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.prior import Prior
from mirrorshot.data.glyphs import load_glyphs
from mirrorshot.data.shifts import shift_images
from mirrorshot.encoders import EncoderError, make_encoder
from mirrorshot.encoders import glyphs as module
from mirrorshot.encoders.glyphs import PRIOR_DIGEST, PRIOR_FILE
from mirrorshot.types import InvalidInputError

SHIFTS = ((0.8, 0, 0, 0, 0, 0), (0, 0.5, 0, 0, 0, 0.3), (0, 0, 0, 0.6, 0.5, 0))


def held_out(strengths, n=40):
    """Embeddings of characters that neither encoder nor prior was trained on, shifted."""
    source = load_glyphs("val")
    labels = source.labels.numpy()
    rows = np.flatnonzero((labels % 5 == 0) & (labels < 5 * n))
    images = source.items[rows].float()[None] / 255
    shifted = shift_images(images, torch.tensor([strengths]), torch.Generator().manual_seed(1))[0, :, 0]
    pictures = [Image.fromarray(image) for image in (255 * shifted).round().byte().numpy()]
    return make_encoder("glyphs").encode(pictures).astype(np.float64), labels[rows]


def nll(X, y, prior, n_shot, n_tasks=30):
    rng, found = np.random.default_rng(0), []
    for _ in range(n_tasks):
        drawn = np.array(
            [rng.permutation(np.flatnonzero(y == c))[: n_shot + 5] for c in rng.permutation(np.unique(y))[:5]]
        )
        support, query = drawn[:, :n_shot].ravel(), drawn[:, n_shot:].ravel()
        few = FewShotClassifier(prior=prior).fit(X[support], y[support])
        prob = few.predict_proba(X[query])
        found.append(-np.log(prob[np.arange(len(query)), np.searchsorted(few.classes_, y[query])]).mean())
    return float(np.mean(found))


@pytest.mark.parametrize("n_shot", [1, 5])
def test_on_characters_that_were_held_out_the_prior_is_better_than_the_broad_rules(n_shot):
    sets = [held_out(strengths) for strengths in SHIFTS]
    with_prior, without = (
        np.mean([nll(X, y, prior, n_shot) for X, y in sets]) for prior in (make_encoder("glyphs").prior, None)
    )
    assert with_prior < without


def test_the_file_is_small_and_the_one_that_was_made():
    content = PRIOR_FILE.read_bytes()
    assert len(content) < 300_000
    assert hashlib.sha256(content).hexdigest()[:16] == PRIOR_DIGEST


def test_another_file_is_refused(tmp_path, monkeypatch):
    Prior.load(PRIOR_FILE).save(tmp_path / "same.prior")
    other = Prior.load(PRIOR_FILE)
    other.__dict__["outputscale"] = 10.0
    other.save(tmp_path / "other.prior")
    monkeypatch.setattr(module, "PRIOR_FILE", tmp_path / "other.prior")
    with pytest.raises(EncoderError, match="Install mirrorshot again"):
        _ = make_encoder("glyphs").prior


def test_embeddings_of_another_encoder_are_refused():
    with pytest.raises(InvalidInputError, match="'glyphs', but got 576"):
        FewShotClassifier(prior=make_encoder("glyphs").prior).fit(np.eye(3, 576), [0, 1, 2])

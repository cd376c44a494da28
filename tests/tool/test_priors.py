import dataclasses

import numpy as np
import pytest

from mirrorshot.encoders import make_encoder
from mirrorshot.tool import Model, encode_items, read_labelled
from mirrorshot.tool.priors import is_prior_of, with_prior


@pytest.fixture(name="model")
def _model(pictures):
    return Model.fit(read_labelled(pictures / "support"), make_encoder("glyphs"))


def test_models_of_characters_have_the_packaged_prior_and_keep_it(model, tmp_path):
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert is_prior_of(make_encoder("glyphs"), again.learned.settings.prior)
    assert again.learned.fitted.map.mean is not None


def test_another_prior_or_none_or_another_kernel_is_kept():
    encoder = make_encoder("glyphs")
    other = dataclasses.replace(encoder.prior, outputscale=10.0)
    assert with_prior(encoder, {"prior": other})["prior"] is other
    assert with_prior(encoder, {"prior": None}) == {"prior": None}
    assert "prior" not in with_prior(encoder, {"kernel": "matern"})
    assert with_prior(make_encoder("pixels"), {"centre": "none"}) == {"centre": "none"}
    assert not is_prior_of(encoder, other)
    assert not is_prior_of(make_encoder("pixels"), encoder.prior)


def test_a_model_without_the_prior_stays_without_it(pictures, tmp_path):
    """Such as one of an earlier version: edits go on with the settings that it was fitted with."""
    items, encoder = read_labelled(pictures / "support"), make_encoder("glyphs")
    Model.fit(items, encoder, parameters={"prior": None}).save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    query = encode_items(encoder, read_labelled(pictures / "query"))
    model.add(query, query.items.labels)
    assert model.learned.settings.prior is None
    assert model.learned.fitted.map.mean is None


def test_the_prior_is_of_the_weights_of_the_encoder():
    encoder = make_encoder("glyphs")
    assert encoder.prior.encoder == encoder.name
    assert encoder.settings["digest"] in encoder.prior.learned_on
    assert np.isfinite(encoder.prior.map.mean).all()

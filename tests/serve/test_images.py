import dataclasses

import numpy as np
import pytest
from PIL import Image

from mirrorshot.encoders import make_encoder
from mirrorshot.serve.images import Encoders, examples_of
from mirrorshot.serve.settings import Limits
from mirrorshot.tool import Model, read_labelled
from mirrorshot.types import DataError


def test_photographs_go_to_the_image_network_where_it_is_installed():
    from mirrorshot.encoders import candidates
    from mirrorshot.encoders.images import installed_networks

    if not installed_networks():
        pytest.skip("no network for images is installed: pip install 'mirrorshot[images]'")
    encoders = Encoders(tuple(candidates("picture")), download=False)
    photograph = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    assert encoders.decide(photograph).startswith("efficientnet")
    character = Image.new("L", (64, 64), "white")
    character.paste(0, (28, 10, 34, 54))
    assert encoders.decide(character).startswith("glyphs")


def test_new_users_begin_with_models_that_have_the_prior_of_their_encoder_or_none(pictures, tmp_path):
    items, encoder = read_labelled(pictures / "support"), make_encoder("glyphs")
    model, without = Model.fit(items, encoder), Model.fit(items, encoder, parameters={"prior": None})
    model.save(tmp_path / "model")
    for fitted in (model, Model.load(tmp_path / "model")):
        assert "prior" not in examples_of(fitted, Limits())[1]
    assert examples_of(without, Limits())[1]["prior"] is None
    other = dataclasses.replace(encoder.prior, outputscale=10.0)
    with pytest.raises(DataError, match="prior of its encoder or none"):
        examples_of(Model.fit(items, encoder, parameters={"prior": other}), Limits())

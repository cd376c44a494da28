import numpy as np
import pytest
from PIL import Image

from mirrorshot.encoders.glyphs import Glyphs
from mirrorshot.serve.images import Encoders, identity


def test_images_of_version_0_1_are_still_encoded_as_they_were():
    encoders, old = Encoders(download=False), Glyphs(even_light=False)
    assert identity(old) not in encoders.identities.values()
    page = Image.new("L", (40, 40), 250)
    page.paste(20, (10, 5, 20, 35))
    assert np.array_equal(encoders.encode(identity(old), page), old.encode([page])[0])


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

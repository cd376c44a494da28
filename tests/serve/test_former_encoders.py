import numpy as np
from PIL import Image

from mirrorshot.encoders.glyphs import Glyphs
from mirrorshot.serve.images import Encoders, identity


def test_images_of_version_0_1_are_still_encoded_as_they_were():
    encoders, old = Encoders(download=False), Glyphs(even_light=False)
    assert identity(old) not in encoders.identities.values()
    page = Image.new("L", (40, 40), 250)
    page.paste(20, (10, 5, 20, 35))
    assert np.array_equal(encoders.encode(identity(old), page), old.encode([page])[0])

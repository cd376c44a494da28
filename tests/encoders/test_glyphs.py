import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from mirrorshot.encoders import as_character, make_encoder, restore_encoder
from mirrorshot.encoders.base import EncoderError, unit
from mirrorshot.encoders.glyphs import GLYPHS_FILE, GLYPHS_KIND, GLYPHS_VERSION
from mirrorshot.files.sealed import load_sealed
from mirrorshot.networks.backbones import make_backbone


def characters(n=30):
    """Handwritten digits, dark on light."""
    from sklearn.datasets import load_digits

    return [Image.fromarray((255 - 15 * image).astype(np.uint8)).resize((40, 48)) for image in load_digits().images[:n]]


def features_of_torch(images):
    """The encoder as it was written first, in torch."""
    saved = load_sealed(GLYPHS_FILE, kind=GLYPHS_KIND, version=GLYPHS_VERSION)
    tensors = {name: torch.as_tensor(np.array(array)) for name, array in saved.tensors.items()}
    network = make_backbone("conv4s", generator=torch.Generator()).eval()
    network.load_state_dict({n[len("network.") :]: t for n, t in tensors.items() if n.startswith("network.")})
    x = torch.from_numpy(np.stack([as_character(image) for image in images]))[:, None].float() / 255
    with torch.no_grad():
        features = network(x[None])[0] - tensors["centre.network"]
    blurred = F.normalize(F.avg_pool2d(F.avg_pool2d(x, 5, 1, 2), 5, 2, 2).flatten(1)) - tensors["centre.blurred"]
    return torch.cat([F.normalize(features), 0.5 * F.normalize(blurred)], 1).numpy()


def test_features_are_those_of_the_network_in_torch():
    images = characters()
    assert np.abs(make_encoder("glyphs").encode(images) - features_of_torch(images)).max() < 1e-5


def test_a_restored_encoder_is_the_same_and_one_of_other_weights_is_refused():
    new = make_encoder("glyphs")
    again = restore_encoder("glyphs", new.settings, {})
    images = characters(5)
    assert np.array_equal(again.encode(images), new.encode(images))
    with pytest.raises(EncoderError, match="Fit the model again"):
        restore_encoder("glyphs", {"digest": "0" * 16}, {})


def shadowed(image):
    """The image in light that falls from the left."""
    light = np.linspace(1.0, 0.4, image.width)
    return Image.fromarray(np.round(np.asarray(image) * light).astype(np.uint8))


def test_a_character_in_uneven_light_is_the_character():
    for image in characters(10):
        even = as_character(image).astype(int)
        assert np.abs(as_character(shadowed(image)).astype(int) - even).mean() < 12
        assert np.array_equal(even, as_character(image, even_light=False))


def test_colours_of_paper_and_ink_do_not_matter():
    encoder = make_encoder("glyphs")
    images = characters(10)
    tinted = [tint(image, paper=(240, 220, 170), ink=(30, 40, 150)) for image in images]
    cosine = (unit(encoder.encode(images)) * unit(encoder.encode(tinted))).sum(1)
    assert cosine.min() > 0.97


def tint(image, paper, ink):
    share = np.asarray(image, dtype=np.float32)[..., None] / 255
    return Image.fromarray(np.round(share * np.array(paper) + (1 - share) * np.array(ink)).astype(np.uint8))

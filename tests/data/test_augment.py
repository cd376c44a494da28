import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.utils._python_dispatch import TorchDispatchMode

from mirrorshot.data import ClassSource
from mirrorshot.data.augment import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Preprocess,
    crop_boxes,
    crop_resize,
    enhance,
    evaluation_crop,
    evaluation_pictures,
)
from mirrorshot.data.shifts import distort
from mirrorshot.types import InvalidInputError

PLAIN = ((0.0,) * 3, (1.0,) * 3)  # no normalisation


def photographs(n=3, height=40, width=60, channels=3, seed=0):
    """Smooth pictures with some noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (n, 6, 8, 3), dtype=np.uint8)
    smooth = [np.asarray(Image.fromarray(p).resize((width, height), Image.Resampling.BICUBIC)) for p in coarse]
    noisy = np.stack(smooth).astype(int) + rng.integers(-20, 21, (n, height, width, 3))
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)).permute(0, 3, 1, 2)[:, :channels].contiguous()


def as_pillow(picture):
    return Image.fromarray(picture.permute(1, 2, 0).numpy())


def as_tensor(image):
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def torchvision_box(size, areas, ratios, left_top, smallest=0.08):
    """RandomResizedCrop.get_params of torchvision 0.20, fed with uniform numbers."""
    width, height = size
    for area, ratio in zip(areas, ratios, strict=True):
        target_area = width * height * (smallest + (1 - smallest) * area)
        aspect_ratio = math.exp(math.log(3 / 4) + ratio * (math.log(4 / 3) - math.log(3 / 4)))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            j, i = int(left_top[0] * (width - w + 1)), int(left_top[1] * (height - h + 1))
            return j, i, j + w, i + h
    in_ratio = width / height
    if in_ratio < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif in_ratio > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    i, j = (height - h) // 2, (width - w) // 2
    return j, i, j + w, i + h


@pytest.mark.parametrize("size", [(500, 375), (84, 84), (120, 400), (900, 60), (7, 300)])
@pytest.mark.parametrize("smallest", [0.08, 0.3])
def test_boxes_are_those_of_torchvision(size, smallest):
    n = 3000
    draws = uniform(n, 22)
    boxes = crop_boxes(torch.tensor([size] * n).float(), draws[:, :10], draws[:, 10:20], draws[:, 20:], smallest)
    numbers = draws.double().numpy()
    expected = [torchvision_box(size, d[:10], d[10:20], d[20:], smallest) for d in numbers]
    same = (boxes == torch.tensor(expected)).all(1)
    assert same.double().mean() > 0.998  # numbers at the edge of rounding differ in single precision
    assert (boxes - torch.tensor(expected)).abs().median() == 0


def test_pictures_are_cropped_to_no_less_than_is_asked_for():
    pictures = photographs(height=60, width=60)
    draws = uniform(3, Preprocess(20, *PLAIN, augment=True).n_draws)
    draws[:, -4:-1], draws[:, -1] = 0.5, 0.9  # colours stay, and nothing is mirrored
    whole = crop_resize(pictures, torch.tensor([[0.0, 0.0, 60.0, 60.0]]), 20) / 255
    part, all_of_it = (Preprocess(20, *PLAIN, augment=True, crop_area=a)(pictures, draws=draws) for a in (0.08, 1.0))
    torch.testing.assert_close(all_of_it, whole)
    assert not torch.allclose(part, whole, atol=0.05)


def test_boxes_stay_within_the_picture_whatever_the_numbers():
    sizes = torch.tensor([[1.0, 1.0], [1.0, 9.0], [500.0, 333.0], [3000.0, 20.0]])
    for value in (0.0, 0.5, 1 - 2**-24):
        filled = torch.full((4, 10), value)
        boxes = crop_boxes(sizes, filled, filled, filled[:, :2])
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= sizes).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()


@pytest.mark.parametrize("box", [(0, 0, 60, 40), (5, 3, 50, 33), (10.25, 4.5, 17.75, 30.125), (30, 20, 34, 23)])
@pytest.mark.parametrize("size", [8, 21, 84])
def test_crop_and_resize_are_those_of_pillow(box, size):
    pictures = photographs()
    resized = crop_resize(pictures, torch.tensor([box], dtype=torch.float32), size)
    for picture, mine in zip(pictures, resized, strict=True):
        theirs = as_tensor(as_pillow(picture).resize((size, size), Image.Resampling.BILINEAR, box=box))
        assert (mine - theirs).abs().max() < 1.2  # Pillow rounds after each of two passes


@pytest.mark.parametrize("factors", [(1.4, 1.0, 1.0), (0.6, 1.0, 1.0), (1.0, 1.4, 1.0), (1.0, 0.6, 1.0), (1, 1, 1.4)])
def test_each_enhancement_is_that_of_pillow(factors):
    pictures = photographs(height=48, width=48)
    mine = enhance(pictures.float(), torch.tensor([factors] * 3, dtype=torch.float32))
    for picture, changed in zip(pictures, mine, strict=True):
        assert (changed - enhanced_by_pillow(picture, factors)).abs().max() < 2


def test_all_enhancements_together_are_those_of_pillow():
    pictures = photographs(8, 48, 48)
    factors = 0.6 + 0.8 * uniform(8, 3)
    mine = enhance(pictures.float(), factors)
    for picture, changed, f in zip(pictures, mine, factors.tolist(), strict=True):
        difference = changed - enhanced_by_pillow(picture, f)
        assert difference.abs().max() < 4
        assert -0.2 < difference.mean() < 2  # Pillow cuts off decimals, half a level in each of three steps


def enhanced_by_pillow(picture, factors):
    image = as_pillow(picture)
    for make, factor in zip((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), factors, strict=True):
        image = make(image).enhance(factor)
    return as_tensor(image)


def test_the_whole_augmentation_is_that_of_pillow():
    pictures, sizes = (
        photographs(6, 64, 64),
        torch.tensor([[500, 375], [375, 500], [64, 64], [200, 90], [90, 200], [8, 9]]),
    )
    preprocess = Preprocess(24, *PLAIN, augment=True)
    draws = preprocess.draw((6,), torch.Generator().manual_seed(1))
    mine = 255 * preprocess(pictures, sizes, draws)
    for picture, size, d, changed in zip(pictures, sizes.tolist(), draws.tolist(), mine, strict=True):
        box = torchvision_box(size, d[:10], d[10:20], d[20:22])
        box = [side * 64 / full for side, full in zip(box, size * 2, strict=True)]
        resized = as_tensor(as_pillow(picture).resize((24, 24), Image.Resampling.BILINEAR, box=box)).to(torch.uint8)
        theirs = enhanced_by_pillow(resized, [1 + 0.4 * (2 * u - 1) for u in d[22:25]])
        theirs = theirs.flip(-1) if d[25] < 0.5 else theirs
        assert -0.2 < (changed - theirs).mean() < 2
        assert (changed - theirs).abs().max() < 5


def test_the_originals_geometry_decides_the_crop():
    """A tall photograph squashed to a square: its crop is wide in the stored pixels."""
    ramp = torch.arange(100, dtype=torch.uint8).expand(1, 1, 100, 100).contiguous()
    preprocess = Preprocess(10, (0.0,), (1.0,), augment=True)
    draws = torch.full((1, 26), 0.5)
    draws[:, 25] = 0.9  # no flip
    spans = []
    for size in ([100, 400], [100, 100], [400, 100]):
        x = 255 * preprocess(ramp, torch.tensor([size]), draws)[0, 0, 0]
        spans.append(float(x[-1] - x[0]))
    assert spans[0] > 1.2 * spans[1] > 1.4 * spans[2]


def test_the_flip_mirrors():
    preprocess = Preprocess(16, *PLAIN, augment=True)
    draws = preprocess.draw((3,), torch.Generator().manual_seed(0))
    draws[:, 25] = 0.75
    straight = preprocess(photographs(), draws=draws)
    draws[:, 25] = 0.25
    torch.testing.assert_close(preprocess(photographs(), draws=draws), straight.flip(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_its_pictures_one_by_one(channels):
    pictures, sizes = photographs(5, channels=channels), torch.tensor([[80, 50]] * 5)
    preprocess = Preprocess(12, (0.3,) * channels, (0.2,) * channels, augment=True)
    draws = preprocess.draw((5,), torch.Generator().manual_seed(0))
    batch = preprocess(pictures, sizes, draws)
    single = [preprocess(pictures[i : i + 1], sizes[i : i + 1], draws[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(batch, torch.cat(single), atol=1e-5, rtol=1e-5)
    assert torch.equal(batch, preprocess(pictures, sizes, draws))


def test_colour_leaves_grey_pictures_alone():
    pictures = photographs(channels=1).float()
    assert torch.equal(enhance(pictures, torch.tensor([[1.0, 1.0, 0.6]] * 3)), pictures)


@pytest.mark.parametrize("augment", [False, True])
def test_distortion_follows_the_crop_and_has_its_own_numbers(augment):
    plain = Preprocess(28, (0.5,), (0.25,), augment=augment)
    both = plain._replace(distort=0.5)
    images = torch.randint(256, (6, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draws = both.draw((6,), torch.Generator().manual_seed(1))
    before = plain(images, draws=draws[:, : plain.n_draws])
    expected = (distort(before * 0.25 + 0.5, 0.5, draws[:, plain.n_draws :]) - 0.5) / 0.25
    torch.testing.assert_close(both(images, draws=draws), expected)
    assert both.plain == Preprocess(28, (0.5,), (0.25,))
    with pytest.raises(InvalidInputError, match="`draws` for augmentation"):
        both(images)


def test_draws_are_uniform_numbers_for_any_shape():
    preprocess = Preprocess(84, *PLAIN, augment=True)
    draws = preprocess.draw((4, 25), torch.Generator().manual_seed(0))
    assert draws.shape == (4, 25, preprocess.n_draws)
    assert 0 <= draws.min() < 0.01
    assert 0.99 < draws.max() < 1
    assert torch.equal(draws, preprocess.draw((4, 25), torch.Generator().manual_seed(0)))
    assert preprocess._replace(augment=False).draw((4, 25), torch.Generator()).shape == (4, 25, 0)


@pytest.mark.parametrize(("size", "large"), [(84, 96), (28, 32), (10, 11)])
def test_evaluation_is_resize_and_central_crop(size, large):
    pictures = photographs(2, 150, 120)
    start = round((large - size) / 2)
    for picture, mine in zip(pictures, evaluation_crop(pictures, size), strict=True):
        whole = as_pillow(picture).resize((large, large), Image.Resampling.BILINEAR)
        theirs = as_tensor(whole.crop((start, start, start + size, start + size)))
        assert (mine - theirs).abs().max() < 1.2


def test_pictures_of_the_right_size_are_only_normalised():
    pictures = photographs(2, 28, 28)
    x = Preprocess(28, IMAGENET_MEAN, IMAGENET_STD)(pictures)
    mean, std = (torch.tensor(v)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    torch.testing.assert_close(x, (pictures / 255 - mean) / std)


def test_evaluation_pictures_need_only_be_normalised(monkeypatch):
    monkeypatch.setattr("mirrorshot.data.augment._CHUNK", 3)
    source = ClassSource.from_arrays(photographs(8), np.arange(8) % 2)._replace(
        sizes=torch.ones(8, 2, dtype=torch.int64)
    )
    ready = evaluation_pictures(source, 20)
    assert ready.items.shape == (8, 3, 20, 20)
    assert ready.sizes is None
    assert ready.labels is source.labels
    preprocess = Preprocess(20, IMAGENET_MEAN, IMAGENET_STD)
    torch.testing.assert_close(preprocess(ready.items), preprocess(source.items), atol=0.51 / 255 / 0.22, rtol=0)
    assert evaluation_pictures(ready, 20) is ready


class Operations(TorchDispatchMode):
    """Notes the operations that are carried out."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("random", [{}, {"augment": True}, {"distort": 0.5}, {"augment": True, "distort": 0.5}])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_is_copied_from_or_to_the_host(random, device):
    """As a CUDA graph demands: no values in Python, no tensors from lists, no sizes that depend on values."""
    preprocess = Preprocess(12, *PLAIN, **random)
    draws = preprocess.draw((3,), torch.Generator().manual_seed(0)).to(device)
    sizes = torch.tensor([[80, 50]] * 3).to(device)
    pictures = photographs().to(device)
    with Operations() as operations:
        assert preprocess(pictures, sizes, draws).shape == (3, 3, 12, 12)
    assert "bmm" in operations.names
    assert not operations.names & {"_local_scalar_dense", "lift_fresh", "nonzero", "masked_select", "index", "copy_"}


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("random", [{}, {"augment": True}, {"augment": True, "distort": 0.5}])
def test_it_compiles_to_one_graph(random):
    preprocess = Preprocess(12, *PLAIN, **random)
    draws = preprocess.draw((3,), torch.Generator().manual_seed(0))
    compiled = torch.compile(preprocess.__call__, fullgraph=True, backend="eager")
    sizes = torch.tensor([[80, 50]] * 3)
    torch.testing.assert_close(compiled(photographs(), sizes, draws), preprocess(photographs(), sizes, draws))


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": photographs().float()}, r"as uint8 with 1 or 3 channels, but got shape .* of torch.float32"),
        ({"images": photographs(channels=2)}, r"1 or 3 channels, but got shape \(3, 2, 40, 60\)"),
        ({"images": photographs(channels=1)}, "a value for each of 1 channels, but got 3 and 3"),
        ({"sizes": torch.ones(2, 2, dtype=torch.int64)}, r"`sizes` to be \(3, 2\).* but got \(2, 2\)"),
        ({"draws": None}, "`draws` for augmentation, but got None; make them with `draw`"),
        ({"draws": torch.zeros(3, 5)}, r"`draws` to be \(3, 26\).* but got \(3, 5\)"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    preprocess = Preprocess(12, *PLAIN, augment=True)
    with pytest.raises(InvalidInputError, match=message):
        preprocess(**{"images": photographs(), "draws": torch.zeros(3, 26), **arguments})

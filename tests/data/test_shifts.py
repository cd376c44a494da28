"""Simulated changes of domain: each against its definition, and those that every image must survive."""

import pytest
import torch

from mirrorshot.data.shifts import DISTORTION_DRAWS, N_SHIFTS, distort, draw_strengths, shift_images

BLUR, THICKNESS, COARSE, NOISE, CUT, WARP = range(N_SHIFTS)


def images(channels=1, side=28):
    return torch.rand(3, 4, channels, side, side, generator=torch.Generator().manual_seed(0))


def shifted(x, seed=1, **strengths):
    values = torch.zeros(len(x), N_SHIFTS)
    for name, value in strengths.items():
        values[:, globals()[name]] = value
    return shift_images(x, values, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("channels", [1, 3])
def test_no_strength_is_no_change(channels):
    x = images(channels)
    assert torch.allclose(shifted(x), x, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["BLUR", "THICKNESS", "COARSE", "NOISE", "CUT", "WARP"])
def test_every_shift_changes_images_and_keeps_them_within_bounds(channels, name):
    x = images(channels, side=36)
    y = shifted(x, **{name: 1.0})
    assert y.shape == x.shape
    assert 0 <= y.min() <= y.max() <= 1
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(x, y, strict=True))


def test_blur_keeps_what_is_the_same_everywhere_and_the_variance_falls():
    assert torch.allclose(shifted(torch.full((1, 1, 1, 28, 28), 0.4), BLUR=1.0), torch.tensor(0.4), atol=1e-6)
    assert shifted(images(), BLUR=1.0).var() < 0.2 * images().var()


def test_a_coarse_image_has_fewer_values():
    y = shifted(images(), COARSE=1.0)
    assert len(y[0, 0, 0, :, 0].unique()) <= 9
    assert torch.allclose(y.mean((-2, -1)), images().mean((-2, -1)), atol=0.03)


def test_characters_become_thicker_or_thinner_and_photographs_flatter():
    dot = torch.zeros(8, 1, 1, 28, 28)
    dot[..., 12:16, 12:16] = 1.0
    ink = shifted(dot, THICKNESS=1.0).sum((1, 2, 3, 4))
    assert set(ink.tolist()) == {4.0, 36.0}
    assert shifted(images(3), THICKNESS=1.0).std() < 0.5 * images(3).std()


def test_a_hole_is_black_in_a_character_and_mean_grey_in_a_photograph():
    x = torch.ones(20, 1, 1, 28, 28)
    assert set(shifted(x, CUT=1.0).unique().tolist()) == {0.0, 1.0}
    assert torch.equal(shifted(x.expand(-1, -1, 3, -1, -1), CUT=1.0), x.expand(-1, -1, 3, -1, -1))


def test_tasks_have_their_own_strengths():
    x = images()
    strengths = torch.zeros(3, N_SHIFTS)
    strengths[1, NOISE] = 1.0
    y = shift_images(x, strengths, torch.Generator().manual_seed(0))
    assert torch.allclose(y[[0, 2]], x[[0, 2]], atol=1e-6)
    assert not torch.allclose(y[1], x[1], atol=1e-2)


def test_the_same_generator_makes_the_same_shifts():
    first, second = (shifted(images(), seed=5, NOISE=0.5, WARP=0.5, CUT=0.5) for _ in range(2))
    assert torch.equal(first, second)


def test_most_strengths_are_zero_and_all_are_between_zero_and_one():
    strengths = draw_strengths(1000, torch.Generator().manual_seed(0))
    assert 0 <= strengths.min() <= strengths.max() <= 1
    assert float((strengths == 0).double().mean()) == pytest.approx(0.6, abs=0.03)


def strokes(n=64):
    x = torch.zeros(n, 1, 28, 28)
    x[:, :, 6:22, 13:15] = x[:, :, 13:15, 8:20] = 1.0
    return x, torch.rand(n, DISTORTION_DRAWS, generator=torch.Generator().manual_seed(3))


def test_a_share_of_the_images_is_warped_and_a_share_has_other_strokes():
    x, draws = strokes(2000)
    assert torch.equal(distort(x, 0.0, draws), x)
    y = distort(x, 0.5, draws)
    assert 0 <= y.min() <= y.max() <= 1
    assert float((y == x).all((1, 2, 3)).double().mean()) == pytest.approx(0.25, abs=0.03)
    draws[:, 0] = 1.0  # no image is warped
    ink = distort(x, 0.5, draws).sum((1, 2, 3)) - x[0].sum()
    assert [float((ink > 0).double().mean()), float((ink < 0).double().mean())] == pytest.approx([0.25, 0.25], abs=0.03)


def test_images_are_distorted_alike_alone_and_in_a_batch():
    x, draws = strokes()
    alone = torch.cat([distort(x[i : i + 1], 0.7, draws[i : i + 1]) for i in range(len(x))])
    torch.testing.assert_close(distort(x, 0.7, draws), alone)


def test_a_warped_stroke_stays_near_its_place_and_keeps_most_of_its_ink():
    x, draws = strokes()
    draws[:, 1] = 1.0  # strokes keep their thickness
    y = distort(x, 1.0, draws)
    place = torch.arange(28.0)
    for side in (2, 3):
        centre = [(image.sum(5 - side) * place).sum(-1) / image.sum((2, 3)) for image in (x, y)]
        assert (centre[0] - centre[1]).abs().max() < 8
    assert ((y.sum((1, 2, 3)) / x.sum((1, 2, 3))) - 1).abs().max() < 0.8

"""Polya-Gamma draws, against the package `polyagamma`, closed moments and the Laplace transform."""

import math

import numpy as np
import polyagamma
import pytest
import torch
from scipy.stats import ks_2samp
from torch.testing import assert_close

from mirrorshot.gp.polya_gamma import N_TERMS, prior_root, sample_polya_gamma, tail_gamma

F64 = torch.float64


def draw(b, c, n=100_000, seed=0, dtype=F64):
    return sample_polya_gamma(b, torch.full((n,), c, dtype=dtype), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("b", [1.0, 2.0, 2.5, 40.0])
@pytest.mark.parametrize("c", [0.0, -1.5, 8.0, 60.0])
def test_draws_are_distributed_as_those_of_polyagamma(b, c):
    # its exact methods; those that it takes by itself are approximate, and wrong at b = 40, c = 60
    exact = {"method": "devroye" if b == int(b) else "alternate", "random_state": np.random.default_rng(0)}
    theirs = polyagamma.random_polyagamma(b, c, size=50_000, **exact)
    assert ks_2samp(draw(b, c, n=50_000).numpy(), theirs).pvalue > 0.001


@pytest.mark.parametrize("b", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("c", [0.0, 0.5, 5.0, 100.0])
def test_mean_and_variance_are_the_closed_ones(b, c):
    draws = draw(b, c)
    mean = b / 4 if c == 0 else b / (2 * c) * math.tanh(c / 2)
    var = b / 24 if c == 0 else b / (4 * c**3) * (math.sinh(c) - c) / math.cosh(c / 2) ** 2
    assert draws.mean().item() == pytest.approx(mean, abs=4.5 * math.sqrt(var / len(draws)))
    assert draws.var().item() == pytest.approx(var, rel=0.06)
    assert draws.min() > 0


@pytest.mark.parametrize("b", [1.0, 3.5, 50.0])
def test_the_laplace_transform_of_what_is_drawn_is_that_of_the_distribution(b):
    c = torch.tensor([0.0, 0.5, 2.0, 8.0, 30.0, 100.0, 1000.0], dtype=F64)
    shift, scale, shape = tail_gamma(torch.full_like(c, b), c)
    squares = (torch.arange(N_TERMS) + 0.5) ** 2
    for size in (0.1, 1.0, 10.0, 100.0):
        t = size * 4 * (1 + c) / b
        tt = t / (2 * math.pi**2)
        terms = torch.log1p(tt[:, None] / (squares + (c / (2 * math.pi))[:, None] ** 2)).sum(-1)
        drawn = -b * terms - shift * tt - shape * torch.log1p(scale * tt)
        exact = b * (log_cosh(c / 2) - log_cosh(torch.sqrt((c**2 / 2 + t) / 2)))
        assert_close(drawn.exp(), exact.exp(), rtol=0, atol=3e-7)


def log_cosh(x):
    return x + torch.log1p(torch.exp(-2 * x)) - math.log(2)


def test_single_precision_has_the_same_tail():
    c = torch.tensor([0.0, 1e-5, 0.5, 20.0, 1000.0])
    single, double = (tail_gamma(torch.ones_like(x), x) for x in (c, c.double()))
    for a, b in zip(single[1:], double[1:], strict=True):
        assert_close(a.double(), b, rtol=1e-4, atol=0)
    assert_close(single[0].double(), double[0], rtol=0, atol=1e-6)


def test_shapes_are_broadcast_and_zero_draws_are_zero():
    b = torch.tensor([0.0, 1.0, 4.0])
    generator = torch.Generator().manual_seed(0)
    draws = sample_polya_gamma(b, torch.randn(5000, 3, generator=generator), generator)
    assert draws.shape == (5000, 3)
    assert draws.dtype == torch.float32
    assert (draws[:, 0] == 0).all()
    assert 3.5 < (draws[:, 2].mean() / draws[:, 1].mean()).item() < 4.5


def test_the_same_seed_gives_the_same_draws():
    assert torch.equal(draw(1.0, 0.5, n=10, seed=3), draw(1.0, 0.5, n=10, seed=3))
    assert not torch.equal(draw(1.0, 0.5, n=10, seed=3), draw(1.0, 0.5, n=10, seed=4))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_root_of_a_singular_covariance_is_its_root_to_rounding(dtype):
    z = torch.randn(3, 1, 85, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)
    K = z @ z.mT
    root = prior_root(K)
    assert root.dtype == dtype
    assert_close(root @ root.mT, K, rtol=0, atol=200 * torch.finfo(dtype).eps * K.amax().item())

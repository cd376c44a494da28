"""The paper's Theorem 3.1, by GPyTorch: mirror descent is natural-gradient descent."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from mirrorshot.gp import gradient_descent, mirror_descent
from mirrorshot.gp.gaussian import covariance
from mirrorshot.paper.natural_gradient import natural_descent


def task(seed, n_way=3, n=9, scale=2.0):
    x = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * torch.exp(-(torch.cdist(x, x) ** 2) / 4), torch.arange(n) % n_way


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), rho=st.floats(0.01, 1.0), scale=st.floats(0.3, 8.0))
def test_one_mirror_step_is_one_natural_gradient_step(seed, rho, scale):
    K, y = task(seed, scale=scale)
    other = natural_descent(K, y, n_way=3, max_steps=1, step_size=rho)
    posterior, info = mirror_descent(K[None, None], y[None], n_way=3, max_steps=1, step_size=rho)
    assert_close(posterior.mean[0], other.mean, rtol=1e-5, atol=1e-6)
    assert_close(covariance(K[None, None], posterior)[0], other.covariance, rtol=1e-6, atol=1e-8)
    assert_close(info.elbo[0], other.elbo, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rho", [0.005, 0.5])
def test_so_are_many_steps(rho):
    K, y = task(0)
    other = natural_descent(K, y, n_way=3, max_steps=30, step_size=rho)
    _, info = mirror_descent(K[None, None], y[None], n_way=3, max_steps=30, step_size=rho)
    assert_close(info.elbo[0], other.elbo, rtol=1e-7, atol=1e-7)


def test_a_gradient_step_is_another_one():
    K, y = task(0)
    other = natural_descent(K, y, n_way=3, max_steps=1, step_size=0.005)
    _, info = gradient_descent(K[None, None], y[None], n_way=3, max_steps=1, step_size=0.005)
    assert abs(float(info.elbo[0, 1] - other.elbo[1])) > 1e-4

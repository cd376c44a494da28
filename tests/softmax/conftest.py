import numpy as np
import pytest


def _hostile_latents(n, seed=0, dtype=np.float64):
    """Batches (P, C) of latents of 2 to 300 classes: equal and huge means, deviations of 0 and of 1e-6 to 1e3."""
    rng = np.random.default_rng(seed)
    while n > 0:
        n_points, n_classes = rng.integers(1, 9), rng.choice([2, 3, 5, 20, 300], p=[0.3, 0.2, 0.3, 0.15, 0.05])
        size = n_points, n_classes
        std = 10.0 ** rng.uniform(-6, rng.choice([0.5, 1.2, 3.0]), size)
        std *= rng.random(size) > rng.choice([0.0, 0.3, 1.0])
        mean = rng.normal(size=size) * rng.choice([0.0, 1.0, 10.0, 1e4]) + rng.choice([0.0, 1e5])
        yield mean.astype(dtype), (std * std).astype(dtype)
        n -= n_points


def _assert_close(got, expected, tolerance):
    for ours, theirs in zip(got, expected, strict=True):
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.fixture
def hostile_latents():
    return _hostile_latents


@pytest.fixture
def assert_close():
    return _assert_close

import numpy as np
import pytest

from mirrorshot.gp import alternating
from mirrorshot.gp.alternating import alternate
from mirrorshot.gp.native_rounds import climb
from mirrorshot.gp.weight_space import Task, features_of
from mirrorshot.softmax.native.loader import LIBRARY

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the native core was not compiled")


def make_task(n_way, n_shot, n_features, *, seed=0):
    """A task with weights and prior means."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(n_way, 1, n_features)) + rng.normal(size=(n_way, n_shot, n_features))).reshape(-1, n_features)
    K = 10.0 * x @ x.T / np.square(x).sum(1).max()
    Y = np.repeat(np.eye(n_way), n_shot, axis=0)
    weight = rng.choice([0.5, 1.0, 7.0], size=len(K))
    return Task(features_of(K), K, Y, weight, rng.normal(size=Y.shape), 10.0**0.5)


@pytest.mark.parametrize(("n_way", "n_shot", "n_features"), [(2, 1, 1), (5, 4, 30), (3, 9, 4), (15, 2, 40)])
@pytest.mark.parametrize("has_start", [False, True])
def test_rounds_of_the_native_core_are_those_of_numpy(monkeypatch, n_way, n_shot, n_features, has_start):
    task = make_task(n_way, n_shot, n_features)
    start = alternate(task._replace(weight=np.ones(len(task.K)))).sites if has_start else None
    found = alternate(task, start)
    monkeypatch.setattr(alternating, "climb", lambda *_, **__: None)
    expected = alternate(task, start)
    assert found.is_proven
    assert found.n_rounds == expected.n_rounds
    assert found.elbo == pytest.approx(expected.elbo, abs=1e-12)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-7)


def test_a_result_that_is_not_finite_is_not_used():
    task = make_task(3, 2, 6)
    u, w = np.zeros((3, task.features.phi.shape[1])), np.ones((6, 3))
    assert climb(task, u, w, alternating._CONSTANTS, has_shift=False) is not None
    broken = task._replace(Y=np.full_like(task.Y, np.nan))
    assert climb(broken, u, w, alternating._CONSTANTS, has_shift=False) is None

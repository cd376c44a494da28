import numpy as np
import pytest

from mirrorshot.gp import alternating, many_classes
from mirrorshot.gp.alternating import alternate
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.many_classes import has_many_classes, solve_many
from mirrorshot.gp.weight_space import Task, features_of


def make_task(n_way, n_shot, n_features, *, seed=0, scale=30.0, has_extras=False, spread=0.5):
    rng = np.random.default_rng(seed)
    x = spread * rng.normal(size=(n_way, 1, n_features)) + rng.normal(size=(n_way, n_shot, n_features))
    x = x.reshape(-1, n_features)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    K, Y = scale * x @ x.T, np.repeat(np.eye(n_way), n_shot, axis=0)
    weight = rng.choice([0.5, 1.0, 2.0], size=len(K)) if has_extras else np.ones(len(K))
    prior_mean = rng.normal(size=Y.shape) if has_extras else None
    return Task(features_of(K), K, Y, weight, prior_mean, scale**0.5)


def by_turns(monkeypatch, task):
    """The solution of `alternate` by its own rounds."""
    with monkeypatch.context() as patch:
        patch.setattr(alternating, "has_many_classes", lambda task: False)
        return alternate(task)


def assert_same(found, other):
    assert found.is_proven
    assert other.is_proven
    assert found.elbo == pytest.approx(other.elbo, abs=1e-9)
    np.testing.assert_allclose(found.mean, other.mean, atol=2e-7)
    np.testing.assert_allclose(found.precision, other.precision, atol=1e-8)


@pytest.mark.parametrize("has_extras", [False, True])
@pytest.mark.parametrize("has_squares", [False, True])
@pytest.mark.parametrize(("n_way", "n_shot", "n_features"), [(16, 9, 150), (30, 5, 64)])
def test_optimum_is_that_of_conditioning_by_turns(monkeypatch, n_way, n_shot, n_features, has_squares, has_extras):
    task = make_task(n_way, n_shot, n_features, has_extras=has_extras)
    assert has_many_classes(task)
    monkeypatch.setattr(many_classes, "SQUARES_SIZE", 2**23 if has_squares else 0)
    found = solve_many(task, None, max_rounds=20)
    assert_same(found, by_turns(monkeypatch, task))
    assert found.n_rounds <= 7


@pytest.mark.parametrize("has_squares", [False, True])
def test_sites_close_to_the_optimum_lead_to_it(monkeypatch, has_squares):
    monkeypatch.setattr(many_classes, "SQUARES_SIZE", 2**23 if has_squares else 0)
    task, rng = make_task(20, 6, 128), np.random.default_rng(1)
    found = solve_many(task, None, max_rounds=20)
    shift, precision = (part * np.exp(0.05 * rng.normal(size=part.shape)) for part in found.sites)
    assert_same(solve_many(task, GaussianSites(shift, precision), max_rounds=20), found)


def test_a_lost_search_is_left_to_the_rounds_of_every_class(monkeypatch):
    task = make_task(16, 9, 150)
    monkeypatch.setattr(many_classes, "_STEPS", 0)
    assert solve_many(task, None, max_rounds=20) is None
    assert alternate(task).is_proven


def test_few_classes_and_many_examples_of_each_are_not_for_it():
    assert not has_many_classes(make_task(5, 40, 150))
    assert not has_many_classes(make_task(12, 20, 100))
    assert not has_many_classes(make_task(12, 2, 100))

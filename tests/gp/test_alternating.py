import numpy as np
import pytest
import torch

from mirrorshot.gp import alternating
from mirrorshot.gp.alternating import alternate
from mirrorshot.gp.mirror import mirror_descent
from mirrorshot.gp.weight_space import Task, features_of


def make_task(n_way, n_shot, n_features, *, scale=10.0, seed=0, weight=None, prior_mean=None):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(n_way, 1, n_features)) + rng.normal(size=(n_way, n_shot, n_features))).reshape(-1, n_features)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    K = scale * x @ x.T
    Y = np.repeat(np.eye(n_way), n_shot, axis=0)
    return Task(features_of(K), K, Y, np.ones(len(K)) if weight is None else weight, prior_mean, scale**0.5)


def by_mirror_descent(task):
    given = None if task.prior_mean is None else torch.tensor(task.prior_mean.T)[None]
    return mirror_descent(
        torch.tensor(task.K)[None, None],
        torch.tensor(task.Y.argmax(1))[None],
        n_way=task.Y.shape[1],
        weight=torch.tensor(task.weight)[None],
        prior_mean=given,
        max_steps=200,
        tol=1e-13,
    )


@pytest.mark.parametrize(
    ("n_way", "n_shot", "n_features", "scale"), [(5, 1, 64, 10.0), (3, 8, 2, 30.0), (2, 4, 9, 0.1)]
)
def test_optimum_is_that_of_mirror_descent(n_way, n_shot, n_features, scale):
    task = make_task(n_way, n_shot, n_features, scale=scale)
    found, (posterior, info) = alternate(task), by_mirror_descent(task)
    assert found.elbo == pytest.approx(float(info.elbo[0, -1]), abs=1e-9)
    np.testing.assert_allclose(found.mean.T, posterior.mean[0], atol=1e-5)
    np.testing.assert_allclose(found.precision.T, posterior.sites.precision[0], atol=1e-6)


def test_weights_and_prior_means_are_part_of_the_task():
    rng = np.random.default_rng(3)
    task = make_task(3, 4, 5, weight=rng.choice([0.5, 1.0, 7.0], size=12), prior_mean=rng.normal(size=(12, 3)))
    assert alternate(task).elbo == pytest.approx(float(by_mirror_descent(task)[1].elbo[0, -1]), abs=1e-9)


def test_sites_rest_at_the_optimum():
    found = alternate(make_task(4, 5, 20))
    assert 0.0 <= found.gap < 1e-15
    np.testing.assert_allclose(found.alpha.sum(1), 0.0, atol=1e-8)  # probabilities and labels both sum to one


def test_a_start_at_the_solution_ends_at_once():
    task = make_task(4, 5, 20)
    found = alternate(task)
    again = alternate(task, found.sites)
    assert again.n_rounds <= 2
    assert again.elbo == pytest.approx(found.elbo, abs=1e-11)


def test_a_repeated_example_counts_as_one_of_weight_two():
    task = make_task(3, 2, 6)
    rows = [0, *range(6)]
    K = task.K[np.ix_(rows, rows)]
    twice = task._replace(features=features_of(K), K=K, Y=task.Y[rows], weight=np.ones(7))
    weighted = task._replace(weight=np.array([2.0, 1, 1, 1, 1, 1]))
    np.testing.assert_allclose(alternate(twice).mean[1:], alternate(weighted).mean, atol=1e-6)


def test_single_precision_for_the_first_rounds_does_not_change_the_result(monkeypatch):
    task = make_task(6, 6, 12)
    exact = alternate(task)
    monkeypatch.setattr(alternating, "_SINGLE_SIZE", 0)
    found = alternate(task)
    assert found.elbo == pytest.approx(exact.elbo, abs=1e-10)
    np.testing.assert_allclose(found.mean, exact.mean, atol=1e-7)


def test_a_search_that_is_cut_short_is_not_proven():
    found = alternate(make_task(3, 3, 5), max_rounds=1)
    assert not found.is_proven
    assert found.gap > 1e-3

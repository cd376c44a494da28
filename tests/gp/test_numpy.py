"""NumPy arrays and torch tensors give the same posteriors: every formula is written once for both."""

import numpy as np
import pytest
import torch

from mirrorshot.gp import amortise, elbo, mirror_descent, newton_solve
from mirrorshot.gp.certificate import gap_bound, latent_error, site_error
from mirrorshot.gp.gaussian import GaussianSites, condition, covariance, kl_to_prior, loo_latent, predict_latent
from mirrorshot.gp.kernels import RBF, Cosine, Linear, Matern, Polynomial
from mirrorshot.gp.linalg import check_kernel_matrix, one_hot
from mirrorshot.gp.objective import evaluate, make_problem
from mirrorshot.softmax import log_predictive
from mirrorshot.types import InvalidInputError

KERNELS = [
    Cosine(outputscale=10.0),
    Cosine(outputscale=30.0, centre=True),
    RBF(outputscale=5.0),
    Matern(outputscale=8.0),
]


def random_task(rng):
    """Features of one task and of queries, and labels; duplicates, zero vectors, noisy labels and extreme scales."""
    n_way, n_shot, size = int(rng.integers(2, 7)), int(rng.integers(1, 5)), int(rng.integers(1, 30))
    x = np.repeat(rng.normal(size=(n_way, size)), n_shot, 0) + rng.uniform(0, 2) * rng.normal(
        size=(n_way * n_shot, size)
    )
    query, y = rng.normal(size=(6, size)), np.repeat(np.arange(n_way), n_shot)
    for hostile, change in enumerate((0.3, 0.2, 0.3)):
        if rng.random() < change:
            rows = rng.integers(0, len(x), 2)
            if hostile == 0:
                x[rows[0]] = x[rows[1]]
            elif hostile == 1:
                x[rows[0]] = query[0] = 0.0
            else:
                y = rng.permutation(y)
    scale = 10.0 ** rng.uniform(-6, 6)
    return scale * x[None], y[None], scale * query[None], n_way


def both(compute, *arrays):
    """Results of a function for arrays and for the same numbers as tensors, flattened to arrays."""
    return [flat(compute(*some)) for some in (arrays, [torch.tensor(array) for array in arrays])]


def flat(result):
    if isinstance(result, tuple):
        return [array for part in result for array in flat(part)]
    return [np.asarray(result, dtype=np.float64)]


def assert_same(found, expected, tolerance=1e-8):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_posterior_bound_and_probabilities_are_those_of_torch():
    rng = np.random.default_rng(0)
    for i in range(40):
        x, y, query, n_way = random_task(rng)
        kernel = KERNELS[i % len(KERNELS)]
        centre = x.mean(1, keepdims=True)

        def predict(x, y, query, centre, kernel=kernel, n_way=n_way):
            K = kernel(x, centre=centre)
            start, _ = mirror_descent(K, y, n_way=n_way, max_steps=200, tol=1e-11)
            weight = 0.0 * y + 1.0 if isinstance(y, np.ndarray) else y.double() * 0.0 + 1.0
            solved = newton_solve(K, y, start.sites, n_way=n_way, weight=weight, is_near=True)
            posterior = start if solved is None else solved[0]
            mean, var = predict_latent(posterior, *kernel.cross(x, query, centre=centre))
            return log_predictive(mean.mT, var.mT), elbo(K, y, posterior), posterior.mean, posterior.var

        assert_same(*both(predict, x, y, query, centre))


def test_everything_about_given_sites_is_that_of_torch():
    rng = np.random.default_rng(1)
    n_tasks, n_way, n = 3, 4, 7
    x, shift = rng.normal(size=(n_tasks, n, 5)), rng.normal(size=(n_tasks, n_way, n))
    precision, y = rng.random((n_tasks, n_way, n)), rng.integers(0, n_way, (n_tasks, n))
    precision[0, 0, 0] = 0.0

    def compute(x, shift, precision, y):
        K, sites = RBF(outputscale=6.0)(x), GaussianSites(shift, precision)
        posterior = condition(K, sites)
        problem = make_problem(K, y, n_way, None, None, None, validate=True)
        state = evaluate(problem, sites)
        gap = gap_bound(problem, state)
        return (
            posterior, covariance(K, posterior), kl_to_prior(posterior), loo_latent(posterior), state, gap,
            latent_error(problem, gap), site_error(problem, state), amortise(K, y, posterior).sites(problem),
        )  # fmt: skip

    assert_same(*both(compute, x, shift, precision, y), 1e-9)


def test_a_batch_of_padded_tasks_is_solved_as_torch_does():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6, 8, 4)), rng.integers(0, 3, (6, 8))
    weight, mask = (rng.random((6, 8)) < 0.8) * rng.choice([0.5, 1.0, 2.0], (6, 8)), np.ones((6, 4), dtype=bool)
    mask[:, 3] = False

    def compute(x, y, weight, mask):
        K = (RBF(outputscale=9.0) + Linear(outputscale=0.1))(x)
        posterior, info = mirror_descent(K, y, n_way=4, weight=weight, class_mask=mask, tol=1e-11, max_steps=60)
        # sites are not unique where the prior is singular: compare what they determine
        return posterior.mean, posterior.var, info.elbo[:, -1], info.converged

    found, expected = both(compute, x, y, weight, mask)
    assert_same(found, expected, 1e-5)
    assert_same(found[2:3], expected[2:3])
    assert found[3].all()


def test_arrays_stay_arrays_and_wrong_ones_are_refused_as_tensors_are():
    K, y = np.eye(4)[None, None], np.array([[0, 0, 1, 1]])
    posterior, info = mirror_descent(K, y, n_way=2)
    assert all(isinstance(part, np.ndarray) for part in (*posterior.sites, *posterior[1:], *info))
    with pytest.raises(InvalidInputError, match="torch tensors with a fixed `step_size`"):
        mirror_descent(K, y, n_way=2, step_size=0.5)
    for bad, message in [
        (K[0], r"shape \(T, 1 or C, N, N\)"),
        (np.full_like(K, np.nan), "task 0 contains NaN"),
        (K - 2 * np.eye(4), "non-negative diagonal"),
        (np.triu(np.ones((1, 1, 3, 3))), "to be symmetric"),
        (1 - 0.5 * np.eye(3)[None, None], "positive semi-definite"),
        (K.astype(int), "float32 or float64"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            check_kernel_matrix(bad)


def test_one_hot_rows_are_those_of_torch():
    y = np.array([[2, 0], [1, 1]])
    assert_same(*both(lambda y: one_hot(y, 3, np.float64 if isinstance(y, np.ndarray) else torch.float64), y))


def test_single_precision_is_kept():
    x = np.random.default_rng(0).normal(size=(1, 6, 3)).astype(np.float32)
    for kernel in (Cosine(centre=True), RBF(), Matern(), Linear(), Polynomial()):
        posterior, _ = mirror_descent(kernel(x), np.array([[0, 1, 2, 0, 1, 2]]), n_way=3, tol=1e-4)
        assert {part.dtype for part in (posterior.mean, posterior.var, posterior.chol)} == {np.dtype(np.float32)}

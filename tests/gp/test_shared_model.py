import numpy as np

from mirrorshot.gp.shared_model import shared_model
from mirrorshot.gp.weight_space import condition_on, features_of


def make_case(n_way, n_shot, *, spread):
    """Features, and precisions that are equal, up to `spread`, but for the own examples of each class."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_way * n_shot, 40))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    own = np.repeat(np.eye(n_way), n_shot, axis=0)
    w = 0.01 + 0.2 * own * rng.uniform(0.8, 1.2, size=own.shape)
    return features_of(10.0 * x @ x.T).phi, w * np.exp(spread * rng.normal(size=w.shape))


def covariances(phi, w):
    """Covariances of every class by explicit inverses."""
    return np.stack([phi @ np.linalg.inv(np.eye(phi.shape[1]) + (phi.T * part) @ phi) @ phi.T for part in w.T])


def test_covariances_are_exact_at_the_precisions_of_the_model():
    phi, w = make_case(6, 4, spread=0.3)
    model = shared_model(phi, w)
    Sigma = covariances(phi, model.precision)
    np.testing.assert_allclose(model.var, np.diagonal(Sigma, 0, 1, 2).T, atol=1e-10)
    change = np.random.default_rng(1).normal(size=w.shape)
    expected = (np.square(Sigma) @ change.T[..., None])[..., 0].T
    np.testing.assert_allclose(model.response(change), expected, atol=1e-9)


def test_the_points_where_a_class_differs_most_have_its_own_precisions():
    phi, w = make_case(6, 4, spread=0.0)
    model = shared_model(phi, w)
    own = np.repeat(np.eye(6, dtype=bool), 4, axis=0)
    np.testing.assert_allclose(model.precision[own], w[own])


def test_weights_are_solved_for_with_the_precisions_of_the_model():
    phi, w = make_case(5, 3, spread=0.3)
    model = shared_model(phi, w)
    right = np.random.default_rng(2).normal(size=(5, phi.shape[1]))
    np.testing.assert_allclose(model.solve(right), condition_on(phi, model.precision).solve(right), atol=1e-10)
    mean = np.repeat(w.mean(1, keepdims=True), 5, axis=1)
    np.testing.assert_allclose(model.precondition(right), condition_on(phi, mean).solve(right), atol=1e-10)

import numpy as np
import pytest

from mirrorshot.gp.followers import Alone, ByModel, BySquares
from mirrorshot.gp.shared_model import shared_model
from mirrorshot.gp.weight_space import condition_on, features_of, squared_covariances


def make_case(n_way, n_shot, n_features, seed=0):
    """Features, and precisions that are alike but for the own examples of each class."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_way * n_shot, n_features))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    own = np.repeat(np.eye(n_way), n_shot, axis=0)
    w = (0.01 + 0.1 * own) * np.exp(0.2 * rng.normal(size=own.shape))
    return features_of(10.0 * x @ x.T).phi, w, w * np.exp(0.01 * rng.normal(size=w.shape))


@pytest.mark.parametrize("kind", ["squares", "model"])
def test_variances_follow_small_changes_of_all_sites(kind):
    phi, w, new = make_case(8, 5, 60)
    before = condition_on(phi, w)
    if kind == "squares":
        follower = BySquares(w, before.var, squared_covariances(phi, before))
    else:
        follower = ByModel(w, before.var, shared_model(phi.astype(np.float32), w))
    change = condition_on(phi, new).var - before.var
    np.testing.assert_allclose(follower.at(w), before.var, rtol=1e-6)
    np.testing.assert_allclose(follower.at(new) - before.var, change, atol=0.05 * np.abs(change).max())
    # the error is of second order: the square of a change of one per cent, with squares that belong to the class
    if kind == "squares":
        np.testing.assert_allclose(follower.at(new), before.var + change, rtol=1e-4)


def test_the_precision_of_a_lonely_point_acts_exactly():
    w, new = np.array([[0.3, 2.0]]), np.array([[5.0, 0.0]])
    conditioned = condition_on(np.array([[2.0]]), w)
    np.testing.assert_allclose(Alone(w, conditioned.var).at(new), condition_on(np.array([[2.0]]), new).var)


def explicit(phi, w):
    """Posterior covariances of every class, by explicit inverses in weight space."""
    return np.stack([phi @ np.linalg.inv(np.eye(phi.shape[1]) + (phi.T * part) @ phi) @ phi.T for part in w.T])


def follower_of(kind, phi, w):
    before = condition_on(phi, w)
    if kind == "alone":
        return Alone(w, before.var)
    if kind == "squares":
        return BySquares(w, before.var, squared_covariances(phi, before))
    return ByModel(w, before.var, shared_model(phi, w))


@pytest.mark.parametrize("kind", ["alone", "squares", "model"])
@pytest.mark.parametrize("factor", [0.0, 20.0])
def test_the_own_precision_of_a_point_acts_exactly_among_others(kind, factor):
    phi, w, _ = make_case(4, 3, 30)
    follower, new = follower_of(kind, phi, w), w.copy()
    new[5] *= factor
    exact = np.diagonal(explicit(phi, new), 0, 1, 2).T
    assert np.abs(exact[5] / follower.var[5] - 1).min() > 0.02
    np.testing.assert_allclose(follower.at(new)[5], exact[5], rtol=1e-9 if kind != "model" else 1e-6)


def test_the_first_derivative_is_minus_the_squared_covariances_of_explicit_inverses():
    phi, w, _ = make_case(5, 4, 40)
    follower = follower_of("squares", phi, w)
    direction, step = np.random.default_rng(3).normal(size=w.shape), 1e-4
    slope = (follower.at(w + step * direction) - follower.at(w - step * direction)) / (2 * step)
    expected = -(np.square(explicit(phi, w)) @ direction.T[..., None])[..., 0].T
    np.testing.assert_allclose(slope, expected, atol=1e-5 * np.abs(expected).max())

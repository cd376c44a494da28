import numpy as np
import pytest
import torch

from mirrorshot.gp.gaussian import GaussianSites, condition
from mirrorshot.gp.weight_space import condition_on, features_of, squared_covariances, weight_posterior


def random_prior(n_points, n_features, seed=0, scale=10.0):
    x = np.random.default_rng(seed).normal(size=(n_points, n_features))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return scale * x @ x.T


def random_sites(n_way, n_points, seed=1):
    rng = np.random.default_rng(seed)
    return GaussianSites(rng.normal(size=(1, n_way, n_points)), rng.gamma(0.3, size=(1, n_way, n_points)))


@pytest.mark.parametrize(("n_points", "n_features"), [(12, 30), (40, 6), (7, 1)])
def test_features_reproduce_the_covariance_with_its_rank(n_points, n_features):
    K = random_prior(n_points, n_features)
    features = features_of(K)
    assert features.phi.shape == (n_points, min(n_points, n_features))
    np.testing.assert_allclose(features.phi @ features.phi.T, K, atol=1e-12)


def test_features_of_new_points_are_those_of_the_points_themselves():
    K = random_prior(30, 5)
    features = features_of(K)
    np.testing.assert_allclose(features.at(K).T, features.phi, atol=1e-12)


def test_a_prior_without_variance_stays_as_it_is():
    features = features_of(np.zeros((3, 3)))
    posterior = weight_posterior(features, random_sites(2, 3))
    assert not posterior.mean.any()
    assert not posterior.var.any()
    assert not posterior.explained(np.zeros((1, 1, 3, 4))).any()


def explicit(K, sites):
    """Posterior covariance of every class by an explicit inverse."""
    N = len(K)
    return np.stack([K - K @ np.linalg.solve(K + np.diag(1.0 / w), K) for w in sites.precision[0]]), np.eye(N)


@pytest.mark.parametrize("n_features", [4, 50])
def test_marginals_match_an_explicit_inverse(n_features):
    K, sites = random_prior(25, n_features), random_sites(3, 25)
    Sigma, _ = explicit(K, sites)
    posterior = weight_posterior(features_of(K), sites)
    np.testing.assert_allclose(posterior.var[0], np.diagonal(Sigma, 0, 1, 2), atol=1e-10)
    np.testing.assert_allclose(posterior.mean[0], (Sigma @ sites.shift[0][..., None])[..., 0], atol=1e-9)


def test_predictions_match_those_in_function_space():
    K_all, sites = random_prior(45, 6), random_sites(3, 30)
    K, K_cross = K_all[:30, :30], K_all[:30, 30:]
    dense = condition(torch.tensor(K)[None, None], GaussianSites(*map(torch.tensor, sites)))
    posterior = weight_posterior(features_of(K), sites)
    for name in ("mean", "var", "alpha", "slack"):
        np.testing.assert_allclose(getattr(posterior, name), getattr(dense, name), atol=1e-9)
    expected = dense.explained(torch.tensor(K_cross)[None, None]).numpy()
    np.testing.assert_allclose(posterior.explained(K_cross[None, None]), expected, atol=1e-9)


def test_covariances_with_new_points_match_an_explicit_inverse():
    K_all, sites = random_prior(45, 60), random_sites(2, 30)
    K, K_cross = K_all[:30, :30], K_all[:30, 30:]
    expected = np.stack([K_cross - K @ np.linalg.solve(K + np.diag(1.0 / w), K_cross) for w in sites.precision[0]])
    posterior = weight_posterior(features_of(K), sites)
    np.testing.assert_allclose(posterior.covariance_with(K_cross[None, None])[0], expected, atol=1e-9)
    gain = posterior.gain_at(K_cross[None, None])[0]
    reduced = np.stack([K_cross.T @ np.linalg.solve(K + np.diag(1.0 / w), K_cross) for w in sites.precision[0]])
    np.testing.assert_allclose(gain.mT @ gain, reduced, atol=1e-9)


@pytest.mark.parametrize("n_features", [4, 50])
def test_squared_covariances_match_an_explicit_inverse_and_leave_out_each_point_itself(n_features):
    K, sites = random_prior(25, n_features), random_sites(3, 25)
    Sigma, eye = explicit(K, sites)
    features = features_of(K)
    found = squared_covariances(features.phi, condition_on(features.phi, np.ascontiguousarray(sites.precision[0].T)))
    np.testing.assert_allclose(found, np.square(Sigma) * (1 - eye), atol=1e-5 * np.square(Sigma).max())


def test_log_determinant_matches_that_of_the_shifted_matrix():
    K, sites = random_prior(20, 4), random_sites(2, 20)
    found = condition_on(features_of(K).phi, sites.precision[0].T).log_det
    for value, w in zip(found, sites.precision[0], strict=True):
        B = np.eye(20) + np.sqrt(w)[:, None] * K * np.sqrt(w)
        assert value == pytest.approx(np.linalg.slogdet(B)[1], rel=1e-12)

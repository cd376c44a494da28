import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import softmax
from scipy.stats import norm

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.link import Link, moderated
from mirrorshot.softmax.moments import softmax_moments


@pytest.fixture
def latents():
    rng = np.random.default_rng(0)
    return 3.0 * rng.normal(size=(6, 4)), rng.uniform(1.0, 30.0, (6, 4))


def test_probabilities_are_averaged_over_the_temperature(latents):
    z = moderated(*latents, 0.03)
    found = np.exp(Link(0.7, 0.35, 0.03).log_proba(*latents))
    np.testing.assert_allclose(found.sum(-1), 1.0)
    for row, prob in zip(z, found, strict=True):
        for c in range(4):
            wanted = quad(lambda x, row=row, c=c: norm.pdf(x) * softmax(row / (0.7 * np.exp(0.35 * x)))[c], -6, 6)[0]
            assert prob[c] == pytest.approx(wanted, abs=2e-3)


def test_a_given_temperature_is_the_only_one(latents):
    mean, var = latents
    centred = mean - mean.mean(-1, keepdims=True)
    wanted = softmax(centred / np.sqrt(1 + 0.4 * var) / 0.7, axis=-1)
    np.testing.assert_allclose(np.exp(Link(0.7, 0.0, 0.4).log_proba(mean, var)), wanted)


def test_what_all_classes_share_does_not_count(latents):
    mean, var = latents
    link = Link(0.7, 0.35)
    np.testing.assert_allclose(link.log_proba(mean + 5.0, var), link.log_proba(mean, var), atol=1e-12)


def test_a_certain_latent_counts_more_than_an_uncertain_one():
    prob = np.exp(Link(1.0).log_proba(np.array([1.0, 1.0, -2.0]), np.array([1.0, 50.0, 1.0])))
    assert prob[0] > prob[1] > prob[2]


def test_far_scores_leave_finite_logarithms():
    log_prob = Link(0.01, 0.35).log_proba(np.array([[1e4, 0.0, -1e4]]), np.ones((1, 3)))
    assert np.isfinite(log_prob).all()
    assert log_prob[0, 0] == pytest.approx(0.0, abs=1e-12)


def test_files_of_earlier_versions_raise_the_expected_softmax_to_a_power(latents):
    prob = softmax_moments(*latents).prob ** 2
    found = np.exp(Link(0.5, 0.0, None).log_proba(*latents))
    np.testing.assert_allclose(found, prob / prob.sum(-1, keepdims=True))


def test_latents_of_the_classifier_sum_to_zero_so_that_centring_changes_nothing():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(12, 120)) + np.repeat(np.eye(3, 120) * 3, 4, 0), np.repeat(np.arange(3), 4)
    few = FewShotClassifier().fit(x, y)
    mean, _ = few.predict_latent(rng.normal(size=(5, 120)))
    np.testing.assert_allclose(mean.sum(-1), 0.0, atol=1e-6)

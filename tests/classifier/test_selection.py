import math

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity

from mirrorshot.classifier.link import Link
from mirrorshot.classifier.prior import TABLE_TEMPERATURE
from mirrorshot.classifier.selection import (
    Support,
    centre_leak,
    choose_centre,
    log_spread,
    make_candidates,
    select,
)
from mirrorshot.gp import mirror_descent


def make_support(n_way=3, n_shot=4, noise=0.7, offset=0.0, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_way, 1, 16))
    x = centres + noise * rng.normal(size=(n_way, n_shot, 16)) + offset
    y = np.repeat(np.arange(n_way), n_shot)
    return Support(x.reshape(1, -1, 16), y, np.ones(n_way * n_shot), n_way)


def solve(support, candidates):
    options = {"weight": support.weight[None], "n_way": support.n_way, "tol": 1e-10}
    return [mirror_descent(c.K, support.y[None], **options)[0] for c in candidates]


def test_features_far_from_the_origin_are_centred_and_standardised_ones_are_not():
    far, near = make_support(offset=5.0), make_support(n_way=8, n_shot=1)
    mean, norm = far.x.mean(1, keepdims=True), np.linalg.norm
    assert norm(choose_centre(far, "auto") - mean) < 0.05 * norm(mean)
    assert norm(choose_centre(near, "auto")) < 0.5 * norm(near.x.mean(1))
    np.testing.assert_allclose(choose_centre(far, "mean"), mean)
    assert not choose_centre(far, "none").any()


def test_candidates_have_the_prior_variance_that_their_scale_says():
    support = make_support()
    for name in ("cosine", "rbf", "linear", "polynomial"):
        for candidate in make_candidates(support, name, choose_centre(support, "mean"), None, None):
            variance = candidate.kernel.diagonal(support.x, centre=candidate.centre).mean()
            assert float(variance) == pytest.approx(candidate.outputscale)


def test_with_one_example_per_class_the_temperature_is_that_of_the_prior():
    support = make_support(n_shot=1)
    candidates = make_candidates(support, "cosine", choose_centre(support, "auto"), 10.0, None)
    chosen = select(support, candidates, solve(support, candidates), None)
    spread = log_spread(candidates[0].K[0, 0] / 10.0, support.y, support.weight)
    wanted = math.exp(TABLE_TEMPERATURE.mean(1.0, 3, 16, 10.0, spread))
    assert chosen.link.temperature == pytest.approx(wanted, rel=2e-2)
    assert chosen.link.temperature_std == pytest.approx(TABLE_TEMPERATURE.std, rel=2e-2)
    assert chosen.log_likelihood.tolist() == [0.0]
    assert chosen.evidence == pytest.approx(0.0, abs=1e-12)


def test_classes_at_unequal_angles_get_a_higher_temperature():
    temperatures = []
    for near in (0.0, 0.9):  # the cosine of the first two classes; all others are orthogonal
        x = np.eye(5)
        x[1, :2] = near, math.sqrt(1 - near**2)
        support = Support(x[None], np.arange(5), np.ones(5), 5)
        candidates = make_candidates(support, "cosine", np.zeros((1, 1, 5)), 30.0, None)
        temperatures.append(select(support, candidates, solve(support, candidates), None).link.temperature)
    assert temperatures[1] > 1.1 * temperatures[0]


def test_spread_counts_a_weight_as_repeats_and_pairs_of_different_classes_only():
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(5, 3)), np.array([0, 0, 1, 1, 2]), np.array([1.0, 2.0, 1.0, 3.0, 1.0])
    repeated = np.repeat(np.arange(5), weight.astype(int))
    cosine = cosine_similarity(x)
    found = log_spread(cosine, y, weight)
    assert found == pytest.approx(log_spread(cosine[np.ix_(repeated, repeated)], y[repeated], np.ones(8)))
    pairs = [cosine[i, j] for i in repeated for j in repeated if y[i] != y[j]]
    assert found == pytest.approx(math.log(np.std(pairs) / 0.15))


def test_two_examples_have_the_usual_spread():
    assert log_spread(np.array([[1.0, 0.3], [0.3, 1.0]]), np.arange(2), np.ones(2)) == 0.0


def test_clean_classes_get_a_lower_temperature_than_overlapping_ones():
    temperatures = []
    for noise in (0.3, 3.0):
        support = make_support(n_shot=8, noise=noise)
        candidates = make_candidates(support, "cosine", choose_centre(support, "auto"), 10.0, None)
        temperatures.append(select(support, candidates, solve(support, candidates), None).link.temperature)
    assert temperatures[0] < 0.8 * temperatures[1]


def test_a_given_temperature_is_kept():
    support = make_support()
    candidates = make_candidates(support, "cosine", choose_centre(support, "auto"), None, None)
    assert select(support, candidates, solve(support, candidates), 0.7).link == Link(pytest.approx(0.7), 0.0, 0.4)


def test_leave_one_out_likelihood_agrees_with_leaving_points_out_and_fitting_again():
    support = make_support(n_way=2, n_shot=6, noise=1.5)
    (candidate,) = make_candidates(support, "rbf", choose_centre(support, "none"), 3.0, 4.0)
    closed_form = select(support, [candidate], solve(support, [candidate]), 1.0).log_likelihood.item()
    total = 0.0
    for i in range(len(support.y)):
        rest = np.arange(len(support.y)) != i
        K = candidate.kernel(support.x, centre=candidate.centre)
        weight = rest.astype(float)[None]
        posterior, _ = mirror_descent(K, support.y[None], weight=weight, n_way=2, tol=1e-10)
        prob = softmax(posterior.mean[0, :, i] / np.sqrt(1 + 0.4 * posterior.var[0, :, i]))
        total += math.log(float(prob[support.y[i]]))
    assert closed_form == pytest.approx(total, abs=0.02 * len(support.y))


def test_centre_leak_is_the_change_of_the_cosines_when_the_point_leaves_the_centre():
    support = make_support(n_way=3, n_shot=5, offset=4.0)
    (candidate,) = make_candidates(support, "cosine", choose_centre(support, "mean"), 10.0, None)
    (posterior,) = solve(support, [candidate])
    leak = centre_leak(support, candidate, posterior)[0]
    x, i = support.x[0], 7
    others = np.arange(len(x)) != i
    moved = x[others].mean(0)
    before, after = (
        10.0 * cosine_similarity(x[i] - c[None], x[others] - c)[0] for c in (candidate.centre[0, 0], moved)
    )
    exact = (after - before) @ posterior.alpha[0][:, others].T
    assert abs(leak[:, i] - exact).max() < 0.35 * abs(exact).max()


def test_without_a_centre_nothing_leaks():
    support = make_support()
    (candidate,) = make_candidates(support, "cosine", choose_centre(support, "none"), 10.0, None)
    assert not centre_leak(support, candidate, solve(support, [candidate])[0]).any()

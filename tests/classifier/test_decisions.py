import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mirrorshot.classifier import decisions
from mirrorshot.classifier.decisions import (
    conformal_threshold,
    contributions,
    kept_without,
    loo_latents,
    novelty,
    scores_needed,
    suggest,
    uncertainty,
)
from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import GaussianSites, condition, covariance, predict_latent
from mirrorshot.softmax.moments import softmax_moments


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def task():
    """Kernel matrices of 12 examples of three classes and 9 pool points, and the posterior of the examples."""
    x = normal(21, 4)
    K = 5.0 * torch.exp(-0.25 * torch.cdist(x, x).square())[None, None]
    y = torch.arange(12)[None] % 3
    posterior, _ = mirror_descent(K[..., :12, :12], y, n_way=3, tol=1e-12)
    return K, y, posterior


@pytest.mark.parametrize("n_classes", [2, 5, 20])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_uncertainty_agrees_with_a_million_samples(n_classes, scale):
    mean = math.sqrt(scale) * normal(n_classes)
    var = scale * normal(n_classes, seed=1).square()
    found = uncertainty(mean, var)
    total, entropy = torch.zeros(n_classes, dtype=torch.float64), 0.0
    for part in range(10):
        log_p = torch.log_softmax(mean + var.sqrt() * normal(100_000, n_classes, seed=2 + part), -1)
        total += log_p.exp().mean(0) / 10
        entropy += float(-(log_p.exp() * log_p).sum(-1).mean()) / 10
    assert float(found.total) == pytest.approx(float(torch.special.entr(total).sum()), abs=2e-3)
    assert float(found.aleatoric) == pytest.approx(entropy, abs=2e-3)
    assert float(found.epistemic) == pytest.approx(float(torch.special.entr(total).sum()) - entropy, abs=2e-3)


def test_uncertainty_without_variance_is_all_aleatoric():
    mean = normal(6, 4)
    found = uncertainty(mean, torch.zeros_like(mean))
    torch.testing.assert_close(found.aleatoric, torch.special.entr(mean.softmax(-1)).sum(-1), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(found.epistemic, torch.zeros(6, dtype=torch.float64), atol=1e-6, rtol=0.0)


def test_uncertainty_of_a_coin_between_two_far_latents_is_all_epistemic():
    found = uncertainty(torch.zeros(2, dtype=torch.float64), torch.full((2,), 1e6, dtype=torch.float64))
    assert float(found.total) == pytest.approx(math.log(2), abs=1e-6)
    assert float(found.aleatoric) < 0.01


@pytest.mark.parametrize("scale", [1e-6, 1.0, 100.0, 1e4, 1e8])
def test_the_parts_of_uncertainty_stay_in_their_range(scale):
    mean, var = math.sqrt(scale) * normal(50, 5), scale * normal(50, 5, seed=1).square()
    found = uncertainty(mean, var)
    assert all(bool(((part >= 0) & (part <= math.log(5) + 1e-3)).all()) for part in found)
    torch.testing.assert_close(found.total, found.aleatoric + found.epistemic)
    for part, shifted in zip(found, uncertainty(mean + 7.0, var), strict=True):
        torch.testing.assert_close(part, shifted, atol=1e-6, rtol=1e-6)


def test_novelty_is_one_where_nothing_was_learnt_and_falls_with_the_variance():
    mean, prior = normal(8, 3), torch.full((8, 1), 4.0, dtype=torch.float64)
    known, vague, new = (novelty(mean, torch.full_like(mean, var), prior) for var in (0.0, 1.0, 4.0))
    torch.testing.assert_close(known, 1 - mean.softmax(-1).amax(-1), atol=1e-6, rtol=0.0)
    assert bool((known < vague).all())
    assert bool((new == 1.0).all())


def test_novelty_is_one_where_the_prior_has_no_variance():
    zero = torch.zeros(2, 3, dtype=torch.float64)
    assert novelty(zero, zero, zero[:, :1]).tolist() == [1.0, 1.0]


def test_contributions_add_up_to_the_mean(task):
    K, _, posterior = task
    mean, _ = predict_latent(posterior, K[..., :12, 12:], K.diagonal(dim1=-2, dim2=-1)[..., 12:])
    torch.testing.assert_close(contributions(posterior, K[..., :12, 12:]).sum(-2), mean)


def test_loo_latents_are_those_of_a_posterior_without_the_site(task):
    K, _, posterior = task
    mean, var = loo_latents(posterior)
    for i in (0, 7):
        keep = torch.arange(12) != i
        sites = GaussianSites(*(t * keep for t in posterior.sites))
        without = condition(K[..., :12, :12], sites)
        torch.testing.assert_close(mean[:, i], without.mean[..., i])
        torch.testing.assert_close(var[:, i], without.var[..., i])


def test_kept_without_asks_for_another_example_of_the_class():
    y, weight = torch.tensor([0, 0, 1, 2]), torch.tensor([1.0, 1.0, 2.0, 1.0])
    assert kept_without(y, weight, weight, 3).tolist() == [True, True, False, False]
    assert kept_without(y, weight, torch.ones(4), 3).tolist() == [True, True, True, False]


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.91, 11), (0.95, 19), (0.99, 99)])
def test_scores_needed_is_the_fewest_that_can_leave_a_label_out(coverage, needed):
    assert scores_needed(coverage) == needed
    assert (needed + 1) * (1 - coverage) >= 1 - 1e-9 > needed * (1 - coverage) - 1e-9


def test_the_conformal_threshold_is_the_order_statistic_where_the_position_is_whole():
    score = normal(39).numpy()
    for j in (2, 4, 10, 38):
        found = conformal_threshold(score, np.ones_like(score), 1 - j / 40)
        assert found == pytest.approx(np.sort(score)[j - 1], abs=1e-9)


def test_the_conformal_threshold_covers_what_it_says_on_uniform_scores():
    drawn = np.random.default_rng(0).random((2000, 25))
    ones = np.ones(25)
    # a new uniform score reaches a threshold t with probability 1 - t
    covered = [1 - conformal_threshold(row, ones, 0.9) for row in drawn]
    assert sum(covered) / len(covered) == pytest.approx(0.9, abs=0.004)


def test_a_weight_of_two_is_two_scores_in_the_threshold():
    score, weight = normal(12).numpy(), np.tile([1.0, 2.0, 3.0], 4)
    copies = score.repeat(weight.astype(int))
    for coverage in np.linspace(0.05, 0.95, 37).tolist():
        expected = conformal_threshold(copies, np.ones_like(copies), coverage)
        assert conformal_threshold(score, weight, coverage) == pytest.approx(expected, abs=1e-9)


def greedy_by_hand(K, posterior, k):
    """The same choice from full posterior covariances, conditioned again from scratch after each point."""
    N, M = posterior.mean.shape[-1], K.shape[-1] - posterior.mean.shape[-1]
    mean = predict_latent(posterior, K[..., :N, N:], K.diagonal(dim1=-2, dim2=-1)[..., N:])[0][0]
    precision = torch.cat([posterior.sites.precision, K.new_zeros(1, 3, M)], -1)
    chosen = []
    for _ in range(k):
        after = condition(K, GaussianSites(torch.zeros_like(precision), precision))
        S = covariance(K, after)[0, :, N:, N:]
        v = S.diagonal(dim1=-2, dim2=-1)
        w = softmax_moments(mean.mT, v.mT).curvature.mT
        gains = []
        for s in range(M):
            reduced = S - S[:, :, s : s + 1] @ S[:, s : s + 1, :] / (1 / w[:, s] + v[:, s])[:, None, None]
            gains.append(float((w * (v - reduced.diagonal(dim1=-2, dim2=-1))).sum()) if s not in chosen else -1.0)
        chosen.append(max(range(M), key=gains.__getitem__))
        precision[0, :, N + chosen[-1]] = 1e9  # its latents are known
    return chosen


def test_suggest_agrees_with_conditioning_from_scratch(task, monkeypatch):
    K, _, posterior = task
    expected = greedy_by_hand(K, posterior, 9)
    arguments = K[..., 12:, 12:], K[..., :12, 12:], posterior, 9
    assert suggest(*arguments) == expected
    assert sorted(expected) == list(range(9))
    monkeypatch.setattr(decisions.acquisition, "_CHUNK_ELEMENTS", 60)  # two points at a time
    assert suggest(*arguments) == expected


def test_suggest_takes_copies_last(task):
    K, _, posterior = task
    for point in range(12, 20):
        rows = torch.tensor([*range(12), point, point, point, point + 1, point + 1, point + 1])
        again = K[..., rows[:, None], rows]
        first, second = suggest(again[..., 12:, 12:], again[..., :12, 12:], posterior, 2)
        assert first // 3 != second // 3


def test_the_threshold_of_a_counted_risk_is_the_lowest_that_passes_when_all_are_tried():
    rng = np.random.default_rng(1)
    for _ in range(50):
        top = rng.random(60)
        wrong = rng.random(60) > top + 0.3
        threshold, risk = decisions.risk_threshold(top, wrong, np.ones(60), 0.1, 0.1)
        passing = []
        for t in sorted(top.tolist(), reverse=True):
            k, e = int((top >= t).sum()), int((wrong & (top >= t)).sum())
            is_good = stats.binom.cdf(e, k, 0.1) <= 0.1
            if not is_good and k >= decisions.examples_needed(0.1, 0.1):
                break
            passing += [t] if is_good else []
        assert threshold == (min(passing) if passing else float("inf"))
        assert risk <= 0.1 or not passing


@given(seed=st.integers(0, 10_000), n=st.integers(0, 30), target=st.floats(0.01, 0.6), has_ties=st.booleans())
def test_the_threshold_of_an_expected_risk_is_the_lowest_that_passes_when_all_are_tried(seed, n, target, has_ties):
    rng = np.random.default_rng(seed)
    top = np.sqrt(rng.random(n))
    top = top.round(1) if has_ties else top
    weight = rng.choice([0.5, 1.0, 2.0], size=n)
    passing = [t for t in top if np.average(1 - top[top >= t], weights=weight[top >= t]) <= target + 1e-12]
    threshold, risk = decisions.expected_risk_threshold(top, weight, target)
    assert threshold == min([*passing, 1 - target])
    assert risk <= target + 1e-12


def test_errors_keep_to_the_expected_risk_where_probabilities_are_right():
    rng = np.random.default_rng(0)
    risks = []
    for _ in range(300):
        threshold, _ = decisions.expected_risk_threshold(rng.random(25), np.ones(25), 0.2)
        risks.append((1 - threshold) / 2)  # a query of probability p, uniform, is wrong with probability 1 - p
    assert 0.15 < np.mean(risks) < 0.2


def test_the_tail_of_the_errors_is_that_of_the_binomial():
    top, weight = np.full(12, 0.8), np.ones(12)
    for e in range(13):
        tail = decisions.errors_tail(top, np.arange(12) < e, weight)
        assert tail == pytest.approx(stats.binom.sf(e - 1, 12, 0.2))
    assert decisions.errors_tail(top[:0], np.zeros(0, dtype=bool), weight[:0]) == 1.0


def test_the_confidence_of_a_risk_holds_over_draws():
    rng = np.random.default_rng(0)
    broken = 0
    for _ in range(400):
        top = rng.random(100)
        wrong = rng.random(100) > top  # the risk above t is (1 - t) / 2
        threshold, _ = decisions.risk_threshold(top, wrong, np.ones(100), 0.2, 0.1)
        broken += (1 - min(threshold, 1.0)) / 2 > 0.2
    assert broken / 400 < 0.13

"""Scores agree with the metrics of the package, and their uncertainty with simulations and with scipy."""

import re

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from mirrorshot.metrics import calibration_bins, expected_calibration_error
from mirrorshot.tool.scores import (
    FEW,
    bin_of,
    bootstrap,
    calibration_in_words,
    ece_if_calibrated,
    ece_interval,
    ece_of,
    referral_of,
    scores_of,
    verdict,
    wilson,
)

CLASSES = ["a", "b", "c"]


def drawn(n, seed=0, power=1.0):
    """Calibrated probabilities and labels drawn from them; `power` above one makes them over-confident."""
    rng = np.random.default_rng(seed)
    prob = rng.dirichlet([0.5] * 3, n)
    y = np.array([rng.choice(3, p=row) for row in prob])
    claimed = prob**power
    return claimed / claimed.sum(1, keepdims=True), y


def score(prob, y):
    labels = np.array([CLASSES[c] for c in y], dtype=np.str_)
    return scores_of(CLASSES, labels, np.log(prob), np.zeros(len(y), dtype=bool))


def test_numbers_are_those_of_the_metrics():
    prob, y = drawn(200)
    found = score(prob, y)
    assert found.ece == pytest.approx(
        float(expected_calibration_error(calibration_bins(torch.tensor(prob), torch.tensor(y))))
    )
    assert found.accuracy == (prob.argmax(1) == y).mean()
    assert found.nll == pytest.approx(-np.log(prob[np.arange(200), y]).mean())
    assert found.confidence == pytest.approx(prob.max(1).mean())
    assert np.array(found.confusion).sum(1).tolist() == np.bincount(y, minlength=3).tolist()
    assert np.trace(found.confusion) == found.accuracy * 200


def test_wilson_is_that_of_scipy():
    for n_right, n in ((0, 5), (9, 9), (37, 50)):
        theirs = binomtest(n_right, n).proportion_ci(method="wilson")
        assert wilson(n_right, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_the_bootstrap_of_a_mean_has_its_standard_error():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap(400, lambda rows: values[rows].mean(1))
    assert (high - low) / (2 * 1.96 * values.std() / 20) == pytest.approx(1.0, abs=0.1)
    assert bootstrap(400, lambda rows: values[rows].mean(1)) == (low, high)


def test_intervals_hold_the_accuracy_of_other_items():
    whole_prob, whole_y = drawn(20_000, seed=1)
    truth = (whole_prob.argmax(1) == whole_y).mean()
    hits = [low <= truth <= high for low, high in (score(*drawn(60, seed)).intervals["accuracy"] for seed in range(60))]
    assert np.mean(hits) >= 0.85


@pytest.mark.parametrize("power", [1.0, 1.5, 4.0, 0.5])
def test_intervals_hold_the_ece_of_other_items(power):
    def gaps(n, seed):
        prob, y = drawn(n, seed, power)
        sure = prob.max(1)
        return sure - (prob.argmax(1) == y), bin_of(sure), sure

    whole, bins, _ = gaps(10_000, 99)
    truth = 0.0 if power == 1.0 else ece_of(whole, bins)
    hits = []
    for seed in range(30):
        gap, bins, sure = gaps(100, seed)
        low, high = ece_interval(gap, bins, ece_if_calibrated(sure)[1])
        hits.append(low <= truth <= high)
    assert np.mean(hits) >= 0.7  # 0.95 is not reached with 100 items in 15 bins


def test_an_ece_lies_in_its_interval():
    for n in (3, 20, 200):
        for power in (1.0, 4.0):
            found = score(*drawn(n, n, power))
            assert 0.0 <= found.intervals["ece"].low <= found.ece <= found.intervals["ece"].high


def test_calibrated_probabilities_have_the_error_of_chance():
    errors = [score(*drawn(80, seed)).ece for seed in range(40)]
    mean, most = ece_if_calibrated(drawn(80)[0].max(1))
    assert np.mean(errors) == pytest.approx(mean, abs=0.01)
    assert np.mean(np.array(errors) <= most) >= 0.85


def test_the_error_of_chance_of_few_sure_answers_is_no_less_than_its_mean():
    mean, most = ece_if_calibrated(np.full(20, 0.9995))
    assert 0.0 < mean <= most


def test_words_say_whether_the_error_is_more_than_chance():
    assert "no sign of wrong probabilities" in calibration_in_words(score(*drawn(200)))
    assert "are over-confident" in calibration_in_words(score(*drawn(400, power=6.0)))
    assert "are too modest" in calibration_in_words(score(*drawn(400, power=0.3)))


def test_a_referral_is_the_smallest_that_reaches_the_target():
    confidence = np.array([0.9, 0.8, 0.8, 0.6])
    found = referral_of(confidence, np.array([True, True, False, True]), target=1.0)
    assert (found.share, found.accuracy, found.threshold) == (0.75, 1.0, 0.9)  # equal confidences stay together
    assert referral_of(confidence, np.array([False, True, True, True])) is None
    assert referral_of(confidence, np.ones(4, dtype=bool)).share == 0.0


def test_few_items_are_said_to_be_few():
    assert f"fewer than {FEW}" in verdict(score(*drawn(FEW - 1)))
    said = verdict(score(*drawn(400)), "images")
    assert "fewer" not in said
    assert "of 400 images" in said
    assert re.search(r"When it says 90 % it is right in \d+ % \[\d+, \d+\] of \d+ cases", said)
    assert re.search(r"to a person \(those below 0\.\d+\) and \d+ % \[\d+, 100\] of the other \d+ are right", said)


def test_a_band_of_ten_predictions_has_a_wide_interval():
    log_prob = np.log(np.tile([0.9, 0.1], (10, 1)))
    found = scores_of(["a", "b"], np.array(["a"] * 9 + ["b"]), log_prob, np.zeros(10, bool))
    n, confidence, accuracy, interval = found.band
    assert (n, round(confidence, 6), accuracy) == (10, 0.9, 0.9)
    assert interval == wilson(9, 10)
    assert "it is right in 90 % [60, 98] of 10 cases" in verdict(found)
    assert found.record()["band"]["n_items"] == 10
    assert scores_of(["a", "b"], np.array(["a"] * 9), log_prob[:9], np.zeros(9, bool)).band is None


def test_a_threshold_is_not_rounded_up_to_one():
    log_prob = np.log(np.array([[0.99999, 1e-5]] * 5 + [[0.99998, 2e-5]]))
    said = verdict(scores_of(["a", "b"], np.array(["a"] * 5 + ["b"]), log_prob, np.zeros(6, bool)))
    assert "those below 0.9999)" in said


def test_bins_are_closed_above():
    assert bin_of(np.array([0.0, 1 / 15, 0.0667, 1.0])).tolist() == [0, 0, 1, 14]
    assert ece_of(np.array([0.1, -0.1, 0.3]), np.array([2, 2, 5])) == pytest.approx(0.1)

"""The expected number of wrong answers (`static/expectation.js`), in a browser."""

import numpy as np
import pytest

from .test_browser import browser, page, pytestmark  # noqa: F401

CALL = """async ([name, ...given]) => (await import("./static/expectation.js"))[name](...given)"""


@pytest.fixture
def call(page):  # noqa: F811
    return lambda name, *given: page.evaluate(CALL, [name, *given])


def checks(probability, n_right, n_wrong):
    return [{"probability": probability, "right": i < n_right} for i in range(n_right + n_wrong)]


def test_checks_move_the_expectation_and_narrow_its_interval(call):
    probabilities = np.linspace(0.7, 0.99, 300).tolist()
    before = call("expectation", probabilities, [])
    assert before["low"] < before["mean"] < np.mean(probabilities) < before["high"]
    good, bad = (call("expectation", probabilities, checks(0.9, *counts)) for counts in ((40, 0), (20, 20)))
    assert bad["mean"] < before["mean"] < good["mean"]
    for after in (good, bad):
        assert after["high"] - after["low"] < before["high"] - before["low"]
    many = call("expectation", probabilities, checks(0.9, 360, 40))  # as right as their probabilities say
    assert many["mean"] == pytest.approx(np.mean(probabilities), abs=0.02)
    assert call("expectation", [], []) is None


def test_the_distribution_is_that_of_an_independent_sum(call):
    """The posterior of the overconfidence on a finer grid, with NumPy."""
    p, right = np.array([0.6, 0.9, 0.95, 0.99]), np.array([True, False, True, True])
    d = np.linspace(-3, 6, 2001)
    q = 1 / (1 + np.exp(d - np.log(p / (1 - p))[:, None]))
    weights = np.exp(-0.5 * ((d - 0.7) / 1.3) ** 2) * np.where(right[:, None], q, 1 - q).prod(0)
    expected = (weights * q).sum(1) / weights.sum()
    given = [{"probability": float(a), "right": bool(b)} for a, b in zip(p, right, strict=True)]
    for share, mean in zip(p, expected, strict=True):
        assert call("expectation", [float(share)], given)["mean"] == pytest.approx(mean, abs=2e-3)


def test_a_threshold_keeps_the_expected_errors_below_a_share(call):
    probabilities = np.linspace(0.5, 0.999, 400).tolist()
    found = call("thresholdFor", probabilities, [], 0.05)
    above = [p for p in probabilities if p >= found / 100]
    assert 1 - call("expectation", above, [])["mean"] <= 0.05
    assert call("thresholdFor", probabilities, checks(0.95, 10, 10), 0.05) > found
    assert call("thresholdFor", [0.6], [], 0.01) == 99

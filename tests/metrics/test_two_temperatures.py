import math

import numpy as np
import pytest
import torch

from mirrorshot.metrics import (
    PAPER_GRID,
    apply_temperature,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
    minimise_over_temperature,
    search_two_temperatures,
    temperature_errors,
)
from mirrorshot.types import InvalidInputError


def errors_by_hand(log_prob, y, T):
    bins = calibration_bins(apply_temperature(log_prob, T).exp(), y)
    return float(expected_calibration_error(bins)), float(maximum_calibration_error(bins))


def test_the_grid_is_that_of_the_released_code():
    values = np.concatenate([np.arange(0.05, 0.35, 0.005), np.arange(1.0, 2.0, 0.005)])
    assert len(PAPER_GRID) == 260
    np.testing.assert_allclose(PAPER_GRID, values[:260], atol=1e-12)


def test_errors_of_many_temperatures_are_those_of_each(predictions):
    prob, y = predictions(40, 9)
    temperatures = (0.05, 0.3, 1.0, 1.7, 30.0)
    ece, mce = temperature_errors(prob.log(), y, temperatures)
    for i, T in enumerate(temperatures):
        assert (float(ece[i]), float(mce[i])) == pytest.approx(errors_by_hand(prob.log(), y, T), abs=1e-9)


def test_errors_do_not_depend_on_how_the_grid_is_cut(predictions, monkeypatch):
    prob, y = predictions(30)
    whole = temperature_errors(prob.log(), y)
    monkeypatch.setattr("mirrorshot.metrics.two_temperatures._CHUNK", {"cpu": 60})
    for a, b in zip(whole, temperature_errors(prob.log(), y), strict=True):
        torch.testing.assert_close(a, b)


def test_padding_and_absent_classes_are_left_out(predictions):
    prob, y = predictions(50, n_way=4)
    wide = torch.cat([prob.log(), torch.full((50, 1), -torch.inf, dtype=prob.dtype)], 1)
    weight = torch.ones(50)
    weight[:7], wide[:7], = 0.0, torch.nan  # fmt: skip
    plain = temperature_errors(prob.log()[7:], y[7:], (0.5, 2.0))
    for a, b in zip(plain, temperature_errors(wide, y, (0.5, 2.0), weight=weight), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("n_way", [2, 3, 5, 15])
def test_a_confidence_on_an_edge_falls_into_the_bin_below(n_way):
    log_prob = torch.full((10, n_way), 1 / n_way).log()
    y = torch.zeros(10, dtype=torch.int64)
    assert temperature_errors(log_prob, y, [1.0]).ece.item() == pytest.approx(1 - 1 / n_way, abs=1e-6)


def test_the_search_finds_the_best_pairs_of_all(predictions):
    prob, y = predictions(200)
    sharpness, second = (0.5, 1.0, 3.0), (0.4, 1.0, 1.9)
    found = search_two_temperatures(
        lambda tau: apply_temperature(prob.log(), tau) * 1.0, y, likelihood=sharpness, predictive=second
    )
    every = {(a, b): errors_by_hand(apply_temperature(prob.log(), a), y, b) for a in sharpness for b in second}
    for k, pair in enumerate(found):
        best = min(every, key=lambda key: every[key][k])
        assert pair[:2] == best
        assert pair[2:] == pytest.approx(every[best], abs=1e-9)


def test_the_search_says_how_far_it_is(predictions):
    prob, y = predictions(5)
    told = []
    search_two_temperatures(
        lambda _: prob.log(), y, likelihood=(1.0, 2.0), predictive=(1.0,), progress=lambda *n: told.append(n)
    )
    assert told == [(1, 2), (2, 2)]


@pytest.mark.parametrize("target", [0.06, 0.5, 1.0, 7.0])
def test_a_minimum_over_temperatures_is_found(target):
    assert minimise_over_temperature(lambda T: abs(math.log(T / target))) == pytest.approx(target, rel=5e-3)


def test_wrong_temperatures_are_explained(predictions):
    prob, y = predictions(5)
    for wrong in ([], [0.0], [-1.0], [math.inf], [math.nan]):
        with pytest.raises(InvalidInputError, match="temperatures that are positive and finite"):
            temperature_errors(prob.log(), y, wrong)
    with pytest.raises(InvalidInputError, match="at least one prediction"):
        temperature_errors(prob.log()[:0], y[:0])
    with pytest.raises(InvalidInputError, match="to be a number at every temperature"):
        minimise_over_temperature(lambda _: math.nan)

"""Every metric of NumPy arrays: NumPy arrays or numbers, without warnings, and those of torch tensors."""

import numpy as np
import pytest

from mirrorshot import metrics
from mirrorshot.types import InvalidInputError


def log(prob):
    return np.log(prob) if isinstance(prob, np.ndarray) else prob.log()


def equal_mass_bins(prob, y, weight):
    return metrics.calibration_bins(prob, y, 7, weight, equal_mass=True)


def of_bins(error):
    return lambda prob, y, weight: error(metrics.calibration_bins(prob, y, 15, weight))


METRICS = {
    "accuracy": metrics.accuracy,
    "nll": metrics.nll,
    "brier": metrics.brier,
    "bins": lambda prob, y, weight: metrics.calibration_bins(prob, y, 15, weight),
    "means of bins": of_bins(lambda bins: (bins.confidence, bins.accuracy, bins.share)),
    "equal mass": equal_mass_bins,
    "class bins": lambda prob, y, weight: metrics.class_calibration_bins(prob, y, 15, weight),
    "ece": of_bins(metrics.expected_calibration_error),
    "mce": of_bins(metrics.maximum_calibration_error),
    "class_ece": lambda prob, y, weight: metrics.class_calibration_error(
        metrics.class_calibration_bins(prob, y, 15, weight)
    ),
    "debiased_ce": of_bins(metrics.debiased_calibration_error),
    "debiased_ece": of_bins(lambda bins: metrics.debiased_calibration_error(bins, norm=1)),
    "parts": of_bins(metrics.brier_decomposition),
    "aurc": metrics.aurc,
    "excess_aurc": metrics.excess_aurc,
    "correctness_auroc": metrics.correctness_auroc,
    "risk": metrics.risk_coverage,
    "auroc": lambda prob, y, weight: metrics.auroc(prob[..., 0], prob[..., 1], weight, weight),
    "statistics": lambda prob, y, weight: metrics.task_statistics(prob, y, 15, weight)[:4],
    "temperature": lambda prob, y, weight: metrics.fit_temperature(log(prob), y, weight),
    "tempered": lambda prob, y, weight: metrics.apply_temperature(log(prob), 0.7),
    "grid": lambda prob, y, weight: metrics.temperature_errors(log(prob), y, [0.5, 1.0, 2.0], weight=weight),
}


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    prob = rng.dirichlet(np.full(4, 0.6), (20, 15))
    y = np.where(rng.random((20, 15)) < 0.5, prob.argmax(-1), rng.integers(4, size=(20, 15)))
    return prob, y, rng.integers(3, size=(20, 15)).astype(float)


def flat(found):
    """All numbers of a result in one vector."""
    return np.concatenate([np.ravel(np.asarray(part)) for part in (found if isinstance(found, tuple) else (found,))])


@pytest.mark.parametrize("name", METRICS)
def test_arrays_give_arrays_and_the_numbers_of_tensors(case, name):
    torch = pytest.importorskip("torch")
    found = METRICS[name](*case)
    parts = found if isinstance(found, tuple) else (found,)
    assert not any(isinstance(part, torch.Tensor) for part in parts)
    expected = METRICS[name](*map(torch.from_numpy, case))
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-12, atol=1e-12)


def test_the_ece_is_the_mean_gap(case):
    prob, y, _ = case
    confidence, right = prob.max(-1).ravel(), (prob.argmax(-1) == y).ravel()
    bin_of = np.ceil(confidence * 15).astype(int)
    gaps = [abs((confidence - right)[bin_of == b].sum()) for b in range(1, 16)]
    assert metrics.expected_calibration_error(metrics.calibration_bins(prob, y)) == pytest.approx(
        sum(gaps) / 300, abs=1e-12
    )


def test_a_right_class_of_probability_zero_is_infinitely_bad():
    assert metrics.nll(np.array([[1.0, 0.0]]), np.array([1])) == np.inf


def test_the_bootstrap_takes_a_generator_of_numpy():
    rng = np.random.default_rng(0)
    prob, y = np.broadcast_to([0.8, 0.2], (200, 5, 2)), (rng.random((200, 5)) > 0.8).astype(int)
    statistics = metrics.task_statistics(prob, y)
    found = metrics.bootstrap_intervals(statistics, rng)["accuracy"]
    assert found.low < 0.8 < found.high
    low, high = metrics.bootstrap_bins(statistics, rng)
    assert low[11] < 0.8 < high[11]
    assert np.isnan(low[0])


def test_two_temperatures_are_found():
    log_prob, y = np.log([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0, 0, 1, 1])
    found = metrics.search_two_temperatures(lambda tau: log_prob, y, likelihood=[1.0], predictive=[1.0, 2.0])
    assert found.by_ece[:2] == (1.0, 2.0)


@pytest.mark.usefixtures("as_for_users")
def test_wrong_arrays_are_explained():
    with pytest.raises(InvalidInputError, match="`prob` to be floating point and `y` integer, but got int64 and bool"):
        metrics.nll(np.ones((1, 1), dtype=np.int64), np.array([True]))
    with pytest.raises(InvalidInputError, match=r"got sums from 2 to 2\. Apply a softmax"):
        metrics.nll(np.ones((1, 2)), np.array([0]))

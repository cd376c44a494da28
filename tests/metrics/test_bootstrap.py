import time

import numpy as np
import pytest
import torch

from mirrorshot.metrics import (
    accuracy,
    bootstrap_bins,
    bootstrap_intervals,
    brier,
    brier_decomposition,
    calibration_bins,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    nll,
    task_statistics,
)
from mirrorshot.metrics.bootstrap import METRICS, _draw_counts
from mirrorshot.types import InvalidInputError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def by_functions(prob, y):
    """Every metric of pooled predictions by its own function."""
    bins = calibration_bins(prob, y)
    metrics = {
        **{f.__name__: f(prob.flatten(0, 1), y.flatten()) for f in (accuracy, nll, brier)},
        "ece": expected_calibration_error(bins),
        "mce": maximum_calibration_error(bins),
        "debiased_ce": debiased_calibration_error(bins),
        "debiased_ece": debiased_calibration_error(bins, norm=1),
        **brier_decomposition(bins)._asdict(),
    }
    return {name: float(value) for name, value in metrics.items()}


def test_values_are_those_of_all_tasks(predictions):
    prob, y = predictions(20, 15)
    expected = by_functions(prob, y)
    found = bootstrap_intervals(task_statistics(prob, y), generator())
    assert set(found) == set(METRICS) == set(expected)
    for name, interval in found.items():
        assert interval.value == pytest.approx(expected[name], abs=1e-12), name


def test_intervals_agree_with_metrics_of_each_resample(predictions):
    prob, y = predictions(12, 15)
    found = bootstrap_intervals(task_statistics(prob, y), generator(), n_resamples=81, level=0.9)
    values = [
        by_functions(prob.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
        for counts in _draw_counts(12, 81, generator()).long()
    ]
    for name, interval in found.items():
        low, high = np.quantile([v[name] for v in values], [0.05, 0.95])  # 80 intervals: on the 5th and the 77th
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9), name


def test_each_resample_has_as_many_tasks_as_there_are():
    counts = _draw_counts(50, 2000, generator())
    assert counts.sum(1).tolist() == [50] * 2000
    assert float(counts.mean()) == 1
    assert float(counts.var()) == pytest.approx(1 - 1 / 50, rel=0.02)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Tasks of different difficulty; bootstrapping queries instead would hold it far less often."""
    g, truth, hits = generator(1), 0.7, 0
    for _ in range(300):
        p_right = 0.4 + 0.6 * torch.rand(100, 1, generator=g, dtype=torch.float64)
        y = (torch.rand(100, 15, generator=g) > p_right).long()
        prob = torch.tensor([0.8, 0.2], dtype=torch.float64).expand(100, 15, 2)
        found = bootstrap_intervals(task_statistics(prob, y), g, 400, metrics=["accuracy"])["accuracy"]
        hits += found.low <= truth <= found.high
    assert 0.91 <= hits / 300 <= 0.98


def test_intervals_of_3000_tasks_take_less_than_a_minute(predictions):
    prob, y = predictions(3000, 75, dtype=torch.float32)
    start = time.perf_counter()
    bootstrap_intervals(task_statistics(prob, y), generator(), n_resamples=1000)
    assert time.perf_counter() - start < 60


def test_padding_is_left_out(predictions):
    prob, y = predictions(6, 10)
    weight = torch.ones(6, 10)
    weight[2], weight[4, 5:] = 0, 0
    rubbish = torch.where(weight[..., None] > 0, prob, torch.nan)
    found = task_statistics(rubbish, y, weight=weight)
    assert found.weight.tolist() == [10, 10, 0, 10, 5, 10]
    assert float(found.correct[4]) == float((prob[4, :5].argmax(-1) == y[4, :5]).sum())
    kept = [0, 1, 3, 4, 5]
    alone = task_statistics(rubbish[kept], y[kept], weight=weight[kept])
    assert bootstrap_intervals(found, generator()) == bootstrap_intervals(alone, generator())


def test_infinite_likelihoods_give_infinite_ends_and_no_nan():
    prob = torch.tensor([0.5, 0.5]).repeat(10, 4, 1)
    prob[0, 0] = torch.tensor([1.0, 0.0])
    found = bootstrap_intervals(task_statistics(prob, torch.ones(10, 4, dtype=torch.long)), generator())["nll"]
    assert found.value == found.high == torch.inf
    assert found.low == pytest.approx(np.log(2))


def test_the_generator_decides(predictions):
    statistics = task_statistics(*predictions(9, 15))
    assert bootstrap_intervals(statistics, generator(1)) == bootstrap_intervals(statistics, generator(1))
    assert bootstrap_intervals(statistics, generator(1)) != bootstrap_intervals(statistics, generator(2))


def test_pieces_of_resamples_are_resamples(predictions, monkeypatch):
    statistics = task_statistics(*predictions(9, 15))
    whole = bootstrap_intervals(statistics, generator(), 100)
    monkeypatch.setattr("mirrorshot.metrics.bootstrap._MAX_COUNTS", 9 * 30)
    for name, interval in bootstrap_intervals(statistics, generator(), 100).items():
        assert interval == pytest.approx(whole[name], abs=1e-12)


@pytest.mark.usefixtures("as_for_users")
def test_wrong_arguments_are_explained(predictions):
    prob, y = predictions(4, 15)
    statistics = task_statistics(prob, y)
    with pytest.raises(InvalidInputError, match=r"\(T, M, C\), but got \(15, 5\)"):
        task_statistics(prob[0], y[0])
    with pytest.raises(InvalidInputError, match=r"but got 1 and 0\.95"):
        bootstrap_intervals(statistics, generator(), 1)
    with pytest.raises(InvalidInputError, match=r"but got 10 and 1\.5"):
        bootstrap_bins(statistics, generator(), 10, 1.5)
    with pytest.raises(InvalidInputError, match=r"but got \['f1'\]"):
        bootstrap_intervals(statistics, generator(), metrics=["f1"])
    with pytest.raises(InvalidInputError, match="but got 4 without"):
        bootstrap_intervals(statistics._replace(weight=torch.zeros(4, dtype=torch.float64)), generator())

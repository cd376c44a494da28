import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrorshot.metrics import (
    SeparationSummary,
    Summary,
    accuracy,
    adaptive_calibration_bins,
    aurc,
    auroc,
    brier,
    brier_decomposition,
    calibration_bins,
    class_calibration_bins,
    class_calibration_error,
    correctness_auroc,
    debiased_calibration_error,
    excess_aurc,
    expected_calibration_error,
    maximum_calibration_error,
    nll,
)
from mirrorshot.types import InvalidInputError


def one_shot(prob, y, weight=None, n_bins=15):
    """Every metric of pooled predictions by its function."""
    bins = calibration_bins(prob, y, n_bins, weight)
    parts = brier_decomposition(bins)
    metrics = {
        "accuracy": accuracy(prob, y, weight),
        "nll": nll(prob, y, weight),
        "brier": brier(prob, y, weight),
        "ece": expected_calibration_error(bins),
        "mce": maximum_calibration_error(bins),
        "class_ece": class_calibration_error(class_calibration_bins(prob, y, n_bins, weight)),
        "debiased_ce": debiased_calibration_error(bins),
        "debiased_ece": debiased_calibration_error(bins, norm=1),
        "reliability": parts.reliability,
        "resolution": parts.resolution,
        "uncertainty": parts.uncertainty,
        "adaptive_ece": expected_calibration_error(adaptive_calibration_bins(prob, y, n_bins, weight)),
        "aurc": aurc(prob, y, weight),
        "excess_aurc": excess_aurc(prob, y, weight),
        "correctness_auroc": correctness_auroc(prob, y, weight),
    }
    return {name: float(value) for name, value in metrics.items()}


def streamed(*batches, **settings):
    summary = Summary(**settings)
    for batch in batches:
        summary.update(*batch)
    return summary


def assert_equal(found, expected, tolerance=1e-9):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=tolerance, nan_ok=True), name


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(2, 6), st.integers(0, 1000))
def test_stream_equals_one_shot_in_whatever_pieces(sizes, n_way, seed):
    g = torch.Generator().manual_seed(seed)
    prob = torch.softmax(3 * torch.randn(sum(sizes), n_way, generator=g, dtype=torch.float64), -1)
    y = torch.randint(n_way, (sum(sizes),), generator=g)
    summary = streamed(*zip(prob.split(sizes), y.split(sizes), strict=True), n_bins=10)
    assert_equal(summary.compute(), one_shot(prob, y, n_bins=10))


def test_stream_of_padded_tasks_equals_repetitions(padded):
    (prob, y, weight), repeated = padded(6, 30)
    summary = streamed(*((prob[i : i + 2], y[i : i + 2], weight[i : i + 2]) for i in (0, 2, 4)))
    assert_equal(summary.compute(), one_shot(*repeated))


def test_stream_of_single_precision_equals_one_shot(predictions):
    prob, y = predictions(4, 75, dtype=torch.float32)
    summary = streamed(*zip(prob, y, strict=True))
    assert_equal(summary.compute(), one_shot(prob.flatten(0, 1), y.flatten()), 1e-6)


def test_merged_summaries_equal_one_stream(predictions):
    prob, y = predictions(5, 40)
    left, right = streamed((prob[:2], y[:2])), streamed((prob[2:], y[2:]))
    before = right.compute()
    left.merge(right)
    left.merge(Summary())
    assert_equal(left.compute(), one_shot(prob.flatten(0, 1), y.flatten()))
    left.update(prob, y)
    assert right.compute() == before


def test_an_empty_summary_takes_over_what_it_merges(predictions):
    prob, y = predictions(40)
    summary, other = Summary(), streamed((prob, y))
    summary.merge(other)
    assert summary.compute() == other.compute()
    summary.update(prob[:10], y[:10])
    assert len(other.stored) == 1


def test_without_ranking_nothing_is_stored(predictions):
    prob, y = predictions(40)
    summary = streamed((prob, y), ranking=False)
    assert summary.stored == []
    assert set(one_shot(prob, y)) - set(summary.compute()) == {
        "adaptive_ece",
        "aurc",
        "excess_aurc",
        "correctness_auroc",
    }


def test_small_bins_are_left_out_of_the_maximum(predictions):
    prob, y = predictions(300)
    expected = float(maximum_calibration_error(calibration_bins(prob, y), 30))
    assert streamed((prob, y), min_count=30).compute()["mce"] == pytest.approx(expected)
    assert math.isnan(streamed((prob, y), min_count=301).compute()["mce"])


def test_a_summary_keeps_no_gradients(predictions):
    prob, y = predictions(10)
    summary = streamed((prob.requires_grad_(), y))
    assert not summary.sums.requires_grad
    assert not summary.stored[0].confidence.requires_grad


def test_a_wrong_update_changes_nothing(predictions):
    prob, y = predictions(10)
    summary = streamed((prob, y))
    before = summary.compute()
    with pytest.raises(InvalidInputError, match="got sums from"):
        summary.update(2 * prob, y)
    with pytest.raises(InvalidInputError, match="of 5 classes as before, but got 3"):
        summary.update(*predictions(10, n_way=3))
    assert summary.compute() == before


def test_wrong_uses_are_explained(predictions):
    with pytest.raises(InvalidInputError, match="at least one prediction, but `update` was not called"):
        Summary().compute()
    with pytest.raises(InvalidInputError, match=r"\(15, 0, True\), but got one with \(10, 0, True\)"):
        Summary().merge(streamed(predictions(10), n_bins=10))


def test_separation_equals_one_shot():
    g = torch.Generator().manual_seed(0)
    positive, negative = torch.randn(50, generator=g) + 1, torch.randn(30, generator=g).round(decimals=1)
    weight = torch.rand(50, generator=g)
    first, second = SeparationSummary(), SeparationSummary()
    first.update(positive[:20], positive_weight=weight[:20])
    second.update(positive[20:].reshape(5, 6), negative, weight[20:].reshape(5, 6))
    first.merge(second)
    assert first.compute() == pytest.approx(float(auroc(positive, negative, weight)), abs=1e-12)


def test_separation_of_nothing_is_refused():
    summary = SeparationSummary()
    summary.update(positive=torch.ones(2))
    with pytest.raises(InvalidInputError, match="at least one score in `negative`"):
        summary.compute()

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from mirrorshot.metrics import (
    CalibrationBins,
    brier_decomposition,
    calibration_bins,
    class_calibration_bins,
    class_calibration_error,
    debiased_calibration_error,
    debiased_squared_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from mirrorshot.types import InvalidInputError


def members(prob, y, n_bins):
    """(confidence, right) of the predictions in each bin of equal width that has any."""
    confidence, label = prob.reshape(-1, prob.shape[-1]).max(-1)
    right = (label == y.flatten()).numpy()
    place = np.clip(np.ceil(confidence.numpy() * n_bins).astype(int) - 1, 0, n_bins - 1)
    return [(confidence.numpy()[place == b], right[place == b]) for b in range(n_bins) if (place == b).any()]


def two_classes(pairs):
    """Predictions of two classes with these probabilities of the first, and whether it is right."""
    p = torch.tensor([p for p, _ in pairs], dtype=torch.float64)
    return torch.stack([p, 1 - p], -1), torch.tensor([int(not first) for _, first in pairs])


rows = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_brier_parts_follow_their_definitions(predictions, n_bins):
    prob, y = predictions(4, 75)
    parts = brier_decomposition(calibration_bins(prob, y, n_bins))
    n, average = 300, float((prob.argmax(-1) == y).double().mean())
    groups = members(prob, y, n_bins)
    reliability = sum(len(c) / n * (c.mean() - r.mean()) ** 2 for c, r in groups)
    resolution = sum(len(c) / n * (r.mean() - average) ** 2 for c, r in groups)
    assert float(parts.reliability) == pytest.approx(reliability, abs=1e-12)
    assert float(parts.resolution) == pytest.approx(resolution, abs=1e-12)
    assert float(parts.uncertainty) == pytest.approx(average * (1 - average), abs=1e-12)


def test_brier_parts_add_up_to_the_score_of_the_binned_confidences(predictions):
    prob, y = predictions(300)
    groups = members(prob, y, 15)
    forecast = np.concatenate([np.full(len(c), c.mean()) for c, _ in groups])
    expected = brier_score_loss(np.concatenate([r for _, r in groups]), forecast)
    assert float(brier_decomposition(calibration_bins(prob, y)).score) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100)
@given(rows)
def test_brier_parts_add_up_on_any_input(pairs):
    prob, y = two_classes(pairs)
    parts = brier_decomposition(calibration_bins(prob, y, 10))
    groups = members(prob, y, 10)
    expected = sum(((c.mean() - r) ** 2).sum() for c, r in groups) / len(pairs)
    assert float(parts.score) == pytest.approx(expected, abs=1e-9)
    assert min(map(float, parts)) >= 0
    assert float(parts.resolution) <= float(parts.uncertainty) + 1e-9


def test_debiased_errors_follow_their_definition(predictions):
    prob, y = predictions(300)
    squared = 0.0
    for c, r in members(prob, y, 15):
        if len(c) >= 2:
            squared += len(c) / 300 * ((c.mean() - r.mean()) ** 2 - r.mean() * (1 - r.mean()) / (len(c) - 1))
    bins = calibration_bins(prob, y)
    assert float(debiased_squared_error(bins)) == pytest.approx(squared, abs=1e-12)
    assert float(debiased_calibration_error(bins)) == pytest.approx(math.sqrt(max(squared, 0)), abs=1e-12)


def test_debiased_ece_is_that_of_normal_draws(predictions):
    prob, y = predictions(150)
    rng = np.random.default_rng(0)
    plain = drawn = 0.0
    for c, r in members(prob, y, 15):
        sd = math.sqrt(r.mean() * (1 - r.mean()) / len(c))
        plain += len(c) / 150 * abs(c.mean() - r.mean())
        drawn += len(c) / 150 * np.abs(r.mean() + sd * rng.normal(size=400_000) - c.mean()).mean()
    assert drawn > plain + 0.001
    found = float(debiased_calibration_error(calibration_bins(prob, y), norm=1))
    assert found == pytest.approx(2 * plain - drawn, abs=5e-4)


def test_debiased_squared_error_of_calibrated_predictions_is_zero_on_average():
    g = torch.Generator().manual_seed(0)
    p = 0.5 + 0.5 * torch.rand(4000, 40, generator=g, dtype=torch.float64)
    y = (torch.rand(p.shape, generator=g) > p).long()
    prob = torch.stack([p, 1 - p], -1)
    bins = [calibration_bins(a, b, 5) for a, b in zip(prob, y, strict=True)]
    found = torch.stack([debiased_squared_error(b) for b in bins])
    plain = torch.stack([brier_decomposition(b).reliability for b in bins])
    error = float(found.std()) / math.sqrt(len(found))
    assert abs(float(found.mean())) < 3 * error
    assert float(plain.mean()) > 20 * error


def test_bins_of_one_prediction_add_nothing_to_the_debiased_error():
    bins = calibration_bins(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([1, 0]))
    assert float(debiased_calibration_error(bins)) == 0


def test_another_norm_is_refused():
    bins = calibration_bins(torch.tensor([[0.9, 0.1]]), torch.tensor([1]))
    with pytest.raises(InvalidInputError, match="`norm` to be 1 or 2, but got 3"):
        debiased_calibration_error(bins, norm=3)


@pytest.mark.parametrize("n_way", [2, 5])
def test_class_error_agrees_with_a_loop(predictions, n_way):
    prob, y = predictions(3, 80, n_way=n_way)
    p, label = prob.reshape(-1, n_way).numpy(), y.flatten().numpy()
    total = 0.0
    for c in range(n_way):
        place = np.clip(np.ceil(p[:, c] * 15).astype(int) - 1, 0, 14)
        total += sum(abs(p[place == b, c].sum() - (label[place == b] == c).sum()) for b in range(15)) / 240
    found = class_calibration_error(class_calibration_bins(prob, y))
    assert float(found) == pytest.approx(total / n_way, abs=1e-12)


def looped_calibration(prob, y, n_bins):
    """(ECE, MCE) from the definition, one prediction at a time, in exact bin arithmetic."""
    members = [[] for _ in range(n_bins)]
    for row, label in zip(prob.reshape(-1, prob.shape[-1]).tolist(), y.flatten().tolist(), strict=True):
        confidence = max(row)
        homes = [b for b in range(n_bins) if b / n_bins < confidence <= (b + 1) / n_bins]
        members[homes[0] if homes else 0].append((confidence, row.index(confidence) == label))
    gaps = [(len(m), abs(sum(right for _, right in m) - sum(c for c, _ in m)) / len(m)) for m in members if m]
    return sum(n * gap for n, gap in gaps) / y.numel(), max(gap for _, gap in gaps)


@pytest.mark.parametrize("n_bins", [1, 2, 10, 15])
@pytest.mark.parametrize("n_way", [2, 5])
def test_calibration_errors_agree_with_a_loop(predictions, n_bins, n_way):
    prob, y = predictions(6, 75, n_way=n_way)
    bins = calibration_bins(prob, y, n_bins)
    ece, mce = looped_calibration(prob, y, n_bins)
    assert float(expected_calibration_error(bins)) == pytest.approx(ece, abs=1e-12)
    assert float(maximum_calibration_error(bins)) == pytest.approx(mce, abs=1e-12)


def test_perfectly_calibrated_predictions_have_no_calibration_error():
    prob = torch.tensor([[0.75, 0.25]], dtype=torch.float64).expand(8, 2)
    bins = calibration_bins(prob, torch.tensor([0, 0, 0, 1] * 2))
    assert float(expected_calibration_error(bins)) == 0
    assert float(maximum_calibration_error(bins)) == 0


@pytest.mark.parametrize("error", [expected_calibration_error, maximum_calibration_error])
def test_empty_bins_have_no_calibration_error(error):
    none = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(InvalidInputError, match="at least one prediction"):
        error(CalibrationBins(torch.linspace(0.0, 1.0, 4), none, none, none))


def test_weights_below_one_leave_the_calibration_errors_as_they_are(predictions):
    prob, y = predictions(200)
    light, plain = calibration_bins(prob, y, weight=torch.full((200,), 0.01)), calibration_bins(prob, y)
    for error in (expected_calibration_error, maximum_calibration_error):
        assert float(error(light)) == pytest.approx(float(error(plain)), rel=1e-6)


def test_maximum_calibration_error_leaves_out_small_bins():
    prob = torch.tensor([[0.95, 0.05], [0.6, 0.4], [0.6, 0.4]], dtype=torch.float64)
    bins = calibration_bins(prob, torch.tensor([1, 0, 0]))
    assert float(maximum_calibration_error(bins)) == pytest.approx(0.95)
    assert float(maximum_calibration_error(bins, min_count=2)) == pytest.approx(0.4)
    with pytest.raises(InvalidInputError, match="`min_count` = 3 predictions, but the fullest has 2"):
        maximum_calibration_error(bins, min_count=3)

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from mirrorshot.metrics import (
    CalibrationBins,
    accuracy,
    brier,
    calibration_bins,
    expected_calibration_error,
    maximum_calibration_error,
    nll,
)
from mirrorshot.types import InvalidInputError

METRICS = [accuracy, nll, brier, calibration_bins]


def looped_calibration(prob, y, n_bins):
    """(ECE, MCE) from the definition, one prediction at a time, in exact bin arithmetic."""
    members = [[] for _ in range(n_bins)]
    for row, label in zip(prob.reshape(-1, prob.shape[-1]).tolist(), y.flatten().tolist(), strict=True):
        confidence = max(row)
        homes = [b for b in range(n_bins) if b / n_bins < confidence <= (b + 1) / n_bins]
        members[homes[0] if homes else 0].append((confidence, row.index(confidence) == label))
    gaps = [(len(m), abs(sum(right for _, right in m) - sum(c for c, _ in m)) / len(m)) for m in members if m]
    return sum(n * gap for n, gap in gaps) / y.numel(), max(gap for _, gap in gaps)


@pytest.mark.parametrize("n_way", [2, 3, 20])
def test_scores_agree_with_scikit_learn(predictions, n_way):
    prob, y = predictions(400, n_way=n_way)
    labels = range(n_way)
    assert float(accuracy(prob, y)) == pytest.approx(accuracy_score(y, prob.argmax(-1)), abs=1e-12)
    assert float(nll(prob, y)) == pytest.approx(log_loss(y, prob.numpy(), labels=labels), abs=1e-12)
    expected = brier_score_loss(y, prob.numpy(), labels=labels, scale_by_half=False)
    assert float(brier(prob, y)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [accuracy, nll, brier])
def test_scores_keep_the_task_dimension(predictions, metric):
    prob, y = predictions(4, 3, 75)
    per_task = metric(prob, y)
    assert per_task.shape == (4, 3)
    looped = torch.stack(
        [torch.stack([metric(p, q) for p, q in zip(P, Q, strict=True)]) for P, Q in zip(prob, y, strict=True)]
    )
    torch.testing.assert_close(per_task, looped)


def test_brier_follows_its_definition(predictions):
    prob, y = predictions(50)
    target = torch.nn.functional.one_hot(y, 5)
    torch.testing.assert_close(brier(prob, y), ((prob - target) ** 2).sum(-1).mean())


def test_nll_of_an_impossible_label_is_infinite():
    assert math.isinf(float(nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))))


@pytest.mark.parametrize("n_bins", [1, 2, 10, 15])
@pytest.mark.parametrize("n_way", [2, 5])
def test_calibration_errors_agree_with_a_loop(predictions, n_bins, n_way):
    prob, y = predictions(6, 75, n_way=n_way)
    bins = calibration_bins(prob, y, n_bins)
    ece, mce = looped_calibration(prob, y, n_bins)
    assert float(expected_calibration_error(bins)) == pytest.approx(ece, abs=1e-12)
    assert float(maximum_calibration_error(bins)) == pytest.approx(mce, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_bins", [5, 10, 15])
def test_a_confidence_on_an_edge_is_in_the_lower_bin(dtype, n_bins):
    edges = [k / n_bins for k in range(1, n_bins + 1) if k / n_bins >= 0.5]
    prob = torch.tensor([[edge, 1 - edge] for edge in edges], dtype=dtype)
    counts = calibration_bins(prob, torch.zeros(len(edges), dtype=torch.long), n_bins).counts
    expected = [float((b + 1) / n_bins in edges) for b in range(n_bins)]
    assert counts.tolist() == expected


def test_a_confidence_just_above_an_edge_is_in_the_upper_bin():
    p = float(np.nextafter(0.6, 1.0))
    bins = calibration_bins(torch.tensor([[p, 1 - p]], dtype=torch.float64), torch.tensor([0]), 5)
    assert bins.counts.tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("confidence", [1.0, 1.0 + 1e-6])
def test_full_confidence_is_in_the_last_bin(confidence):
    bins = calibration_bins(torch.tensor([[confidence, 0.0], [confidence, 0.0]]), torch.tensor([0, 1]))
    assert bins.counts.tolist() == [0] * 14 + [2]
    assert float(expected_calibration_error(bins)) == pytest.approx(0.5, abs=1e-5)


def test_the_smallest_confidence_is_in_the_first_bin():
    prob = torch.full((1, 20_000), 5e-5, dtype=torch.float16)
    bins = calibration_bins(prob / prob.sum(-1, keepdim=True), torch.tensor([0]))
    assert bins.counts.tolist() == [1] + [0] * 14


def test_bins_of_two_halves_add_up_to_the_bins_of_all(predictions):
    prob, y = predictions(8, 75)
    first, second = calibration_bins(prob[:3], y[:3]), calibration_bins(prob[3:], y[3:])
    whole = calibration_bins(prob, y)
    for a, b, total in zip(first[1:], second[1:], whole[1:], strict=True):
        torch.testing.assert_close(a + b, total)
    torch.testing.assert_close(whole.share.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_bins_have_means_and_are_nan_where_empty():
    bins = calibration_bins(torch.tensor([[0.8, 0.2], [0.9, 0.1]]), torch.tensor([0, 1]), 2)
    assert bins.accuracy[1] == 0.5
    assert float(bins.confidence[1]) == pytest.approx(0.85)
    assert bins.accuracy[0].isnan()
    assert bins.confidence[0].isnan()


def test_perfectly_calibrated_predictions_have_no_calibration_error():
    prob = torch.tensor([[0.75, 0.25]], dtype=torch.float64).expand(8, 2)
    bins = calibration_bins(prob, torch.tensor([0, 0, 0, 1] * 2))
    assert float(expected_calibration_error(bins)) == 0
    assert float(maximum_calibration_error(bins)) == 0


def test_half_precision_probabilities_are_accepted(predictions):
    prob, y = predictions(1000, dtype=torch.bfloat16)
    right = prob.float()[torch.arange(1000), y]
    torch.testing.assert_close(nll(prob, y), -right.log().mean(), atol=0.0, rtol=1e-6)  # not rounded to a half
    assert brier(prob, y).dtype == accuracy(prob, y).dtype == torch.float32
    assert float(expected_calibration_error(calibration_bins(prob, y))) < 1


def test_labels_may_be_of_any_integer_type(predictions):
    prob, y = predictions(30)
    for metric in (accuracy, nll, brier):
        torch.testing.assert_close(metric(prob, y.to(torch.int32)), metric(prob, y))


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("prob", "y", "message"),
    [
        (torch.ones(0, 3), torch.zeros(0, dtype=torch.long), r"at least one prediction, but .* \(0, 3\)"),
        (
            torch.tensor([[1.5, -0.5]]),
            torch.tensor([0]),
            "not to be negative, but its smallest value is -0.5",
        ),
        (torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]), "not to be negative, but .* nan"),
        (torch.tensor([[0.5, 0.5], [2.0, 1.0]]), torch.tensor([0, 0]), "got sums from 1 to 3.*softmax"),
        (torch.tensor([[float("inf"), 0.0]]), torch.tensor([0]), "got sums from inf to inf"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), r"but got \(1, 2\) and \(2,\)"),
        (torch.tensor([0.5, 0.5]), torch.tensor(0), r"but got \(2,\) and \(\)"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), "from 0 to 1, .* but got labels from 2 to 2"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-1]), "but got labels from -1 to -1"),
        (
            torch.tensor([[0.5, 0.5]]),
            torch.tensor([0.0]),
            "`y` integer, but got torch.float32 and torch.float32",
        ),
        (torch.tensor([[1, 0]]), torch.tensor([0]), "floating point .* but got torch.int64"),
    ],
)
def test_wrong_predictions_are_explained(metric, prob, y, message):
    with pytest.raises(InvalidInputError, match=message):
        metric(prob, y)


def test_no_bins_are_refused():
    with pytest.raises(InvalidInputError, match="`n_bins` to be at least 1, but got 0"):
        calibration_bins(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0)


@pytest.mark.parametrize("error", [expected_calibration_error, maximum_calibration_error])
def test_empty_bins_have_no_calibration_error(error):
    none = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(InvalidInputError, match="at least one prediction"):
        error(CalibrationBins(torch.linspace(0.0, 1.0, 4), none, none, none))


@pytest.mark.parametrize("metric", [accuracy, nll, brier])
def test_weights_of_scores_count_like_repetitions(padded, metric):
    (prob, y, weight), (rows, labels) = padded(60)
    torch.testing.assert_close(metric(prob, y, weight), metric(rows, labels))
    torch.testing.assert_close(metric(rows, labels, torch.full(labels.shape, 0.3)), metric(rows, labels))


@pytest.mark.parametrize("metric", [accuracy, nll, brier])
def test_padding_is_left_out_of_each_task(predictions, metric):
    prob, y = predictions(3, 10)
    weight = (torch.arange(10) < torch.tensor([[10], [4], [0]])).double()
    found = metric(prob, y, weight)
    torch.testing.assert_close(found[1], metric(prob[1, :4], y[1, :4]))
    assert found.isnan().tolist() == [False, False, True]


def test_weights_of_bins_count_like_repetitions(padded):
    (prob, y, weight), repeated = padded(4, 50)
    for a, b in zip(calibration_bins(prob, y, 10, weight), calibration_bins(*repeated, 10), strict=True):
        torch.testing.assert_close(a, b)


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


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("metric", [accuracy, nll, brier, lambda p, y, w: calibration_bins(p, y, 15, w)])
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), r"of the shape of `y`, \(2,\), but got \(3,\)"),
        (torch.tensor([1.0, -1.0]), "not negative, but got values from -1.0 to 1.0"),
        (torch.tensor([1.0, torch.inf]), "finite .* to inf"),
        (torch.tensor([torch.nan, 1.0]), "finite .* nan"),
        (torch.zeros(2), "at least one positive `weight`, but all 2 are zero"),
    ],
)
def test_wrong_weights_are_explained(metric, weight, message):
    with pytest.raises(InvalidInputError, match=message):
        metric(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([0, 1]), weight)

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from mirrorshot.metrics import (
    accuracy,
    brier,
    calibration_bins,
    expected_calibration_error,
    nll,
)
from mirrorshot.types import InvalidInputError

METRICS = [accuracy, nll, brier, calibration_bins]


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

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from mirrorshot.metrics import calibration_bins, class_calibration_bins, expected_calibration_error
from mirrorshot.types import InvalidInputError

rows = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def two_classes(pairs):
    """Predictions of two classes with these probabilities of the first, and whether it is right."""
    p = torch.tensor([p for p, _ in pairs], dtype=torch.float64)
    return torch.stack([p, 1 - p], -1), torch.tensor([int(not first) for _, first in pairs])


def equal_mass_bins(*arguments):
    return calibration_bins(*arguments, equal_mass=True)


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


def test_no_bins_are_refused():
    with pytest.raises(InvalidInputError, match="`n_bins` to be at least 1, but got 0"):
        calibration_bins(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), 0)


def test_weights_of_equal_width_bins_count_like_repetitions(padded):
    (prob, y, weight), repeated = padded(4, 50)
    for a, b in zip(calibration_bins(prob, y, 10, weight), calibration_bins(*repeated, 10), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_adaptive_error_agrees_with_equal_pieces_of_the_sorted_list(predictions, n_bins):
    prob, y = predictions(4, 60)
    confidence, label = prob.reshape(-1, 5).max(-1)
    order = np.argsort(confidence.numpy())
    pieces = np.split(order, n_bins)
    right = (label == y.flatten()).double().numpy()
    expected = sum(abs(confidence.numpy()[i].sum() - right[i].sum()) for i in pieces) / 240
    bins = calibration_bins(prob, y, n_bins, equal_mass=True)
    assert bins.counts.tolist() == [240 / n_bins] * n_bins
    assert float(expected_calibration_error(bins)) == pytest.approx(expected, abs=1e-12)


def test_equal_mass_bins_agree_with_scikit_learn(predictions):
    prob, y = predictions(401, n_way=2)
    confidence, label = prob.max(-1)
    share, mean = calibration_curve(label == y, confidence, n_bins=10, strategy="quantile")
    bins = calibration_bins(prob, y, 10, equal_mass=True)
    # its quantiles are interpolated, and fall on predictions where 10 divides 401 - 1
    np.testing.assert_allclose(bins.confidence.numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(bins.accuracy.numpy(), share, atol=1e-12)


@settings(max_examples=100)
@given(rows, st.integers(1, 20), st.randoms(use_true_random=False))
def test_equal_mass_bins_do_not_depend_on_the_order(pairs, n_bins, random):
    shuffled = random.sample(pairs, len(pairs))
    a, b = (calibration_bins(*two_classes(p), n_bins, equal_mass=True) for p in (pairs, shuffled))
    assert a.counts.tolist() == b.counts.tolist()
    assert float(a.counts.sum()) == len(pairs)
    assert float(expected_calibration_error(a)) == pytest.approx(float(expected_calibration_error(b)), abs=1e-12)


@pytest.mark.parametrize("make", [equal_mass_bins, class_calibration_bins])
def test_weights_count_like_repetitions(padded, make):
    (prob, y, weight), repeated = padded(4, 50)
    for a, b in zip(make(prob, y, 10, weight), make(*repeated, 10), strict=True):
        torch.testing.assert_close(a, b)


def test_class_bins_hold_probabilities_of_zero_and_one():
    counts = class_calibration_bins(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).counts
    assert counts[0].tolist() == [0] * 14 + [1]
    assert counts[1].tolist() == [1] + [0] * 14


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("make", [equal_mass_bins, class_calibration_bins])
def test_wrong_predictions_are_explained(make):
    with pytest.raises(InvalidInputError, match="got sums from 3 to 3"):
        make(torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    with pytest.raises(InvalidInputError, match="at least one prediction"):
        make(torch.ones(0, 2), torch.zeros(0, dtype=torch.long))
    with pytest.raises(InvalidInputError, match="`n_bins` to be at least 1, but got 0"):
        make(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 0)

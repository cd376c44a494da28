import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from mirrorshot.metrics import aurc, auroc, correctness_auroc, excess_aurc
from mirrorshot.types import InvalidInputError

few_values = st.sampled_from([0.5, 0.55, 0.6, 0.75, 0.9, 1.0])
pairs = st.lists(st.tuples(few_values | st.floats(0.5, 1), st.booleans()), min_size=1, max_size=12)


def two_classes(pairs):
    """Predictions with these confidences, and whether they are right."""
    p = torch.tensor([p for p, _ in pairs], dtype=torch.float64)
    return torch.stack([p, 1 - p], -1), torch.tensor([int(not right) for _, right in pairs])


def looped_aurc(confidence, right):
    """From the definition, for distinct confidences."""
    order = sorted(range(len(right)), key=lambda i: -confidence[i])
    risks = [sum(not right[i] for i in order[: n + 1]) / (n + 1) for n in range(len(order))]
    return sum(risks) / len(risks)


def shuffled_aurc(confidence, right, n=3000):
    """Ties in random order, the mean over many of them."""
    rng = np.random.default_rng(0)
    wrong, total = 1.0 - np.array(right, dtype=float), 0.0
    for _ in range(n):
        order = np.lexsort((rng.random(len(wrong)), -np.array(confidence)))
        total += (wrong[order].cumsum() / np.arange(1, len(wrong) + 1)).mean()
    return total / n


def test_correctness_auroc_agrees_with_scikit_learn(predictions):
    prob, y = predictions(4, 75)
    confidence, label = prob.max(-1)
    expected = roc_auc_score((label == y).flatten(), confidence.flatten())
    assert float(correctness_auroc(prob, y)) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=200)
@given(
    st.lists(st.floats(-2, 2) | st.integers(-1, 1).map(float), min_size=1, max_size=15),
    st.lists(st.floats(-2, 2) | st.integers(-1, 1).map(float), min_size=1, max_size=15),
)
def test_auroc_agrees_with_all_pairs_and_scikit_learn(positive, negative):
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (positive, negative))
    expected = np.mean([(p > n) + 0.5 * (p == n) for p in positive for n in negative])
    assert float(auroc(a, b)) == pytest.approx(expected, abs=1e-12)
    truth = [1] * len(positive) + [0] * len(negative)
    assert float(auroc(a, b)) == pytest.approx(roc_auc_score(truth, positive + negative), abs=1e-9)
    assert float(auroc(b, a)) == pytest.approx(1 - expected, abs=1e-12)


def test_auroc_accepts_infinite_scores_and_mixed_types():
    found = auroc(torch.tensor([[torch.inf, 0.5]]), torch.tensor([-torch.inf, 0.5], dtype=torch.float64))
    assert float(found) == 0.875


def test_weights_of_auroc_agree_with_scikit_learn():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(60, generator=g) + 0.5, torch.randn(40, generator=g)
    u, v = torch.rand(60, generator=g), torch.rand(40, generator=g)
    u[:7] = 0
    expected = roc_auc_score([1] * 60 + [0] * 40, torch.cat([a, b]), sample_weight=torch.cat([u, v]))
    a[:7] = torch.nan
    assert float(auroc(a, b, u, v)) == pytest.approx(expected, abs=1e-6)


def test_aurc_agrees_with_a_loop(predictions):
    prob, y = predictions(3, 60)
    confidence, label = prob.reshape(-1, 5).max(-1)
    expected = looped_aurc(confidence.tolist(), (label == y.flatten()).tolist())
    assert float(aurc(prob, y)) == pytest.approx(expected, abs=1e-10)


def test_ties_of_aurc_are_the_mean_over_their_orders():
    confidence = [0.9, 0.9, 0.9, 0.7, 0.7, 0.6, 0.6, 0.6, 0.6]
    right = [True, False, True, False, True, False, False, True, True]
    found = float(aurc(*two_classes(list(zip(confidence, right, strict=True)))))
    assert found == pytest.approx(shuffled_aurc(confidence, right), abs=0.005)


@given(pairs, st.randoms(use_true_random=False))
def test_aurc_is_bounded_and_does_not_depend_on_the_order(pairs, random):
    prob, y = two_classes(pairs)
    shuffled = two_classes(random.sample(pairs, len(pairs)))
    area, excess = float(aurc(prob, y)), float(excess_aurc(prob, y))
    assert float(aurc(*shuffled)) == pytest.approx(area, abs=1e-12)
    right = (prob.argmax(-1) == y).tolist()
    best, worst = (looped_aurc(r, right) for r in (right, [not r for r in right]))
    assert excess == pytest.approx(area - best, abs=1e-10)
    assert best - 1e-10 <= area <= worst + 1e-10


def test_best_order_has_no_excess():
    confidence, right = [0.9, 0.8, 0.7, 0.6], [True, True, False, False]
    prob, y = two_classes(list(zip(confidence, right, strict=True)))
    assert float(excess_aurc(prob, y)) == 0
    assert float(aurc(prob, y)) == pytest.approx((1 / 3 + 2 / 4) / 4)


def test_best_area_tends_to_the_limit_of_the_paper(predictions):
    prob, y = predictions(100_000)
    r = 1 - float((prob.argmax(-1) == y).double().mean())
    limit = r + (1 - r) * np.log(1 - r)
    assert float(aurc(prob, y) - excess_aurc(prob, y)) == pytest.approx(limit, abs=1e-4)


@pytest.mark.parametrize("metric", [aurc, excess_aurc, correctness_auroc])
def test_weights_count_like_repetitions(padded, metric):
    padding, repeated = padded(4, 40)
    torch.testing.assert_close(metric(*padding), metric(*repeated))


def test_all_right_or_all_wrong():
    prob = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
    for y, area in ((torch.tensor([0, 0]), 0.0), (torch.tensor([1, 1]), 1.0)):
        assert float(aurc(prob, y)) == area
        assert float(excess_aurc(prob, y)) == 0
        assert correctness_auroc(prob, y).isnan()


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(0), torch.ones(1)), r"at least one score in `positive`, but its shape is \(0,\)"),
        ((torch.ones(1), torch.tensor([torch.nan])), "`negative` to be numbers, but got NaN in 1"),
        ((torch.ones(1), torch.ones(2), None, torch.ones(1)), r"`negative_weight` .* \(2,\), but got \(1,\)"),
        ((torch.ones(1), torch.ones(1), torch.tensor([-1.0])), "`positive_weight` .* values from -1.0 to -1.0"),
        ((torch.ones(1), torch.ones(1), torch.zeros(1)), "at least one positive `positive_weight`"),
    ],
)
def test_wrong_scores_are_explained(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        auroc(*arguments)


@pytest.mark.usefixtures("as_for_users")
@pytest.mark.parametrize("metric", [aurc, excess_aurc, correctness_auroc])
def test_wrong_predictions_are_explained(metric):
    with pytest.raises(InvalidInputError, match="got sums from 3 to 3"):
        metric(torch.tensor([[2.0, 1.0]]), torch.tensor([0]))

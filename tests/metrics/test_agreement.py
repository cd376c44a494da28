"""Every metric against an independent implementation, to 1e-6, on random and on extreme predictions."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binned_statistic
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from mirrorshot.metrics import (
    accuracy,
    aurc,
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
    risk_coverage,
    task_statistics,
    temperature_errors,
)
from mirrorshot.metrics.bootstrap import METRICS as BOOTSTRAPPED
from mirrorshot.types import InvalidInputError


def random_case(seed, n=400, n_way=5):
    rng = np.random.default_rng(seed)
    prob = rng.dirichlet(np.full(n_way, 0.7), n)
    return prob, np.array([rng.choice(n_way, p=p) for p in prob])


def case(name):
    prob, y = random_case(9, 60)
    return {
        "random": random_case(0),
        "two classes": random_case(1, n_way=2),
        "many classes": random_case(2, n_way=40),
        "one prediction": (prob[:1], y[:1]),
        "all right": (prob, prob.argmax(1)),
        "all wrong": (prob, (prob.argmax(1) + 1) % 5),
        "certain": (np.eye(5)[(y + (np.arange(60) % 3 == 0)) % 5], y),
    }[name]


CASES = ["random", "two classes", "many classes", "one prediction", "all right", "all wrong", "certain"]


def gaps(confidence, happened):
    """Shares and gaps of 15 bins by scipy, as netcal makes its histograms."""
    edges = np.linspace(0, 1, 16)
    inside = np.nextafter(confidence, 0)  # scipy's bins hold their lower ends, ours their upper ones
    count = binned_statistic(inside, inside, "count", edges)[0]
    with np.errstate(invalid="ignore"):
        means = [np.nan_to_num(binned_statistic(inside, v, "mean", edges)[0]) for v in (confidence, happened)]
    return count / count.sum(), np.abs(means[0] - means[1]), count


def torchmetrics_errors(confidence, right):
    """Expected and maximum calibration error as torchmetrics adds them up."""
    edges = torch.linspace(0, 1, 16, dtype=torch.float64)
    index = (torch.bucketize(torch.as_tensor(np.nextafter(confidence, 0)), edges, right=True) - 1).clamp(0, 14)
    count, conf, acc = (torch.zeros(15, dtype=torch.float64) for _ in range(3))
    count.scatter_add_(0, index, torch.ones(len(index), dtype=torch.float64))
    conf.scatter_add_(0, index, torch.as_tensor(confidence))
    acc.scatter_add_(0, index, torch.as_tensor(right).double())
    conf, acc = torch.nan_to_num(conf / count), torch.nan_to_num(acc / count)
    return float(((acc - conf).abs() * count / count.sum()).sum()), float((acc - conf).abs().max())


def independent(prob, y):
    """All metrics without any code of ours."""
    confidence, right = prob.max(1), (prob.argmax(1) == y).astype(float)
    hot = np.eye(prob.shape[1])[y]
    with np.errstate(divide="ignore"):
        found = {
            "accuracy": accuracy_score(y, prob.argmax(1)),
            "nll": float(-np.log(prob[np.arange(len(y)), y]).mean()),
            "brier": float(((prob - hot) ** 2).sum(1).mean()),
        }
    found["ece"], found["mce"] = torchmetrics_errors(confidence, right)
    share, gap, _ = gaps(confidence, right)
    assert found["ece"] == pytest.approx(share @ gap, abs=1e-9)  # two formulas, one number
    found["class_ece"] = float(np.mean([np.dot(*gaps(prob[:, c], hot[:, c])[:2]) for c in range(prob.shape[1])]))
    errors, levels = 1 - right, np.unique(confidence)[::-1]
    before, risks = [0.0, 0.0], []
    for level in levels:  # equal confidences share their errors
        inside = confidence == level
        w, e = inside.sum(), errors[inside].sum()
        risks += [(before[1] + e * j / w) / (before[0] + j) for j in range(1, w + 1)]
        before = [before[0] + w, before[1] + e]
    found["aurc"] = float(np.mean(risks))
    best = np.sort(errors).cumsum() / np.arange(1, len(errors) + 1)
    found["excess_aurc"] = found["aurc"] - float(best.mean())
    found["correctness_auroc"] = roc_auc_score(right, confidence) if 0 < right.sum() < len(right) else math.nan
    rate = right.mean()
    found["uncertainty"] = rate * (1 - rate)
    found["reliability"] = float(share @ gap**2)
    return found


def ours(prob, y):
    p, labels = torch.as_tensor(prob), torch.as_tensor(y)
    bins = calibration_bins(p, labels)
    found = {
        "accuracy": accuracy(p, labels), "nll": nll(p, labels), "brier": brier(p, labels),
        "ece": expected_calibration_error(bins), "mce": maximum_calibration_error(bins),
        "class_ece": class_calibration_error(class_calibration_bins(p, labels)),
        "aurc": aurc(p, labels), "excess_aurc": excess_aurc(p, labels),
        "correctness_auroc": correctness_auroc(p, labels),
        "adaptive_ece": expected_calibration_error(calibration_bins(p, labels, equal_mass=True)),
        "debiased_ece": debiased_calibration_error(bins, norm=1), "debiased_ce": debiased_calibration_error(bins),
        **brier_decomposition(bins)._asdict(),
    }  # fmt: skip
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_metrics_agree_with_independent_implementations(name):
    expected, found = independent(*case(name)), ours(*case(name))
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", CASES)
def test_statistics_of_tasks_give_the_same_numbers(name):
    prob, y = case(name)
    expected = ours(prob, y)
    sums = task_statistics(torch.as_tensor(prob)[None], torch.as_tensor(y)[None])
    found = {key: float(metric(sums)) for key, metric in BOOTSTRAPPED.items()}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-9, nan_ok=True)


def test_log_loss_of_scikit_learn_is_ours():
    prob, y = random_case(4)
    found = nll(torch.as_tensor(prob), torch.as_tensor(y)).item()
    assert found == pytest.approx(log_loss(y, prob, labels=range(5)), abs=1e-6)


METRICS = [
    accuracy, nll, brier, calibration_bins, class_calibration_bins, aurc, excess_aurc, correctness_auroc, risk_coverage,
    lambda p, y: task_statistics(p[None], y[None]),
]  # fmt: skip


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("prob", "message"),
    [
        (torch.zeros(0, 3), "at least one prediction"),
        (torch.full((2, 3), 0.5), "to sum to 1 over its last dimension, but got sums from 1.5"),
        (torch.tensor([[2.0, -1.0, 0.0]] * 2), "not to be negative"),
        (torch.full((2, 3), torch.nan), "not to be negative, but its smallest value is nan"),
    ],
)
def test_every_metric_explains_what_are_no_probabilities(metric, prob, message):
    with pytest.raises(InvalidInputError, match=message):
        metric(prob, torch.zeros(len(prob), dtype=torch.int64))


def test_temperatures_explain_what_are_no_scores():
    with pytest.raises(InvalidInputError, match="NaN, infinity or only -inf in 2 of 2 predictions"):
        temperature_errors(torch.full((2, 3), torch.nan), torch.zeros(2, dtype=torch.int64))

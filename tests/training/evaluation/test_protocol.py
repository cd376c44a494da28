import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from mirrorshot.data import EpisodeSampler
from mirrorshot.metrics import accuracy, nll
from mirrorshot.training.evaluation import evaluate, predict_tasks
from mirrorshot.types import DataError, InvalidInputError, NumericalError

SETTING = {"n_way": 4, "n_shot": 2, "n_query": 5, "n_tasks": 12, "seeds": (1, 2, 3), "prepare": lambda x: x}


def predictions_of(method, source, seeds=(1, 2, 3), n_tasks=12):
    """All probabilities (S, T, M, C) and labels, one task at a time."""
    prob, labels = [], []
    for seed in seeds:
        sampler = EpisodeSampler(source, 4, 2, 5, seed=seed)
        for number in range(n_tasks):
            log_prob, y, _ = predict_tasks(method, sampler, [number], prepare=lambda x: x, batch_size=1)
            prob.append(log_prob[0].double().exp().numpy())
            labels.append(y[0].numpy())
    return np.stack(prob).reshape(len(seeds), n_tasks, 20, 4), np.stack(labels).reshape(len(seeds), n_tasks, 20)


def ece_by_a_loop(prob, y, n_bins=15):
    """Expected and maximum calibration error, as METHODS describes them."""
    confidence, right = prob.max(-1).ravel(), (prob.argmax(-1) == y).ravel()
    gaps, shares = [], []
    for b in range(n_bins):
        inside = (confidence > b / n_bins) & (confidence <= (b + 1) / n_bins)
        if inside.any():
            gaps.append(abs(confidence[inside].mean() - right[inside].mean()))
            shares.append(inside.mean())
    return np.dot(gaps, shares), max(gaps)


def test_numbers_agree_with_scikit_learn_and_a_plain_loop(ProtoNet, test_source):
    method = ProtoNet(0.7)
    result = evaluate(method, test_source, batch_size=5, **SETTING)
    prob, y = predictions_of(method, test_source)
    passes = [np.mean([accuracy_score(*pair) for pair in zip(y[s], prob[s].argmax(-1), strict=True)]) for s in range(3)]
    assert result.accuracy == pytest.approx(np.mean(passes), abs=1e-12)
    assert result.accuracy_sd == pytest.approx(np.std(passes), abs=1e-12)
    flat, labels = prob.reshape(-1, 4), y.ravel()
    assert result.raw.nll == pytest.approx(log_loss(labels, flat), rel=1e-9)
    brier = sum(brier_score_loss(labels == c, flat[:, c]) for c in range(4))
    assert result.raw.brier == pytest.approx(brier, rel=1e-9)
    ece, mce = ece_by_a_loop(prob, y)
    assert result.raw.ece == pytest.approx(ece, rel=1e-9)
    assert result.raw.mce == pytest.approx(mce, rel=1e-9)
    assert float(result.raw.bins.counts.sum()) == labels.size


def test_tasks_keep_their_accuracy_and_nll(ProtoNet, test_source):
    method = ProtoNet()
    result = evaluate(method, test_source, batch_size=4, **SETTING)
    prob, y = map(torch.from_numpy, predictions_of(method, test_source))
    torch.testing.assert_close(result.task_accuracy, accuracy(prob, y))
    torch.testing.assert_close(result.task_nll, nll(prob, y), rtol=1e-5, atol=1e-6)
    tasks = result.task_accuracy.numpy().ravel()
    assert result.accuracy_interval == pytest.approx(1.96 * tasks.std() / math.sqrt(36))


def test_temperature_is_fitted_on_validation_and_mends_a_method_that_is_too_sure(
    ProtoNet, test_source, validation_source
):
    result = evaluate(ProtoNet(5.0), test_source, validation=validation_source, n_validation_tasks=40, **SETTING)
    assert result.temperature > 3
    assert result.calibrated.nll < result.raw.nll
    assert result.calibrated.ece < result.raw.ece
    prob, y = predictions_of(ProtoNet(5.0 / result.temperature), test_source)
    assert result.calibrated.nll == pytest.approx(log_loss(y.ravel(), prob.reshape(-1, 4)), rel=1e-4)


def test_temperature_does_not_depend_on_the_test_tasks(ProtoNet, test_source, validation_source):
    options = SETTING | {"validation": validation_source, "n_validation_tasks": 9}
    few, many = (evaluate(ProtoNet(), test_source, **options | {"n_tasks": n}) for n in (1, 12))
    assert few.temperature == many.temperature


def test_without_validation_there_is_no_temperature(ProtoNet, test_source):
    result = evaluate(ProtoNet(), test_source, **SETTING)
    assert result.temperature is None
    assert result.calibrated is None


def test_a_temperature_fitted_on_the_test_data_is_refused(ProtoNet, test_source):
    with pytest.raises(InvalidInputError, match="`validation` to be other data than `test`, but got the same"):
        evaluate(ProtoNet(), test_source, validation=test_source, **SETTING)


def test_batches_do_not_change_the_numbers(ProtoNet, test_source):
    one, other = (evaluate(ProtoNet(), test_source, batch_size=n, **SETTING) for n in (1, 12))
    torch.testing.assert_close(one.task_nll, other.task_nll)
    assert one.accuracy == other.accuracy


def test_very_improbable_labels_have_a_finite_nll(ProtoNet, test_source):
    result = evaluate(ProtoNet(400.0), test_source, **SETTING)
    assert 100 < result.raw.nll < math.inf


def test_progress_runs_from_validation_to_the_last_seed(ProtoNet, test_source, validation_source):
    told = []
    evaluate(
        ProtoNet(),
        test_source,
        validation=validation_source,
        n_validation_tasks=4,
        batch_size=6,
        progress=lambda *news: told.append(news),
        **SETTING,
    )
    assert told[0] == (4, 40, "validation")
    assert told[1] == (10, 40, "test, seed 1")
    assert told[-1] == (40, 40, "test, seed 3")


def test_nan_is_an_error_that_names_the_task(ProtoNet, test_source):
    class Broken(ProtoNet):
        def predict(self, tasks):
            log_prob = super().predict(tasks)
            log_prob[-1, 2, 0] = torch.nan
            return log_prob

    with pytest.raises(NumericalError, match=r"NaN in 3 of 12 tasks \(test, seed 1; the first is number 4\)"):
        evaluate(Broken(), test_source, batch_size=5, **SETTING)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_tasks": 0}, InvalidInputError, "`n_tasks` to be at least 1, but got 0"),
        ({"seeds": ()}, InvalidInputError, "`seeds` to be distinct and at least one"),
        ({"seeds": (1, 1)}, InvalidInputError, r"distinct and at least one, but got \[1, 1\]"),
        ({"n_way": 9}, DataError, "8 classes for n_way = 9"),
    ],
)
def test_wrong_arguments_are_explained(ProtoNet, test_source, change, error, message):
    with pytest.raises(error, match=message):
        evaluate(ProtoNet(), test_source, **{**SETTING, **change})

import pytest
import torch

from mirrorshot.training.evaluation import Predictions, calibration_of, evaluate

SETTING = {"n_way": 4, "n_shot": 2, "n_query": 5, "n_tasks": 10, "seeds": (1, 2), "prepare": torch.Tensor.float}


def make_predictions(n_tasks, n_queries):
    g = torch.Generator().manual_seed(0)
    log_prob = torch.randn(n_tasks, n_queries, 5, generator=g, dtype=torch.float64).log_softmax(-1)
    y = torch.randint(5, (n_tasks, n_queries), generator=g)
    return Predictions(log_prob, y, torch.ones(n_tasks, n_queries))


def test_intervals_hold_their_metrics_and_padding_does_not_count(ProtoNet, test_source):
    raw = evaluate(ProtoNet(), test_source, **SETTING).raw
    assert raw.intervals.keys() == {"accuracy", "nll", "brier", "ece", "mce", "debiased_ece"}
    for name in ("accuracy", "nll", "brier"):
        assert raw.intervals[name].low < raw.intervals[name].value < raw.intervals[name].high
    assert raw.risk[-1] == pytest.approx(1 - raw.scores["accuracy"])
    predictions = make_predictions(8, 30)
    wider = Predictions(*(torch.cat([t, t[:, :3]], 1) for t in predictions))
    wider.weight[:, 30:] = 0.0
    with_padding, without = calibration_of(wider), calibration_of(predictions)
    assert with_padding[:4] == pytest.approx(without[:4], abs=1e-12)
    assert dict(with_padding.scores) == pytest.approx(dict(without.scores), abs=1e-12, nan_ok=True)
    torch.testing.assert_close(with_padding.bin_intervals, without.bin_intervals, equal_nan=True)


def test_every_query_of_three_thousand_tasks_is_counted():
    predictions = make_predictions(3000, 75)
    found = calibration_of(predictions)
    assert float(predictions.weight.sum()) == float(found.bins.counts.sum())

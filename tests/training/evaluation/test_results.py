import json
import math

import numpy as np
import pytest
import torch

from mirrorshot.training.evaluation import Evaluation, evaluate, paired_difference
from mirrorshot.types import InvalidInputError

SETTING = {"n_way": 4, "n_shot": 2, "n_query": 5, "n_tasks": 12, "seeds": (1, 2, 3), "prepare": lambda x: x}


def test_record_is_json_and_has_the_protocol(ProtoNet, test_source, validation_source):
    result = evaluate(ProtoNet(), test_source, validation=validation_source, n_validation_tasks=6, **SETTING)
    record = json.loads(json.dumps(result.record(with_tasks=True), allow_nan=False))
    protocol = {"n_way": 4, "n_shot": 2, "n_query": 5, "n_tasks": 12, "seeds": [1, 2, 3]}
    assert {key: record["protocol"][key] for key in protocol} == protocol
    assert record["protocol"]["n_test_classes"] == 8
    assert record["protocol"]["n_validation_tasks"] == 6
    assert record["temperature"] == result.temperature
    assert record["calibrated"]["ece"] == result.calibrated.ece
    assert np.mean(record["accuracy_of_seeds"]) == pytest.approx(record["accuracy"])
    assert np.shape(record["task_accuracy"]) == (3, 12)
    assert "task_nll" not in result.record()


def test_record_of_an_infinite_nll_is_json(ProtoNet, test_source):
    class Certain(ProtoNet):
        def predict(self, tasks):
            best = super().predict(tasks).argmax(-1)
            return torch.nn.functional.one_hot(best, tasks.n_way).double().log()

    result = evaluate(Certain(), test_source, **SETTING)
    assert result.raw.nll == math.inf
    assert result.record()["raw"]["nll"] is None
    json.dumps(result.record(with_tasks=True), allow_nan=False)


def test_paired_difference_is_that_of_the_tasks(ProtoNet, test_source):
    sharp, other = (evaluate(ProtoNet(s), test_source, **SETTING) for s in (0.3, 1.0))
    difference = paired_difference(sharp, other, "nll")
    values = (sharp.task_nll - other.task_nll).numpy().ravel()
    assert difference.mean == pytest.approx(values.mean())
    assert difference.interval == pytest.approx(1.96 * values.std() / 6)
    assert difference.n_tasks == 36
    assert paired_difference(sharp, other) == (0.0, 0.0, 36)  # sharpness moves no maximum


@pytest.mark.usefixtures("as_for_users")
def test_evaluations_on_other_episodes_are_not_compared(ProtoNet, test_source, validation_source):
    ours = evaluate(ProtoNet(), test_source, **SETTING)
    more = evaluate(ProtoNet(), test_source, **SETTING | {"n_shot": 3, "seeds": (4, 5, 6)})
    with pytest.raises(InvalidInputError, match=r"n_shot = 2 and 3; seeds = \(1, 2, 3\) and \(4, 5, 6\)"):
        paired_difference(ours, more)
    fewer = evaluate(ProtoNet(), test_source.subset(range(5)), **SETTING)
    with pytest.raises(InvalidInputError, match=r"n_test_classes = 8 and 5; .* episodes = "):
        paired_difference(ours, fewer)
    with pytest.raises(InvalidInputError, match="'accuracy' or 'nll', but got 'ece'"):
        paired_difference(ours, ours, "ece")


def test_a_record_gives_back_the_evaluation(ProtoNet, test_source, validation_source):
    found = evaluate(
        ProtoNet(),
        test_source,
        validation=validation_source,
        n_validation_tasks=5,
        two_temperatures=True,
        **SETTING | {"n_tasks": 10},
    )
    record = found.record(with_tasks=True)
    again = Evaluation.from_record(record)
    assert again.record(with_tasks=True) == record
    torch.testing.assert_close(again.task_nll, found.task_nll)
    with pytest.raises(InvalidInputError, match="Evaluate the run again"):
        Evaluation.from_record(found.record())
    with pytest.raises(InvalidInputError, match="tasks of shape"):
        Evaluation.from_record(record | {"task_nll": [[0.0]]})

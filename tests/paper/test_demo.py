import json

import pytest
import torch

from mirrorshot.files.lock import RunError, RunLock
from mirrorshot.paper.demo import FULL, QUICK, demo_tables, in_words, run_demo, write_demo
from mirrorshot.paper.demo.experiment import METHODS, demo_config, load_characters
from mirrorshot.training.folder import read_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def result(folder):
    return run_demo(folder, settings=QUICK)


def test_every_method_is_tested_at_every_number_of_examples(result):
    assert {n: list(found) for n, found in result.evaluations.items()} == {1: list(METHODS), 5: list(METHODS)}
    for n_shot, found in result.evaluations.items():
        for evaluation in found.values():
            assert evaluation.protocol.n_shot == n_shot
            assert evaluation.protocol.n_test_classes == 10
            assert evaluation.temperature is not None
            assert 0.2 < evaluation.accuracy <= 1


def test_methods_differ_in_nothing_but_themselves():
    ours, other = (demo_config(name, FULL, 3).to_dict() for name in METHODS)
    assert {name for name in ours if ours[name] != other[name]} == {"method", "method_options"}
    assert ours["seed"] == 3


def test_no_digit_is_trained_on():
    dataset = load_characters(None)
    assert not set("0123456789") & {*dataset.train.class_names, *dataset.val.class_names}
    assert dataset.test.class_names == tuple("0123456789")


def test_drawn_tasks_are_those_of_the_evaluation(result):
    ours = result.evaluations[1]["mirror_gp"].task_accuracy[0]
    cards = result.cards["mirror_gp"]
    shares = torch.tensor([card.accuracy for card in cards], dtype=torch.float64)
    torch.testing.assert_close(shares, ours[: len(shares)])
    for card in cards:
        assert set(card.class_names) <= set("0123456789")
        assert card.log_prob.exp().sum(-1).allclose(torch.ones(75, dtype=card.log_prob.dtype))
        assert bool((card.uncertainty.epistemic > 0).all())


def test_results_and_report_are_written(result, folder):
    record = write_demo(result, folder)
    assert json.loads((folder / "results.json").read_text()) == record
    assert record["seconds"].keys() == {"characters", "training mirror_gp", "training protonet", "testing"}
    assert len(record["differences"]) == 2
    page = (folder / "report.html").read_text()
    assert "mirrorshot evaluate" in page
    assert page.count("<aside") == 2  # a protocol for each number of examples, shown once
    assert len(demo_tables(result)) == 2


def test_words_say_who_is_ahead(result):
    found = result.evaluations[1]
    swapped = {"mirror_gp": found["protonet"], "protonet": found["mirror_gp"]}
    ahead = {
        name: evaluation._replace(task_accuracy=torch.full_like(evaluation.task_accuracy, share))
        for (name, evaluation), share in zip(swapped.items(), (0.9, 0.7), strict=True)
    }
    assert "mirror_gp is right more often by 20.0" in in_words(result._replace(evaluations={1: ahead}))
    behind = {"mirror_gp": ahead["protonet"], "protonet": ahead["mirror_gp"]}
    assert "protonet is right more often by 20.0" in in_words(result._replace(evaluations={1: behind}))
    same = dict.fromkeys(ahead, ahead["mirror_gp"])
    assert "the accuracies do not differ clearly" in in_words(result._replace(evaluations={1: same}))


def test_a_run_that_another_process_writes_is_not_removed(result, folder):
    lock = RunLock.acquire(folder / "runs" / "mirror_gp")
    with pytest.raises(RunError, match="no other process"):
        run_demo(folder, settings=QUICK)
    lock.release()
    assert read_config(folder / "runs" / "mirror_gp")["method"] == "mirror_gp"
    assert torch.get_num_threads() == 1

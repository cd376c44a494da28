"""The temperature rule of a run: fitted after training, stored with the best weights, used by evaluation."""

import pytest
import torch

from mirrorshot.data.augment import Preprocess
from mirrorshot.files.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from mirrorshot.methods.calibrated import CalibratedMethod, TaskTemperature, fit_task_temperature
from mirrorshot.training import train
from mirrorshot.training.build import build_preprocess, validation_sampler
from mirrorshot.training.runs import evaluate_run, load_run
from mirrorshot.training.shifted import fit_rule, predict_shifted, shift_tasks
from mirrorshot.training.stream import NumberedTasks


@pytest.fixture(name="folder")
def _folder(pictures, make_config, tmp_path):
    train(make_config(n_calibration_tasks=20), tmp_path / "run", dataset=pictures)
    return tmp_path / "run"


def test_the_rule_is_that_of_the_validation_tasks_of_the_best_weights(folder, pictures):
    run = load_run(folder, pictures)
    preprocess = build_preprocess(pictures)
    tasks = NumberedTasks(validation_sampler(run.config, pictures.val), preprocess)
    assert run.rule == pytest.approx(fit_rule(run.method, tasks, preprocess, 20), rel=1e-5, abs=1e-6)


def test_plain_tasks_count_six_times_as_much_as_shifted_ones(folder, pictures):
    run = load_run(folder, pictures)
    preprocess = build_preprocess(pictures)
    tasks = NumberedTasks(validation_sampler(run.config, pictures.val), preprocess)
    plain, shifted = (predict_shifted(run.method, tasks, change, 20) for change in (None, preprocess))
    weight = torch.cat([6 * plain.weight, shifted.weight])
    log_prob, y, signs = (
        torch.cat([getattr(found, n) for found in (plain, shifted)]) for n in ("log_prob", "y", "signs")
    )
    expected = fit_task_temperature(log_prob, y, weight, signs)
    assert fit_rule(run.method, tasks, preprocess, 20) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert expected != pytest.approx(fit_task_temperature(log_prob, y, torch.ones_like(weight), signs), rel=1e-2)


def test_evaluation_uses_the_rule(folder, pictures):
    run, dataset = load_run(folder, pictures), pictures._replace(test=pictures.val)
    options = {"n_query": 2, "n_tasks": 6, "seeds": (1,), "n_validation_tasks": 6}
    with_rule, without = (evaluate_run(r, dataset, **options) for r in (run, run._replace(rule=None)))
    assert isinstance(run.predictor, CalibratedMethod)
    assert with_rule.accuracy == without.accuracy
    assert with_rule.raw.nll != without.raw.nll


def test_a_run_without_calibration_has_no_rule(pictures, make_config, tmp_path):
    train(make_config(), tmp_path, dataset=pictures)
    run = load_run(tmp_path, pictures)
    assert run.rule is None
    assert run.predictor is run.method


def test_embeddings_get_a_rule_too(embeddings, make_config, tmp_path):
    train(make_config(data="embeddings", n_calibration_tasks=8), tmp_path, dataset=embeddings)
    assert load_run(tmp_path, embeddings).rule is not None


@pytest.mark.parametrize("rule", [{"a": 1.0}, [1, 2], {**TaskTemperature.constant(2.0)._asdict(), "b": "x"}])
def test_a_damaged_rule_is_refused(folder, pictures, tmp_path, rule):
    saved = load_checkpoint(folder / "best.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_checkpoint(tmp_path / "best.safetensors", saved.tensors, {**saved.info, "temperature_rule": rule})
    with pytest.raises(CheckpointError, match=r"Expected the temperature rule of the run .* to have finite numbers"):
        load_run(tmp_path, pictures)


def test_support_and_query_of_a_task_are_changed_together(pictures, make_config):
    preprocess = Preprocess(28, (0.1,), (0.5,))
    tasks, _ = NumberedTasks(validation_sampler(make_config(), pictures.val), preprocess).tasks(range(12))
    changed = shift_tasks(tasks, preprocess, torch.Generator().manual_seed(0))
    moved = [
        (getattr(changed, part) - getattr(tasks, part)).abs().flatten(1).amax(1) > 1e-3
        for part in ("support_x", "query_x")
    ]
    assert torch.equal(*moved)
    assert 0 < int(moved[0].sum()) < 12 or bool(moved[0].all())
    assert torch.equal(changed.support_y, tasks.support_y)

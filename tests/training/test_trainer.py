import json
import math
import os
import time

import pytest
import torch

from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.methods import METHODS, FewShotMethod
from mirrorshot.methods.protonet import ProtoNet
from mirrorshot.training import build_method, train
from mirrorshot.training.build import validation_sampler
from mirrorshot.training.config import from_dict
from mirrorshot.training.folder import read_config, read_log
from mirrorshot.training.runs import load_method_state
from mirrorshot.types import DataError, InvalidInputError, NumericalError

AMORTISED = {"start": "amortised", "n_steps": 2}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "one"


def best_method(folder, dataset):
    config = from_dict(read_config(folder))
    method = build_method(config, dataset)
    load_method_state(method, load_checkpoint(folder / "best.safetensors"), method_name=config.method)
    return method.eval()


def test_a_run_leaves_settings_log_and_checkpoints(embeddings, make_config, folder):
    config = make_config(n_episodes=10)
    result = train(config, folder, dataset=embeddings)
    assert sorted(os.listdir(folder)) == ["best.safetensors", "config.json", "last.safetensors", "log.jsonl"]
    assert from_dict(read_config(folder)) == config
    log = read_log(folder)
    assert [(record["step"], record["episodes"]) for record in log] == [(4, 4), (8, 8), (10, 10)]
    expected = {"step", "episodes", "seconds", "loss", "gradient", "val_accuracy", "val_nll", "outputscale"}
    assert {*expected, "temperature"} == set(log[0])
    assert result.best in log
    assert (result.n_episodes, result.seconds > 0) == (10, True)
    assert result.episodes_per_second == pytest.approx(10 / result.seconds)


def test_episodes_are_counted_in_tasks(embeddings, make_config, folder):
    result = train(make_config(n_episodes=9, tasks_per_step=2), folder, dataset=embeddings)
    assert [(record["step"], record["episodes"]) for record in read_log(folder)] == [(2, 4), (4, 8), (5, 10)]
    assert result.n_episodes == 10


def test_training_learns(pictures, make_config, folder):
    train(make_config(n_episodes=60, validate_every=20, lr=3e-3, norm="task"), folder, dataset=pictures)
    losses = [record["loss"] for record in read_log(folder)]
    assert losses[-1] < losses[0] - 0.05


def test_progress_is_told_after_every_validation(embeddings, make_config, folder, monkeypatch):
    monkeypatch.setattr("mirrorshot.training.trainer._TELL_EVERY", math.inf)  # a slow machine reports in between
    calls = []
    train(make_config(), folder, dataset=embeddings, progress=lambda *call: calls.append(call))
    assert [call[:2] for call in calls] == [(4, 12), (8, 12), (12, 12)]
    assert all("loss" in label and "episodes/s" in label for *_, label in calls)


@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_the_best_checkpoint_has_the_score_of_the_best_validation(pictures, make_config, folder, ema):
    # 12 blocks of large steps: the score goes up and down
    config = make_config(n_episodes=12, validate_every=1, lr=0.03, ema=ema, method="protonet", norm="task")
    result = train(config, folder, dataset=pictures)
    log = read_log(folder)
    assert result.best == max(log, key=lambda record: (record["val_accuracy"], -record["val_nll"]))
    assert result.best["step"] != log[-1]["step"]  # of this data: the last is not the best
    tasks, query_y = validation_sampler(config, pictures.val).tasks(range(6))
    scaled = tasks._replace(**{n: (getattr(tasks, n) / 255 - 0.1) / 0.5 for n in ("support_x", "query_x")})
    log_prob = best_method(folder, pictures).predict(scaled)
    assert float((log_prob.argmax(-1) == query_y).double().mean()) == pytest.approx(result.best["val_accuracy"])
    nll = -float(log_prob.gather(-1, query_y[..., None]).mean().detach())
    assert nll == pytest.approx(result.best["val_nll"], rel=1e-4)
    info = load_checkpoint(folder / "best.safetensors").info
    assert (info["step"], info["method"]) == (result.best["step"], "protonet")
    assert info["config"] == config.to_dict()


class Tuned(ProtoNet):
    """Counts the tasks that it was tuned on."""

    def __init__(self, backbone):
        super().__init__(backbone)
        self.register_buffer("n_tasks", torch.zeros(()))
        self.register_buffer("n_times", torch.zeros(()))

    @property
    def is_tuned(self):
        return True

    def tune(self, tasks, query_y):
        assert not self.training
        self.n_tasks.fill_(tasks.n_tasks)
        self.n_times += 1


def test_a_method_is_tuned_before_validations_and_more_thoroughly_at_the_end(
    pictures, make_config, folder, monkeypatch
):
    monkeypatch.setitem(METHODS, "tuned", Tuned)
    result = train(make_config(method="tuned"), folder, dataset=pictures)
    last, best = (load_checkpoint(folder / f"{name}.safetensors").tensors for name in ("last", "best"))
    assert float(last["method.n_tasks"]) == 4
    assert float(last["method.n_times"]) == 3
    assert float(best["method.n_tasks"]) == 16
    assert float(best["method.n_times"]) == result.best["step"] / 4 + 1


@pytest.mark.parametrize("augment", [False, True])
def test_a_method_is_tuned_on_pictures_as_hard_as_those_of_training(
    pictures, make_config, folder, monkeypatch, augment
):
    seen = []
    monkeypatch.setattr(METHODS["mirror_gp"], "tune", lambda self, tasks, query_y: seen.append(tasks.support_x))
    train(make_config(augment=augment, n_episodes=4), folder, dataset=pictures)
    first = seen[0].flatten(0, 1)
    stored = (pictures.train.items / 255 - 0.1) / 0.5
    is_stored = (first[:, None] - stored[None]).abs().flatten(2).amax(-1).amin(1) < 1e-5
    assert bool(is_stored.all()) != augment


def test_what_tuning_finds_is_used_by_later_steps(embeddings, make_config, folder):
    train(make_config(method_options=AMORTISED), folder, dataset=embeddings)
    tensors = load_checkpoint(folder / "last.safetensors").tensors
    assert tensors["method.amortised_own"].abs().sum() > 0
    assert float(tensors["method.log_temperature"]) != 0


def test_the_same_seed_gives_the_same_run_bit_for_bit(pictures, make_config, tmp_path, run_content):
    config = make_config(ema=0.9, augment=True, method_options=AMORTISED, n_episodes=8)
    contents = []
    for name in ("one", "two"):
        torch.manual_seed(len(name) + len(contents))  # the global generator plays no part
        train(config, tmp_path / name, dataset=pictures)
        contents.append(run_content(tmp_path / name))
    assert contents[0] == contents[1]
    train(config.replace(seed=2), tmp_path / "three", dataset=pictures)
    other = run_content(tmp_path / "three")
    assert other["last"].keys() == contents[0]["last"].keys()
    assert other["last"] != contents[0]["last"]


def test_validation_tasks_are_the_same_for_every_seed_and_method(embeddings, make_config):
    one, other = (
        validation_sampler(make_config(seed=seed, method=method), embeddings.val).index(range(6))
        for seed, method in ((1, "mirror_gp"), (2, "gd_gp"))
    )
    assert torch.equal(one.support, other.support)
    assert torch.equal(one.query, other.query)


class Steady(FewShotMethod):
    """Predicts the same whatever it learns."""

    def __init__(self, backbone, *, log_probability=None):
        super().__init__(backbone)
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.log_probability = log_probability

    def loss(self, tasks, query_y):
        return (self.weight - 1).square().expand(tasks.n_tasks)

    def predict(self, tasks):
        value = -torch.log(torch.tensor(3.0)) if self.log_probability is None else float(self.log_probability)
        return torch.full((*tasks.query_x.shape[:2], 3), float(value))


def test_of_equally_good_weights_the_first_are_kept(embeddings, make_config, folder, monkeypatch):
    monkeypatch.setitem(METHODS, "steady", Steady)
    assert train(make_config(method="steady"), folder, dataset=embeddings).best["step"] == 4


def test_predictions_that_are_nan_are_not_scored(embeddings, make_config, folder, monkeypatch):
    monkeypatch.setitem(METHODS, "steady", Steady)
    config = make_config(method="steady", method_options={"log_probability": "nan"})
    with pytest.raises(NumericalError, match=r"got NaN for (\d+) of \1 queries"):
        train(config, folder, dataset=embeddings)
    assert not read_log(folder)


def test_a_probability_of_zero_is_no_reason_to_stop(embeddings, make_config, folder, monkeypatch, run_content):
    monkeypatch.setitem(METHODS, "steady", Steady)
    config = make_config(method="steady", method_options={"log_probability": "-inf"})
    result = train(config, folder, dataset=embeddings)
    assert (result.best["step"], result.best["val_nll"]) == (4, None)
    assert [record["val_nll"] for record in read_log(folder)] == [None] * 3
    before = run_content(folder)
    train(None, folder, resume=True, dataset=embeddings)
    assert run_content(folder) == before


def test_checkpoints_are_written_when_it_is_time(embeddings, make_config, folder):
    seen = []

    def look(done, total, label):
        seen.append((done, load_step(folder)))

    train(make_config(save_every=1e6), folder, dataset=embeddings, progress=look)
    assert seen == [(4, None), (8, None), (12, None)]
    assert load_step(folder) == 12
    folder, seen = folder.with_name("two"), []
    train(make_config(save_every=0.0), folder, dataset=embeddings, progress=look)
    assert seen == [(4, None), (8, 4), (12, 8)]


def load_step(folder):
    path = folder / "last.safetensors"
    return load_checkpoint(path).info["step"] if path.exists() else None


def test_data_that_cannot_serve_are_refused_and_the_lock_is_given_back(embeddings, make_config, folder):
    with pytest.raises(InvalidInputError, match="classes for training and validation"):
        train(make_config(), folder, dataset=embeddings._replace(val=None))
    assert not (folder / "run.lock").exists()
    with pytest.raises(DataError, match="5 classes for n_way = 6"):
        train(make_config(n_way=6), folder.with_name("two"), dataset=embeddings)
    with pytest.raises(
        InvalidInputError, match="'identity' for embeddings and another one for images, but got 'conv4s'"
    ):
        train(make_config(backbone="conv4s"), folder.with_name("three"), dataset=embeddings)


def test_settings_that_only_the_first_step_can_refuse_leave_no_run(pictures, make_config, folder):
    with pytest.raises(InvalidInputError, match="auxiliary_weight=0 for maml"):
        train(make_config(method="maml", auxiliary_weight=1.0), folder, dataset=pictures)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["mirror_gp", "matchingnet", "maml"])
def test_embeddings_in_double_precision_are_trained_on_as_in_single(embeddings, make_config, tmp_path, name):
    parts = (part._replace(items=part.items.double()) for part in (embeddings.train, embeddings.val))
    double = embeddings._replace(**dict(zip(("train", "val"), parts, strict=True)))
    config = make_config(method=name, n_episodes=4)
    one, other = (train(config, tmp_path / str(data.train.items.dtype), dataset=data) for data in (embeddings, double))
    assert one.best["val_nll"] == other.best["val_nll"]


def test_a_device_that_is_not_there_is_explained(embeddings, make_config, folder):
    for device, message in (("tpu", "auto, cpu, cuda or cuda:N, but got 'tpu'"), ("cuda:7", "a GPU number 7, but got")):
        with pytest.raises(InvalidInputError, match=message):
            train(make_config(device=device), folder, dataset=embeddings)
    assert not folder.exists()


def test_speed_counts_this_session_only(embeddings, make_config, folder):
    started = time.perf_counter()
    train(make_config(), folder, dataset=embeddings)
    result = train(None, folder, resume=True, dataset=embeddings)
    assert (result.n_episodes, result.episodes_per_second) == (12, 0.0)
    assert result.seconds < time.perf_counter() - started
    json.dumps(result.best, allow_nan=False)

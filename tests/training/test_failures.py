import math

import pytest
import torch

from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.methods import METHODS
from mirrorshot.methods.protonet import ProtoNet
from mirrorshot.training import train
from mirrorshot.training.folder import read_log
from mirrorshot.training.learner import Learner
from mirrorshot.types import InvalidInputError, NumericalError


class _Spoil(torch.autograd.Function):
    """The identity, with another gradient."""

    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.value, None


class Breaking(ProtoNet):
    """Its loss, or only the gradient, is spoiled in one step, counted by a buffer as a real cause would be."""

    def __init__(self, backbone, *, step=0, what="loss", value="nan"):
        super().__init__(backbone)
        self.step, self.what, self.value = step, what, float(value)
        self.register_buffer("n_losses", torch.zeros((), dtype=torch.int64))

    def loss(self, tasks, query_y):
        loss = super().loss(tasks, query_y)
        if int(self.n_losses) == self.step:
            loss = loss + self.value if self.what == "loss" else _Spoil.apply(loss, self.value)
        self.n_losses += 1
        return loss


@pytest.fixture(autouse=True)
def _breaking(monkeypatch):
    monkeypatch.setitem(METHODS, "breaking", Breaking)


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [("loss", "nan", "loss nan"), ("loss", "inf", "loss inf"), ("gradient", "inf", r"loss \d.*gradient (inf|nan)")],
)
def test_a_step_that_is_not_finite_stops_the_run_and_is_named(
    pictures, make_config, tmp_path, same_tensors, what, value, message
):
    options = {"method": "breaking", "ema": 0.9, "clip": 1.0, "schedule": "constant"}
    config = make_config(**options, method_options={"step": 6, "what": what, "value": value})
    with pytest.raises(NumericalError, match=rf"step 6 \(task 6\) has {message}.*failed\.safetensors.*lower lr"):
        train(config, tmp_path / "run", dataset=pictures)
    # the same run without the failure, to the last step before it
    train(make_config(**options, n_episodes=6, method_options={"step": 99}), tmp_path / "twin", dataset=pictures)
    failed, twin = (
        load_checkpoint(tmp_path / name).tensors for name in ("run/failed.safetensors", "twin/last.safetensors")
    )
    twin = {name: t for name, t in twin.items() if not name.startswith("best.")}
    assert same_tensors(failed, twin)
    assert load_checkpoint(tmp_path / "run" / "failed.safetensors").info["step"] == 6
    assert all(t.isfinite().all() for t in failed.values())
    assert int(failed["method.n_losses"]) == 6


def test_checkpoints_from_before_a_failure_are_untouched(pictures, make_config, tmp_path, run_content):
    folder = tmp_path / "run"
    config = make_config(method="breaking", method_options={"step": 5})
    contents = []

    def look(*_):
        if len(read_log(folder)) == 2:
            pytest.fail("validated after the failure")

    for resume in (False, True):  # it fails again at the same place
        with pytest.raises(NumericalError, match=r"step 5 \(task 5\)"):
            train(None if resume else config, folder, resume=resume, dataset=pictures, progress=look)
        contents.append(run_content(folder))
    assert contents[0] == contents[1]
    assert load_checkpoint(folder / "last.safetensors").info["step"] == 4
    assert not (folder / "run.lock").exists()


def test_all_tasks_of_a_failed_step_are_named(pictures, make_config, tmp_path):
    config = make_config(method="breaking", tasks_per_step=4, method_options={"step": 2})
    with pytest.raises(NumericalError, match=r"step 2 \(tasks 8 to 11\)"):
        train(config, tmp_path / "run", dataset=pictures)


def test_the_first_step_may_fail(pictures, make_config, tmp_path):
    with pytest.raises(NumericalError, match=r"step 0 \(task 0\)"):
        train(make_config(method="breaking"), tmp_path / "run", dataset=pictures)
    assert load_checkpoint(tmp_path / "run" / "failed.safetensors").info["step"] == 0
    assert read_log(tmp_path / "run") == []


@pytest.mark.parametrize("method", ["mirror_gp", "gd_gp", "protonet"])
def test_absurd_learning_rates_end_or_are_explained(pictures, make_config, tmp_path, method):
    config = make_config(method=method, lr=10.0, kernel_lr=10.0, schedule="constant", n_episodes=24)
    try:
        result = train(config, tmp_path / "run", dataset=pictures)
    except NumericalError as error:
        assert "step " in str(error)  # noqa: PT017 - either end is right
    else:
        assert math.isfinite(result.best["val_accuracy"])


def test_a_run_that_cannot_begin_leaves_its_folder_free(pictures, make_config, tmp_path):
    folder = tmp_path / "run"
    for _ in range(2):  # the second time for the same reason, not because of the first
        with pytest.raises(InvalidInputError, match="options of 'mirror_gp'"):
            train(make_config(method_options={"colour": 3}), folder, dataset=pictures)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (1, r"a value that is not finite\. The"),
        (-1, r"a value that is not finite \(finite when repeated step by step\)"),
    ],
)
def test_a_failure_that_a_gpu_reports_after_a_block_is_told_in_words(
    embeddings, make_config, tmp_path, monkeypatch, again, message
):
    run = Learner.run

    def report_failure(self, *arguments):
        return run(self, *arguments)._replace(first_bad=torch.tensor(1))

    monkeypatch.setattr(Learner, "run", report_failure)
    monkeypatch.setattr(Learner, "find_failure", lambda self, block, first_step: again)
    with pytest.raises(NumericalError, match=rf"but step 1 \(task 1\) has {message}"):
        train(make_config(data="embeddings"), tmp_path / "run", dataset=embeddings)

import errno
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.files.lock import RunError
from mirrorshot.files.writing import CheckpointWriteError
from mirrorshot.methods import METHODS
from mirrorshot.methods.protonet import ProtoNet
from mirrorshot.training import train
from mirrorshot.training.folder import RunFolder, read_log
from mirrorshot.types import InvalidInputError

CHANGES = {"n_episodes": 14, "ema": 0.9, "augment": True, "method_options": {"start": "amortised", "n_steps": 2}}
N_BLOCKS = 4


class NoisyTuning(ProtoNet):
    """Tuning twice is not tuning once. The first validation is better than the second, the third than the first."""

    def __init__(self, backbone):
        super().__init__(backbone)
        self.register_buffer("tuned", torch.zeros(()))
        self.register_buffer("n_times", torch.zeros((), dtype=torch.int64))

    @property
    def is_tuned(self):
        return True

    def tune(self, tasks, query_y):
        self.tuned += tasks.query_x.mean() + 1
        self.n_times += 1

    def predict(self, tasks):
        if self.training:
            return super().predict(tasks)
        sharpness = (0, 2, 1, 3, 0, 0)[int(self.n_times)]
        truth = torch.arange(6).expand(tasks.n_tasks, 6) // 2  # points are class-major
        return torch.log_softmax(sharpness * torch.nn.functional.one_hot(truth, 3).float(), -1)


@pytest.fixture(autouse=True)
def _noisy_tuning(monkeypatch):
    monkeypatch.setitem(METHODS, "noisy", NoisyTuning)


@pytest.fixture(autouse=True)
def _report_blocks(monkeypatch):
    """Progress is reported after each block alone: a busy machine would report within blocks, too."""
    monkeypatch.setattr("mirrorshot.training.trainer._TELL_EVERY", math.inf)


@pytest.fixture(scope="module", name="whole")
def _whole(pictures, tmp_path_factory):
    """Runs that were not interrupted, by method."""
    made = {}

    def get(config):
        if config.method not in made:
            made[config.method] = tmp_path_factory.mktemp("whole") / "run"
            train(config, made[config.method], dataset=pictures)
        return made[config.method]

    return get


@pytest.fixture
def interrupted(pictures, tmp_path, monkeypatch):
    """Starts or continues a run that stops when it reports its n-th block, or once it has saved it."""

    def run(config, n_blocks, *, folder=None, resume=False, after_save=None):
        folder = folder or tmp_path / "run"
        calls = []

        def stop(*_):
            calls.append(1)
            if len(calls) == n_blocks:
                raise KeyboardInterrupt

        save = RunFolder.save

        def stopping(self, name, tensors, info):
            save(self, name, tensors, info)
            if name == after_save:
                stop()

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "save", stopping)
            with pytest.raises(KeyboardInterrupt):
                train(config, folder, resume=resume, dataset=pictures, progress=None if after_save else stop)
        return folder

    return run


@pytest.mark.parametrize(
    ("method", "after_save"), [("mirror_gp", None), ("noisy", None), ("noisy", "best"), ("noisy", "last")]
)
def test_a_run_interrupted_anywhere_ends_as_if_it_had_not_been(
    pictures, make_config, interrupted, whole, run_content, tmp_path, method, after_save
):
    options = CHANGES["method_options"] if method == "mirror_gp" else {}
    config = make_config(**{**CHANGES, "method": method, "method_options": options})
    expected = run_content(whole(config))
    for n_blocks in range(1, N_BLOCKS + 1) if method == "noisy" else (2,):
        folder = interrupted(config, n_blocks, folder=tmp_path / str(n_blocks), after_save=after_save)
        assert not (folder / "run.lock").exists()
        result = train(None, folder, resume=True, dataset=pictures)
        assert run_content(folder) == expected, n_blocks
        assert result.n_episodes == 14


def test_a_run_interrupted_after_every_block_ends_as_if_it_had_not_been(
    pictures, make_config, interrupted, whole, run_content
):
    config = make_config(**CHANGES)
    folder = interrupted(config, 1, after_save="last")
    for _ in range(N_BLOCKS - 1):
        interrupted(None, 1, folder=folder, resume=True, after_save="last")
    train(None, folder, resume=True, dataset=pictures)
    assert run_content(folder) == run_content(whole(config))


def test_the_best_weights_always_belong_to_their_record(pictures, make_config, interrupted, tmp_path):
    # a stop between the two files leaves a best checkpoint of the third block, and a last one of the first
    config = make_config(**{**CHANGES, "method": "noisy", "method_options": {}})
    folder = interrupted(config, 1, after_save="last")
    later = interrupted(config, 3, folder=tmp_path / "later", after_save="best")
    assert load_checkpoint(later / "best.safetensors").info["step"] == 12
    (folder / "best.safetensors").write_bytes((later / "best.safetensors").read_bytes())
    interrupted(None, 1, folder=folder, resume=True, after_save="last")
    best = load_checkpoint(folder / "best.safetensors")
    assert (best.info["step"], float(best.tensors["method.n_times"])) == (4, 1)


def test_resuming_a_finished_run_changes_nothing(pictures, make_config, whole, run_content):
    for method, options in (("mirror_gp", CHANGES["method_options"]), ("noisy", {})):
        folder = whole(make_config(**{**CHANGES, "method": method, "method_options": options}))
        before, times = run_content(folder), (folder / "best.safetensors").stat().st_mtime_ns
        result = train(None, folder, resume=True, dataset=pictures)
        assert run_content(folder) == before
        assert (folder / "best.safetensors").stat().st_mtime_ns == times
        assert result.best in read_log(folder)


def test_a_run_that_has_saved_nothing_begins_again(pictures, make_config, interrupted, whole, run_content):
    config = make_config(**CHANGES)
    folder = interrupted(config.replace(save_every=1e6), 2)
    assert not (folder / "last.safetensors").exists()
    train(None, folder, resume=True, dataset=pictures)
    assert run_content(folder)["last"] == run_content(whole(config))["last"]


def test_a_run_goes_on_with_its_own_settings_only(pictures, make_config, interrupted):
    config = make_config(**CHANGES)
    folder = interrupted(config, 2)
    before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    message = r"settings of the run .* but these differ: lr \(0.5, not 0.001\), method \('gd_gp', not 'mirror_gp'\)"
    with pytest.raises(InvalidInputError, match=message):
        train(config.replace(lr=0.5, method="gd_gp"), folder, resume=True, dataset=pictures)
    assert sorted((path.name, path.read_bytes()) for path in folder.iterdir()) == before


def test_where_and_how_often_a_run_writes_may_change(pictures, make_config, interrupted, whole, run_content):
    config = make_config(**CHANGES)
    folder = interrupted(config, 2)
    train(config.replace(save_every=30.0), folder, resume=True, dataset=pictures)
    assert run_content(folder)["log"] == run_content(whole(config))["log"]


@pytest.mark.parametrize("changes", [{"method": "protonet"}, {"backbone": "resnet10"}, {"ema": 0.0}])
def test_a_checkpoint_of_another_run_is_refused(pictures, make_config, interrupted, tmp_path, changes):
    folder = interrupted(make_config(**CHANGES), 2)
    config = make_config(**{**CHANGES, "method_options": {}, **changes})
    other = tmp_path / "other"
    with RunFolder.create(other, config.to_dict()):
        pass
    for name in ("last", "best"):
        (other / f"{name}.safetensors").write_bytes((folder / f"{name}.safetensors").read_bytes())
    with pytest.raises(InvalidInputError, match=r"last checkpoint to fit the settings .* \d+ tensors differ"):
        train(None, other, resume=True, dataset=pictures)


def test_there_must_be_a_run_to_resume(pictures, make_config, tmp_path):
    for config in (None, make_config()):
        with pytest.raises(RunError, match="Expected a run in"):
            train(config, tmp_path / "nothing", resume=True, dataset=pictures)


def test_a_folder_with_a_run_is_not_written_over(pictures, make_config, whole, run_content):
    config = make_config(**CHANGES)
    folder = whole(config)
    before = run_content(folder)
    with pytest.raises(RunError, match="Use --resume"):
        train(config, folder, dataset=pictures)
    assert run_content(folder) == before
    assert not (folder / "run.lock").exists()


def test_two_processes_do_not_write_into_one_folder(pictures, make_config, tmp_path, whole, run_content):
    config, folder, errors = make_config(**CHANGES), tmp_path / "run", []

    def second(*_):
        for resume in (False, True):
            with pytest.raises(RunError, match="no other process to write into") as error:
                train(config, folder, resume=resume, dataset=pictures)
            errors.append(error.value)

    train(config, folder, dataset=pictures, progress=second)
    assert len(errors) == 2 * N_BLOCKS
    assert run_content(folder) == run_content(whole(config))


@pytest.mark.parametrize("failing", ["last.safetensors", "best.safetensors"])
def test_a_full_disk_stops_the_run_and_leaves_it_whole(
    pictures, make_config, tmp_path, monkeypatch, whole, run_content, failing
):
    config, folder, saves = make_config(**CHANGES), tmp_path / "run", []
    replace = os.replace

    def full(source, target):
        saves.append(Path(target).name)
        if saves.count(failing) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(CheckpointWriteError, match=rf"{failing}, but got: No space left .* Make room"):
            train(config, folder, dataset=pictures)
    assert load_checkpoint(folder / "last.safetensors").info["step"] == 8
    assert sorted(os.listdir(folder)) == ["best.safetensors", "config.json", "last.safetensors", "log.jsonl"]
    train(None, folder, resume=True, dataset=pictures)
    assert run_content(folder) == run_content(whole(config))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_log_that_cannot_be_written_stops_the_run(pictures, make_config, tmp_path, monkeypatch):
    begin = RunFolder.__init__

    def on_a_full_disk(self, path, config, lock):
        begin(self, path, config, lock)
        self._log.close()
        self._log = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 - closed by the folder

    monkeypatch.setattr(RunFolder, "__init__", on_a_full_disk)
    with pytest.raises(CheckpointWriteError, match=r"append to .*log\.jsonl.* Make room, then --resume"):
        train(make_config(**CHANGES), tmp_path / "run", dataset=pictures)
    assert not (tmp_path / "run" / "run.lock").exists()


def start(*arguments, **environment):
    """A training process of its own."""
    script = Path(__file__).parent / "run_training.py"
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_process_is_continued_by_another(pictures, make_config, tmp_path, whole, run_content):
    folder = tmp_path / "run"
    killed = start(folder, "--hang", "0")
    try:
        deadline = time.monotonic() + 300
        while not (folder / "last.safetensors").exists() and killed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
    finally:
        killed.kill()
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert (folder / "run.lock").exists()
    assert load_checkpoint(folder / "last.safetensors").info["step"] < 14
    second = start(folder, "--resume")
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    assert "Took over the lock" in errors
    assert run_content(folder) == run_content(whole(make_config(**CHANGES)))


def test_data_that_have_changed_are_refused(embeddings, make_config, tmp_path):
    train(make_config(), tmp_path, dataset=embeddings)
    fewer = embeddings._replace(train=embeddings.train.subset(range(4)))
    with pytest.raises(InvalidInputError, match=r"items that the run in .* began with, but others are there"):
        train(None, tmp_path, resume=True, dataset=fewer)

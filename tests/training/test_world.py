import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.training import train
from mirrorshot.training.folder import read_log
from mirrorshot.training.world import World, choose_device
from mirrorshot.types import InvalidInputError

SCRIPT = Path(__file__).parent / "run_training.py"
PICTURES = {
    "data": "pictures", "norm": "task", "tasks_per_step": 2, "n_episodes": 16, "ema": 0.9, "augment": True,
    "n_validation_tasks": 5, "method_options": {"start": "amortised", "n_steps": 2},
}  # fmt: skip
EMBEDDINGS = {
    "data": "embeddings", "tasks_per_step": 2, "n_episodes": 16, "kernel_lr": 0.05,
    "method_options": {"start": "amortised", "n_steps": 2},
}  # fmt: skip


def free_port():
    """A port that nobody else takes before the processes have started.

    The system gives ports from 32768 on to connections, on Linux, so clients of other tests have none of these.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("Expected one of 100 ports to be free, but got none.")


def start(folder, changes, *arguments, size=2):
    """The processes of a run, as torchrun would start them."""
    port = free_port()
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder), "--changes", json.dumps(changes), *arguments]
    return [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **world, "RANK": str(rank)})
        for rank in range(size)
    ]


def kill(processes, victim, folder):
    """Kill one of them once the run has a checkpoint."""
    deadline = time.monotonic() + 300
    while not (folder / "last.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    processes[victim].send_signal(signal.SIGKILL)
    return finish(processes)


def finish(processes):
    """Exit codes and what was written to stderr."""
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


def tensors_of(folder, name):
    return load_checkpoint(folder / f"{name}.safetensors").tensors


def test_two_processes_train_as_one_does(tmp_path, pictures, make_config):
    folder = tmp_path / "run"
    codes, errors = finish(start(folder, PICTURES))
    assert codes == [0, 0], errors
    assert sorted(os.listdir(folder)) == ["best.safetensors", "config.json", "last.safetensors", "log.jsonl"]
    train(make_config(**PICTURES), tmp_path / "alone", dataset=pictures)
    ours, alone = (tensors_of(path, "last") for path in (folder, tmp_path / "alone"))
    assert ours.keys() == alone.keys()
    for name, tensor in alone.items():
        if name.startswith(("method.", "average.", "best.")):
            torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=2e-4)  # 8 steps of 1e-3
    for record, expected in zip(read_log(folder), read_log(tmp_path / "alone"), strict=True):
        assert record["val_nll"] == pytest.approx(expected["val_nll"], rel=1e-4)
        assert record["temperature"] == pytest.approx(expected["temperature"], rel=1e-3)
        assert record["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert record["gradient"] == pytest.approx(expected["gradient"], rel=1e-3)


def test_two_processes_train_the_auxiliary_classifier_as_one_does(tmp_path, pictures, make_config):
    changes = {key: value for key, value in PICTURES.items() if key != "method_options"}
    changes |= {"method": "protonet", "auxiliary_weight": 0.5}
    codes, errors = finish(start(tmp_path / "run", changes))
    assert codes == [0, 0], errors
    train(make_config(**changes), tmp_path / "alone", dataset=pictures)
    ours, alone = (tensors_of(tmp_path / name, "last") for name in ("run", "alone"))
    assert ours.keys() == alone.keys()
    for name, tensor in alone.items():
        if name.startswith(("method.", "average.", "auxiliary.")):
            torch.testing.assert_close(ours[name], tensor, rtol=1e-4, atol=2e-4)


@pytest.mark.long
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_run_survives_the_death_of_its_first_process(tmp_path, embeddings, make_config):
    folder = tmp_path / "run"
    codes, errors = kill(start(folder, EMBEDDINGS, "--hang", "0"), 0, folder)
    assert codes == [-signal.SIGKILL, 1], errors
    assert "LostProcessError" in errors[1]
    assert "start again with --resume" in errors[1]
    assert 0 < load_checkpoint(folder / "last.safetensors").info["step"] < 8
    best = []
    for _ in range(2):  # the second time it is finished
        codes, errors = finish(start(folder, EMBEDDINGS, "--resume"))
        assert codes == [0, 0], errors
        best += [json.loads((tmp_path / f"result-{rank}.json").read_text())[0] for rank in (0, 1)]
    records = [{name: value for name, value in record.items() if name != "seconds"} for record in best]
    assert records[0] == records[1] == records[2] == records[3]
    train(make_config(**EMBEDDINGS), tmp_path / "alone", dataset=embeddings)
    for name in ("last", "best"):  # no network here: all tensors agree
        ours, alone = (tensors_of(path, name) for path in (folder, tmp_path / "alone"))
        assert ours.keys() == alone.keys()
        for key, tensor in alone.items():
            torch.testing.assert_close(ours[key], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_the_first_process_tells_of_the_death_of_another(tmp_path):
    folder = tmp_path / "run"
    codes, errors = kill(start(folder, EMBEDDINGS, "--hang", "1"), 1, folder)
    assert codes == [1, -signal.SIGKILL], errors
    assert "LostProcessError" in errors[0]
    assert "start again with --resume" in errors[0]
    assert not (folder / "run.lock").exists()


def test_tasks_that_cannot_be_shared_are_refused_by_every_process(tmp_path):
    codes, errors = finish(start(tmp_path / "run", {"data": "embeddings", "tasks_per_step": 1}))
    assert codes == [1, 1]
    message = "`tasks_per_step` to be a multiple of the 2 processes, but got 1"
    assert all(message in error for error in errors), errors
    assert not (tmp_path / "run").exists()


def test_a_world_of_one_shares_with_nobody():
    world, x = World(0, 1, torch.device("cpu")), torch.ones(2)
    world.mean_([x])
    world.share_([x])
    assert world.sum_(x) is x
    assert world.share_value({"a": 1}) == {"a": 1}
    assert (x.tolist(), world.is_first, world.part_of(3)) == ([1.0, 1.0], True, range(3))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_parts_of_all_processes_are_the_whole(n, size):
    parts = [World(rank, size, torch.device("cpu")).part_of(n) for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_devices_are_chosen_by_name():
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("gpu", "meta", "cpu:x", ""):
        with pytest.raises(InvalidInputError, match="`device` to be auto, cpu, cuda or cuda:N"):
            choose_device(name)
    if not torch.cuda.is_available():
        assert choose_device("auto") == torch.device("cpu")
        with pytest.raises(InvalidInputError, match=r"but got 0 GPUs\. Use device=cpu"):
            choose_device("cuda")

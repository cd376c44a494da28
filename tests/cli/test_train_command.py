import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mirrorshot.training
from mirrorshot.training.folder import read_config, read_log
from mirrorshot.training.validation import Score, Validator
from mirrorshot.types import NumericalError

from .conftest import TINY


def test_a_run_is_trained_and_told_of(run, data, tmp_path):
    result = run("train", "--data", data, *TINY, "--n-shot", 2, "--seed", 3)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / "points-mirror_gp-2shot"
    assert re.search(r"Best validation accuracy \d+\.\d%", result.stdout)
    assert "Next:  mirrorshot evaluate runs/points-mirror_gp-2shot\n" in result.stdout
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "log.jsonl", "best.safetensors", "last.safetensors",
    }  # fmt: skip
    config = read_config(folder)
    assert (config["seed"], config["n_shot"], config["n_episodes"], config["data"]) == (3, 2, 8, str(data))
    assert [record["episodes"] for record in read_log(folder)] == [4, 8]


def test_json_has_everything_and_nothing_else_is_printed(run, data, tmp_path):
    result = run("train", "--data", data, *TINY, "--output", tmp_path / "a b", "--json")
    record = json.loads(result.stdout)
    assert result.stderr == ""
    assert record["best"]["val_accuracy"] > 0.2
    assert record["n_episodes"] == 8
    assert record["config"]["data"] == str(data)
    assert record["next"] == f"mirrorshot evaluate '{tmp_path / 'a b'}'"


def test_a_run_with_an_infinite_validation_nll_is_told_of(run, data, monkeypatch):
    monkeypatch.setattr(Validator, "read", lambda self, sums: Score(float(sums[0] / sums[3]), math.inf))
    result = run("train", "--data", data, *TINY)
    assert result.exit_code == 0, result.output
    assert re.search(r"Best validation accuracy \d+\.\d%, NLL infinite, after 4 of 8 episodes", result.stdout)
    assert [record["val_nll"] for record in read_log(Path("runs/points-mirror_gp-1shot"))] == [None, None]


def test_settings_come_from_a_file_too(run, data, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(f"data = '{data}'\nn_query = 3\n[method_options]\nkernel = 'linear'\n")
    result = run("train", "--config", file, *TINY, "--output", tmp_path / "run")
    assert result.exit_code == 0, result.output
    config = read_config(tmp_path / "run")
    assert (config["n_query"], config["method_options"]["kernel"]) == (4, "linear")


def test_a_run_is_resumed_where_it_stopped(train, run, tmp_path):
    whole = train(tmp_path / "whole")
    before = (whole / "log.jsonl").read_text()
    result = run("train", "--resume", whole, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "after" in result.stdout
    assert (whole / "log.jsonl").read_text() == before


def check_refused(result, exit_code, message):
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "papers"], "Expected `preset` to be one of default, paper, but got 'papers'."),
        (["--method", "mamml"], "but got 'mamml'."),
        (["--set", "learning_rate=1"], "but got `learning_rate`."),
        (["--set", "lr"], "Expected name=value, for instance lr=3e-4, but got 'lr'."),
        (["--set", "lr=fast"], "Expected setting `lr` to be"),
        (["--set", "method_options.steps=1"], "but got steps."),
        (["--n-way", 1], "Expected setting `n_way` to be between 2 and"),
        (["--episodes", 0], "Expected setting `n_episodes` to be between 1 and"),
        (["--seed", -1], "Expected setting `seed`"),
        (["--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["--resume", "somewhere", "--seed", 1], "Expected --resume without other settings"),
        (["--resume", "somewhere", "--output", "x"], "Expected --resume without other settings"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, tmp_path, arguments, message):
    check_refused(run("train", *arguments), 2, message)
    assert list(tmp_path.iterdir()) == []  # nothing was begun


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "cub"], "set it to a folder with CUB-200-2011 from https://"),
        (["--data", "glyps"], "'glyps' is neither; check the spelling."),
        (["--resume", "nowhere"], "Expected a run in nowhere, but got no config.json there."),
        (["--device", "tpu"], "Expected `device` to be auto, cpu, cuda or cuda:N, but got 'tpu'."),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_1(run, tmp_path, arguments, message):
    check_refused(run("train", *arguments), 1, message)
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_the_data_do_not_allow_are_explained(run, data):
    result = run("train", "--data", data, *TINY, "--n-way", 9)
    assert result.exit_code == 1
    assert "8 classes for n_way = 9" in result.stderr


def test_a_warning_is_one_line(run, data):
    result = run("train", "--data", data, *TINY, "--n-query", 20, "--episodes", 4)
    assert result.exit_code == 0, result.output
    assert "Warning: n_query lowered from 20 to 11 in ALL episodes" in result.stderr
    assert ".py" not in result.stderr


def test_a_folder_with_a_run_is_not_overwritten(train, run, data, tmp_path):
    folder = train(tmp_path / "run")
    result = run("train", "--data", data, *TINY, "--output", folder)
    assert result.exit_code == 2
    assert f"mirrorshot train --resume {folder}" in result.stderr


def test_a_folder_that_cannot_be_written_is_refused_first(run, data, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    result = run("train", "--data", data, "--output", tmp_path / "file" / "run")
    assert result.exit_code == 2
    assert "Expected --output to be a folder that can be written" in result.stderr
    monkeypatch.setattr("os.access", lambda *_: False)  # also for root, who may write anywhere
    assert "no permission" in run("train", "--data", data, "--output", tmp_path / "run").stderr


def test_a_failure_of_ours_is_a_line_and_a_bug_keeps_its_traceback(run, data, monkeypatch):
    def fail(error):
        def raise_it(*_, **__):
            raise error

        monkeypatch.setattr(mirrorshot.training, "train", raise_it)
        return run("train", "--data", data, *TINY)

    result = fail(NumericalError("out of\nrange"))
    assert (result.exit_code, result.stderr) == (1, "Error: out of range\n")
    assert isinstance(fail(RuntimeError("a bug")).exception, RuntimeError)


def test_ctrl_c_says_how_to_resume(run, data, monkeypatch, tmp_path):
    def stop(config, folder, **_):
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(mirrorshot.training, "train", stop)
    result = run("train", "--data", data, *TINY)
    assert result.exit_code == 130
    assert result.stderr == "Stopped. Resume with: mirrorshot train --resume runs/points-mirror_gp-1shot\n"


@pytest.mark.skipif(os.name != "posix", reason="needs SIGINT as a shell sends it")
def test_a_run_stopped_by_a_signal_can_be_resumed(in_subprocess, data, tmp_path):
    command = ["-m", "mirrorshot", "train", "--data", data, *TINY, "--episodes", 100_000, "--output", "run", "--quiet"]
    process = subprocess.Popen(
        [sys.executable, *map(str, command), "--set", "save_every=0"], stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )  # fmt: skip
    last, deadline = tmp_path / "run" / "last.safetensors", time.monotonic() + 300
    while not last.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert errors == "Stopped. Resume with: mirrorshot train --resume run\n"
    assert not (tmp_path / "run" / "run.lock").exists()


def test_two_processes_train_one_run_and_one_of_them_prints(in_subprocess, data):
    arguments = ["--data", data, *TINY, "--set", "tasks_per_step=2", "--output", "run"]
    done = in_subprocess(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
        "-m", "mirrorshot", "train", *arguments,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Best validation accuracy") == 1

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from mirrorshot.cli import main


@pytest.fixture(autouse=True)
def _wide_and_alone(monkeypatch, tmp_path):
    """A wide terminal, no benchmark data, no torchrun, and a folder of one's own to work in."""
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("MIRRORSHOT_DATA", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run():
    def invoke(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def in_subprocess():
    def start(*arguments, **options):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, **options)

    return start


def write_embeddings(folder, *, seed=0, n_features=6):
    """Classes that are easy to tell apart, as a data set of one's own."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for split in ("train", "val", "test"):
        centres = rng.normal(size=(8, n_features))
        X = np.repeat(centres, 12, 0) + 0.3 * rng.normal(size=(96, n_features))
        names = np.array([f"{split}-{c}" for c in range(8)])
        np.savez(folder / f"{split}.npz", X=X.astype(np.float32), y=np.repeat(names, 12))
    return folder


@pytest.fixture
def data(tmp_path):
    return write_embeddings(tmp_path / "points")


TINY = ("--n-query", 4, "--episodes", 8, "--device", "cpu", "--set", "validate_every=4",
        "--set", "n_validation_tasks=3", "--set", "n_tune_tasks=3")  # fmt: skip


@pytest.fixture
def train(run, data):
    """Train on the embeddings, hardly at all; the folder of the run."""
    pytest.importorskip("torch")

    def invoke(folder, *arguments):
        result = run("train", "--data", data, *TINY, "--output", folder, "--json", *arguments)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["folder"] == str(folder)
        return folder

    return invoke

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mirrorshot.data import ClassSource
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.training.config import Config
from mirrorshot.training.folder import read_log

SETTINGS = {
    "n_way": 3, "n_shot": 1, "n_query": 2, "n_episodes": 12, "validate_every": 4, "n_validation_tasks": 6,
    "n_tune_tasks": 4, "save_every": 0.0, "device": "cpu", "data": "pictures",
}  # fmt: skip
CLOCK = ("seconds",)  # fields of the log that differ from run to run


def make_embeddings(seed, n_classes=5, n_per_class=8):
    """Classes as clouds in four dimensions, with the same scatter in each."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_classes, 1, 4)) + 0.7 * rng.normal(size=(n_classes, n_per_class, 4))
    return ClassSource.from_arrays(X.reshape(-1, 4).astype(np.float32), np.arange(n_classes).repeat(n_per_class))


def make_pictures(seed, n_classes=5, n_per_class=6, size=28):
    """Each class is a coarse pattern of its own, under noise."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 128, (n_classes, 1, 4, 4)).repeat(size // 4, -1).repeat(size // 4, -2)
    X = patterns[:, None] + rng.integers(0, 128, (n_classes, n_per_class, 1, size, size))
    return ClassSource.from_arrays(
        X.reshape(-1, 1, size, size).astype(np.uint8), np.arange(n_classes).repeat(n_per_class)
    )


def make_dataset(kind):
    """Made-up data: "embeddings" (the kernel is all that is trained) or "pictures"."""
    if kind == "embeddings":
        return Dataset(kind, make_embeddings(0), make_embeddings(1), None, 0, 0, False, (), ())
    return Dataset(kind, make_pictures(0), make_pictures(1), None, 28, 1, False, (0.1,), (0.5,))


def make_config(**changes):
    """Settings of a run that takes a second."""
    return Config(**{**SETTINGS, **changes})


def run_content(folder):
    """What a run has computed: tensors and facts of its checkpoints, and its log, without readings of the clock."""
    content = {"log": [without_clock(record) for record in read_log(folder)]}
    for name in ("best", "last"):
        tensors, info = load_checkpoint(Path(folder) / f"{name}.safetensors")
        content[name] = {key: (str(t.dtype), t.shape, t.numpy().tobytes()) for key, t in tensors.items()}
        content[f"{name} info"] = json.dumps(without_clock(info), sort_keys=True)
    return content


def without_clock(record):
    plain = {key: value for key, value in record.items() if key not in CLOCK}
    return {key: without_clock(value) if isinstance(value, dict) else value for key, value in plain.items()}


@pytest.fixture(scope="session")
def embeddings():
    return make_dataset("embeddings")


@pytest.fixture(scope="session")
def pictures():
    return make_dataset("pictures")


@pytest.fixture(name="make_config")
def _make_config():
    return make_config


@pytest.fixture(name="run_content")
def _run_content():
    return run_content


@pytest.fixture(name="make_pictures")
def _make_pictures():
    return make_pictures


@pytest.fixture
def same_tensors():
    """Whether two dicts hold the same tensors, bit for bit."""

    def compare(one, other):
        return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

    return compare

from pathlib import Path

import numpy as np
import pytest

from mirrorshot.paper.cell_run import Places
from mirrorshot.paper.cells import Result


@pytest.fixture
def data(tmp_path):
    """Classes that are easy to tell apart, as embeddings of one's own."""
    rng, folder = np.random.default_rng(0), tmp_path / "points"
    folder.mkdir()
    for split in ("train", "val", "test"):
        X = np.repeat(rng.normal(size=(8, 6)), 20, 0) + 0.3 * rng.normal(size=(160, 6))
        names = np.array([f"{split}-{c}" for c in range(8)])
        np.savez(folder / f"{split}.npz", X=X.astype(np.float32), y=np.repeat(names, 20))
    return str(folder)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "results", tmp_path / "runs")


@pytest.fixture
def result_of():
    """Makes what a run of a cell would have written."""

    def make(cell, accuracy, *, tasks=None, config=None, note=None, **evaluation):
        found = {
            "protocol": {"episodes": "same"},
            "accuracy": accuracy,
            "accuracy_sd": 0.005,
            "accuracy_interval_95": 0.004,
            "raw": {"ece": 0.3, "mce": 0.4},
            "calibrated": {"ece": 0.02, "mce": 0.06},
            **evaluation,
        }
        settings = cell.config().replace(**(config or {})).to_dict()
        record = {"config": settings, "evaluation": found, "training_time_s": 3.0, "wall_time_s": 4.0}
        record |= {"device": "a machine", "commit": "0123456789"} | ({"note": note} if note else {})
        if tasks is not None:
            record["task_accuracy"] = [" ".join(f"{x:.4f}" for x in row) for row in tasks]
        return Result(cell, Path(f"{cell.name}.json"), record)

    return make

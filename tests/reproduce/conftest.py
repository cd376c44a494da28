import numpy as np
import pytest

from mirrorshot.reproduce.runner import Places


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

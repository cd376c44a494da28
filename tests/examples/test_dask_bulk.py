"""The example with Dask, on a local cluster of two workers."""

import gc
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is not installed")

import dask  # noqa: E402
from dask.distributed import Client  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "dask_bulk.py"
# Processes of a busy machine take longer to start and to answer than the 30 seconds that a cluster waits.
PATIENT = {"distributed.comm.timeouts.connect": "300s", "distributed.comm.timeouts.tcp": "300s"}


@pytest.fixture(scope="module")
def dask_bulk(load_file):
    return load_file(EXAMPLE)


def has_torch():
    return "torch" in sys.modules


@pytest.mark.filterwarnings("ignore")  # of tornado and distributed, when sockets are closed
def test_two_workers_give_the_probabilities_of_one_process_without_torch(dask_bulk, tmp_path):
    few, _ = dask_bulk.example()
    X = np.random.default_rng(3).normal(size=(1000, 64))
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "local_directory": tmp_path}
    with dask.config.set(PATIENT), Client(timeout=300, **options) as client:
        client.wait_for_workers(2, timeout=300)
        found = dask_bulk.classify(few, da.from_array(X, chunks=(100, 32))).compute()
        workers = client.run(has_torch)
    gc.collect()  # sockets that are still open warn here, and not in the tests after this one
    np.testing.assert_allclose(found, few.predict_proba(X), rtol=0, atol=1e-8)
    assert list(workers.values()) == [False, False]


def test_the_classifier_that_travels_is_small(dask_bulk):
    few, _ = dask_bulk.example()
    assert len(pickle.dumps(few)) < 200_000

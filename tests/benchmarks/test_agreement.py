"""A few tasks of benchmarks/agreement.py: the native core, NumPy and torch give the same probabilities and bounds."""

import importlib
from pathlib import Path

import pytest

from mirrorshot.softmax.native.loader import LIBRARY


@pytest.fixture
def agreement(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("agreement")


@pytest.mark.skipif(not LIBRARY.exists(), reason="the native core was not compiled")
@pytest.mark.parametrize("number", range(12))
def test_native_core_numpy_and_torch_agree_on_random_tasks(agreement, number):
    for name, value in agreement.compare(agreement.draw(number, seed=1)).items():
        assert value <= agreement.PROMISES[name.split()[1]], name

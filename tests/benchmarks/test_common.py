"""Provenance of results: of those that a benchmark writes, and of those that are committed."""

import importlib
import json
import re
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").glob("*.json"))
FORMER = "benchmarks/accuracy.py"  # trained cells of tables before `mirrorshot reproduce`; their names say which
EXCEPTIONS = {
    ("adapted_steps", "wall_time_s"),  # put together by hand from three calls, as its note says
    ("adapt_norm", "command"),  # its script is in commit 4ae6d1b, and its setting is gone (docs/research.md)
}
"""Historical files, and the field that is not as in others."""


def is_command(text):
    """Whether it is `mirrorshot reproduce`, what was before it, or a script that is there."""
    program, argument = text.split()[:2]
    if (program, argument) == ("mirrorshot", "reproduce"):
        return True
    is_script = argument == FORMER or (argument.startswith("benchmarks/") and (ROOT / argument).exists())
    return program == "python" and is_script


SANE = {
    "commit": lambda value: re.fullmatch(r"[0-9a-f]{40}(\+changes)?", value),
    "command": is_command,
    "device": lambda value: re.fullmatch(r"CPU, \d+ threads|NVIDIA .+", value),
    "seed": lambda value: type(value) is int,
    "wall_time_s": lambda value: 0 < value < 7 * 24 * 3600,
}


def wrong_fields(record):
    """Fields of the provenance that are missing or cannot be, with their values."""
    return {name: record.get(name) for name, is_sane in SANE.items() if name not in record or not is_sane(record[name])}


@pytest.fixture
def common(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("_common")


def test_a_result_has_its_provenance_and_the_time_since_the_script_began(common, monkeypatch, tmp_path):
    monkeypatch.setenv("MIRRORSHOT_COMMIT", "0" * 40)
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "_STARTED", time.perf_counter() - 5)
    monkeypatch.setattr("sys.argv", ["benchmarks/softmax_core.py", "--repeats", "3", "/data/folder"])
    common.save("name", {"seconds": 1.0}, seed=2)
    record = json.loads((tmp_path / "name.json").read_text())
    assert record["command"] == "python benchmarks/softmax_core.py --repeats 3 FOLDER"
    assert record["seconds"] == 1.0
    assert record["wall_time_s"] >= 5
    assert not wrong_fields(record)


def test_a_negative_wall_time_is_no_provenance():
    record = {"commit": "0" * 40, "command": "mirrorshot reproduce departures", "device": "CPU, 1 threads", "seed": 1}
    assert wrong_fields({**record, "wall_time_s": -1795001297.7}) == {"wall_time_s": -1795001297.7}
    assert wrong_fields(record) == {"wall_time_s": None}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_committed_result_can_be_traced(path):
    wrong = wrong_fields(json.loads(path.read_text("utf-8")))
    excepted = {field for name, field in EXCEPTIONS if name == path.stem}
    assert set(wrong) == excepted, wrong

"""The comparison of README.md is that of the results."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="tables", scope="module")
def _tables():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import real_embedding_table

        yield real_embedding_table
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        for name in ("real_embedding_table", "_common"):
            sys.modules.pop(name, None)


def test_readme_has_the_numbers_of_the_results(tables):
    results = json.loads((ROOT / "results" / "real_embeddings.json").read_text())["results"]
    assert tables.readme_table(results) in (ROOT / "README.md").read_text("utf-8")


def test_the_better_number_as_printed_is_bold(tables):
    def result(shot, ours, rival):
        methods = {name: dict.fromkeys(("accuracy", "nll", "ece"), value) for name, value in ((0, ours), (1, rival))}
        return {"set": "table-wine", "n_shot": shot, "methods": {"mirrorshot": methods[0], "LR C=1": methods[1]}}

    shots = [result(1, 0.50004, 0.5), result(5, 0.6, 0.7)]
    assert tables.cells(shots, "accuracy") == ["**50.0** / 60.0", "**50.0** / **70.0**"]
    assert tables.cells(shots, "nll") == ["**0.500** / **0.600**", "**0.500** / 0.700"]


def test_cosines_to_the_nearest_mean_are_not_taken_for_probabilities():
    results = json.loads((ROOT / "results" / "real_embeddings.json").read_text())["results"]
    assert all(set(result["methods"]["nearest mean"]) == {"accuracy"} for result in results)

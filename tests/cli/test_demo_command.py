import json

import pytest

import mirrorshot
import mirrorshot.paper.demo
from mirrorshot.types import NumericalError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo") / "out"


def test_demo_trains_tests_and_writes(run, folder):
    result = run("demo", "--quick", "--output", folder)
    assert result.exit_code == 0, result.output
    for text in (
        "Handwritten digits, 1 example per class", "Handwritten digits, 5 examples per class", "mirror_gp",
        "protonet", "NLL", "ECE", "Protocol: ", "report.html", f"mirrorshot evaluate {folder}/runs/mirror_gp",
    ):  # fmt: skip
        assert text in result.stdout
    assert result.stderr == ""
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    for title in ("What came out", "Do the probabilities mean", "Three tasks", "How they learned", "How to go on"):
        assert title in page
    assert page.count("<svg") == 6  # reliability, risk, three tasks, learning curves
    evaluated = run("evaluate", folder / "runs" / "mirror_gp", "--n-tasks", 2, "--seeds", 1, "--n-query", 2)
    assert evaluated.exit_code == 0, evaluated.output


def test_a_second_demo_replaces_the_first_and_prints_json(run, folder):
    result = run("demo", "--quick", "--output", folder, "--json", "--seed", 2, "--episodes", 4)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads((folder / "results.json").read_text())
    assert (document["seed"], document["settings"]["n_episodes"]) == (2, 4)
    assert document["mirrorshot_version"] == mirrorshot.__version__
    assert [(row["n_shot"], row["method"]) for row in document["results"]] == [
        (1, "mirror_gp"), (1, "protonet"), (5, "mirror_gp"), (5, "protonet"),
    ]  # fmt: skip


@pytest.mark.parametrize("option", [("--episodes", 0), ("--seed", -1)])
def test_wrong_options_have_exit_code_2(run, tmp_path, option):
    result = run("demo", "--output", tmp_path, *option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Invalid value for '{option[0]}'" in result.stderr


def test_a_folder_that_cannot_be_made_is_explained_before_the_work(run, tmp_path):
    (tmp_path / "file").touch()
    result = run("demo", "--output", tmp_path / "file" / "folder")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: Expected --output to be a folder that can be written, but got")
    assert result.stderr.count("\n") == 1


def test_an_error_of_mirrorshot_is_a_message_and_exit_code_1(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise NumericalError("out of range")

    monkeypatch.setattr(mirrorshot.paper.demo, "run_demo", fail)
    result = run("demo", "--quick", "--output", tmp_path)
    assert (result.exit_code, result.stderr) == (1, "Error: out of range\n")


def test_a_report_that_cannot_be_written_is_a_message(run, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", "report.html")

    monkeypatch.setattr(mirrorshot.paper.demo, "run_demo", lambda *_, **__: None)
    monkeypatch.setattr(mirrorshot.paper.demo, "write_demo", fail)
    result = run("demo", "--quick", "--output", tmp_path)
    assert result.exit_code == 1
    assert "report.html" in result.stderr
    assert result.stderr.count("\n") == 1

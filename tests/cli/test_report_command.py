import json

import pytest

from mirrorshot.files.checkpoint import load_checkpoint, save_checkpoint

pytest.importorskip("torch")

QUICK = ("--n-tasks", 4, "--seeds", "1,2", "--n-query", 4)


def test_a_run_is_evaluated_once_and_reported(train, run, tmp_path):
    folder = train(tmp_path / "one")
    result = run("report", folder, *QUICK, "-o", tmp_path / "out" / "r.html")
    assert result.exit_code == 0, result.output
    assert "ECE, raw" in result.stdout
    stored = (folder / "evaluation.json").read_bytes()
    page = (tmp_path / "out" / "r.html").read_text()
    for words in ("Results", "AURC", "How they learned", "data are embeddings and not images", "mirrorshot train"):
        assert words in page
    record = json.loads((tmp_path / "out" / "r.json").read_text())
    assert record["runs"][0]["evaluation"]["protocol"]["n_tasks"] == 4
    again = run("report", folder, "-o", tmp_path / "s.html", "--json")
    assert json.loads(again.stdout)["runs"][0]["evaluation"] == record["runs"][0]["evaluation"]
    assert (folder / "evaluation.json").read_bytes() == stored
    other = run("report", folder, *QUICK, "--seeds", "3,4", "-o", tmp_path / "s.html", "--json")
    assert json.loads(other.stdout)["runs"][0]["evaluation"]["protocol"]["seeds"] == [3, 4]


def test_an_evaluation_of_older_weights_is_not_used(train, run, tmp_path):
    folder = train(tmp_path / "one")
    assert run("evaluate", folder, *QUICK).exit_code == 0
    record = json.loads((folder / "evaluation.json").read_text())
    record["validated"]["val_nll"] = -1.0
    record["accuracy"] = 77
    (folder / "evaluation.json").write_text(json.dumps(record))
    result = run("report", folder, *QUICK, "-o", tmp_path / "r.html", "--json")
    assert json.loads(result.stdout)["runs"][0]["evaluation"]["accuracy"] <= 1


def test_an_evaluation_of_weights_that_were_tuned_again_is_not_used(train, run, tmp_path):
    folder = train(tmp_path / "one")
    assert run("evaluate", folder, *QUICK).exit_code == 0
    record = json.loads((folder / "evaluation.json").read_text())
    record["accuracy"] = 77
    (folder / "evaluation.json").write_text(json.dumps(record))
    tensors, info = load_checkpoint(folder / "best.safetensors")
    name = next(name for name in tensors if name.endswith("log_temperature"))
    save_checkpoint(folder / "best.safetensors", {**tensors, name: tensors[name] + 0.5}, info)
    result = run("report", folder, *QUICK, "-o", tmp_path / "r.html", "--json")
    assert json.loads(result.stdout)["runs"][0]["evaluation"]["accuracy"] <= 1


def test_pictures_have_cards_and_two_runs_are_paired(run, tmp_path):
    folders = [tmp_path / "gp", tmp_path / "proto"]
    for folder, method in zip(folders, ("mirror_gp", "protonet"), strict=True):
        options = ("--set", "n_validation_tasks=2", "--set", "n_tune_tasks=2", "--set", "validate_every=1")
        trained = run("train", "--method", method, "--episodes", 1, "--n-query", 2, *options, "--device", "cpu",
                      "--output", folder)  # fmt: skip
        assert trained.exit_code == 0, trained.output
    result = run("report", *folders, *QUICK, "-o", tmp_path / "r.html", "--device", "cpu")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 5  # reliability, risk, learning, and a card of each
    assert 'aria-label="A task of mirror_gp' in page
    (pair,) = json.loads((tmp_path / "r.json").read_text())["differences"]
    assert pair["accuracy"]["n_tasks"] == 8


def test_a_gate_that_is_not_passed_has_exit_code_3_and_a_line(train, run, tmp_path):
    folder = train(tmp_path / "one")
    arguments = ("report", folder, *QUICK, "-o", tmp_path / "r.html", "--max-ece")
    assert run(*arguments, 0.999).exit_code == 0
    result = run(*arguments, 0.0001)
    assert result.exit_code == 3
    assert "Gate: mirror_gp has an ECE of 0." in result.stderr
    assert "above 0.0001." in result.stderr
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["gate"]["failed"] == ["mirror_gp"]
    assert "Not passed: mirror_gp." in (tmp_path / "r.html").read_text()
    judged = run(*arguments, 0.0001, "--gate-on", "calibrated")
    assert judged.exit_code == 3
    assert "ECE at its temperature" in judged.stderr


def test_runs_of_different_test_sets_are_reported_but_not_paired(train, run, data, tmp_path):
    runs = [train(tmp_path / "one"), train(tmp_path / "two"), train(tmp_path / "more", "--n-shot", 2)]
    result = run("report", *runs, *QUICK, "-o", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Not paired: Expected two evaluations on the same episodes, but got n_shot = 1") == 1
    assert "are not compared in pairs" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-ece", "0"], "Expected --max-ece to be between 0 and 1, but got 0.0."),
        (["--max-ece", "1.5"], "Expected --max-ece to be between 0 and 1, but got 1.5."),
        (["--max-ece", "nan"], "Expected --max-ece to be between 0 and 1, but got nan."),
        (["--gate-on", "best"], "Expected --gate-on to be raw or calibrated, but got 'best'."),
        (["-o", "report.pdf"], "Expected --output to be a file that ends in .html, but got 'report.pdf'."),
        (["--seeds", "x"], "Expected --seeds to be numbers with commas"),
        (["--pool", "new"], "Expected options for runs, but got --pool, for models only."),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(run, arguments, message):
    result = run("report", "nowhere", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_folder_that_is_no_run_is_explained(run, tmp_path):
    result = run("report", tmp_path, "-o", tmp_path / "r.html")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Expected a run in" in result.stderr
    assert not (tmp_path / "r.html").exists()

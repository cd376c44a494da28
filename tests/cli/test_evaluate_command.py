import json

import pytest

from .conftest import TINY, write_embeddings

QUICK = ("--n-tasks", 4, "--seeds", "1,2", "--n-query", 4)


def test_an_evaluation_is_a_table_and_a_file(train, run, tmp_path):
    folder = train(tmp_path / "one")
    result = run("evaluate", folder, *QUICK)
    assert result.exit_code == 0, result.output
    for text in ("accuracy, %", "± sd", "95 %", "NLL", "Brier", "ECE", "MCE", "T = ", "Protocol: ", "2 × 4"):
        assert text in result.stdout.replace("\N{NO-BREAK SPACE}", " ")
    record = json.loads((folder / "evaluation.json").read_text())
    assert record["protocol"]["seeds"] == [1, 2]
    assert record["protocol"]["n_tasks"] == 4
    assert (record["method"], record["checkpoint"]) == ("mirror_gp", "best")
    assert 0.2 < record["accuracy"] <= 1
    assert record["raw"].keys() == record["calibrated"].keys()
    assert {"nll", "ece", "mce", "debiased_ece", "adaptive_ece", "class_ece", "aurc", "correctness_auroc"} <= set(
        record["raw"]
    )
    low, high = record["raw"]["intervals_95"]["nll"]
    assert low <= record["raw"]["nll"] <= high
    assert record["tempered"] == []


def test_two_temperatures_have_columns_of_their_own_beside_the_raw_ones(train, run, tmp_path, monkeypatch):
    monkeypatch.setattr("mirrorshot.training.evaluation.temperatures.PAPER_GRID", (0.3, 1.0, 1.5))
    monkeypatch.setattr("mirrorshot.training.evaluation.temperatures._MAX_NLL_QUERIES", 200)
    folder = train(tmp_path / "one")
    result = run("evaluate", folder, *QUICK, "--two-temperatures")
    assert result.exit_code == 0, result.output
    for text in ("ECE, raw", "ECE, one T", "ECE, two T", "MCE, two T", "T1 = ", "T2 = "):
        assert text in result.stdout
    record = json.loads((folder / "evaluation.json").read_text())
    assert [t["rule"] for t in record["tempered"]] == ["nll", "ece", "mce"]


def test_several_runs_are_compared_in_pairs(train, run, tmp_path):
    folders = [train(tmp_path / "gp"), train(tmp_path / "other", "--seed", 2, "--set", "method_options.kernel=linear")]
    result = run("evaluate", *folders, *QUICK, "--report", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert "points more than gp" in result.stdout
    page = (tmp_path / "report.html").read_text()
    assert all(text in page for text in ("Evaluation on points", "Reliability", "Training", "points more than gp"))
    document = json.loads(run("evaluate", *folders, *QUICK, "--json").stdout)
    assert [record["run"] for record in document["evaluations"]] == [str(folder) for folder in folders]
    (difference,) = document["differences"]
    assert (difference["run"], difference["minus"]) == ("gp", "other")
    first, second = (record["accuracy"] for record in document["evaluations"])
    assert difference["accuracy"]["mean"] == pytest.approx(first - second)


def test_other_tasks_and_weights_have_files_of_their_own(train, run, tmp_path):
    folder = train(tmp_path / "one", "--set", "ema=0.5")
    other = write_embeddings(tmp_path / "others", seed=1)
    assert run("evaluate", folder, *QUICK, "--n-shot", 3).exit_code == 0
    assert run("evaluate", folder, *QUICK, "--checkpoint", "last").exit_code == 0
    result = run("evaluate", folder, *QUICK, "--data", other, "--n-way", 3)
    assert result.exit_code == 0, result.output
    assert {path.name for path in folder.glob("evaluation*")} == {
        "evaluation-points-5way-3shot.json", "evaluation-last.json", "evaluation-others-3way-1shot.json",
    }  # fmt: skip


def test_averaged_flips_have_a_file_of_their_own(run, tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "one"
    trained = run("train", "--data", "glyphs", "--output", folder, *TINY)
    assert trained.exit_code == 0, trained.output
    result = run("evaluate", folder, *QUICK, "--average-flips")
    assert result.exit_code == 0, result.output
    assert run("evaluate", folder, *QUICK, "--one-view").exit_code == 0
    averaged, plain = (json.loads((folder / name).read_text()) for name in ("evaluation-flips.json", "evaluation.json"))
    assert (averaged["average_flips"], plain["average_flips"]) == (True, False)
    assert averaged["raw"]["nll"] != plain["raw"]["nll"]


def test_a_single_file_of_embeddings_is_tested_without_a_temperature(train, run, data, tmp_path):
    folder = train(tmp_path / "one")
    record = json.loads(run("evaluate", folder, *QUICK, "--data", data / "test.npz", "--json").stdout)
    assert record["evaluations"][0]["temperature"] is None
    (data / "val.npz").unlink()
    record = json.loads(run("evaluate", folder, *QUICK, "--json").stdout)
    assert record["evaluations"][0]["temperature"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1,x"], "Expected --seeds to be numbers with commas, for instance 1,2,3, but got '1,x'."),
        (["--seeds", "1,1"], "Expected --seeds to be distinct and at least 0, but got '1,1'."),
        (["--checkpoint", "first"], "Expected --checkpoint to be best or last, but got 'first'."),
        (["--device", "tpu"], "but got 'tpu'."),
        (["--keep-copies"], "Expected options for runs, but got --keep-copies, for models only."),
        (["--text-column", "body", "--download"], "but got --download, --text-column, for models only."),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(train, run, tmp_path, arguments, message):
    result = run("evaluate", train(tmp_path / "one"), *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_what_is_not_there_is_explained(train, run, data, tmp_path):
    def fails(*arguments, code=1):
        result = run("evaluate", *arguments, *QUICK)
        assert (result.exit_code, result.stdout) == (code, "")
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    folder = train(tmp_path / "one")
    assert "Expected a run in nowhere, but got no config.json there." in fails("nowhere")
    assert "MIRRORSHOT_DATA is not set; set it to a folder with CUB" in fails(folder, "--data", "cub")
    assert "Expected every RUN once" in fails(folder, folder, code=2)
    narrow = write_embeddings(tmp_path / "narrow", n_features=4)
    assert "8 classes for n_way = 9" in fails(folder, "--n-way", 9)
    (tmp_path / "file").touch()
    assert "Expected --report to be a file that ends in .html" in fails(folder, "--report", tmp_path, code=2)
    assert "Expected --report to be a folder" in fails(folder, "--report", tmp_path / "file" / "x.html", code=2)
    two = train(tmp_path / "two", "--n-shot", 2)
    assert "Give --data, --n-way and --n-shot." in fails(folder, two, code=2)
    (folder / "best.safetensors").unlink()
    assert f"mirrorshot train --resume {folder}" in fails(folder)
    assert narrow.exists()


def test_data_unlike_those_of_training_are_explained(run, data, tmp_path):
    pytest.importorskip("torch")
    arguments = ("--set", "n_validation_tasks=2", "--set", "n_tune_tasks=2", "--set", "validate_every=1")
    folder = tmp_path / "pictures"
    trained = run("train", "--episodes", 1, "--n-query", 2, *arguments, "--device", "cpu", "--output", folder)
    assert trained.exit_code == 0, trained.output
    result = run("evaluate", folder, *QUICK, "--data", data)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Expected data like those that the run in")


def test_a_folder_without_permission_is_explained(train, run, tmp_path, monkeypatch):
    folder = train(tmp_path / "one")
    monkeypatch.setattr("os.access", lambda *_: False)  # also for root, who may write anywhere
    result = run("evaluate", folder, *QUICK)
    assert result.exit_code == 2
    assert "Expected to write evaluation.json into" in result.stderr

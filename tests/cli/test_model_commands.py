"""The tool for people with images, from the command line."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mirrorshot.cli import main
from mirrorshot.tool import Model


@pytest.fixture
def fitted(run, pictures):
    """A model in the working folder."""
    result = run("fit", pictures / "support", "-o", "model")
    assert result.exit_code == 0, result.output
    return "model"


def records(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_two_commands_lead_to_a_prediction(run, pictures):
    first = run("fit", pictures / "support")
    assert first.exit_code == 0, first.output
    assert "12 examples of 3 classes: bar (4), cross (4), ring (4)" in first.stdout
    assert "Next:  mirrorshot predict model.mirrorshot" in first.stdout
    assert "Encoder glyphs: " in first.stderr
    second = run("predict", "model.mirrorshot", pictures / "query")
    assert second.exit_code == 0, second.output
    assert second.stdout.count(".png") == 9
    assert second.stderr == ""


def test_formats_agree(run, fitted, pictures):
    as_json = records(run("predict", fitted, pictures / "query", "--json"))
    rows = list(csv.DictReader(io.StringIO(run("predict", fitted, pictures / "query", "--csv").stdout)))
    table = run("predict", fitted, pictures / "query").stdout
    for record, row in zip(as_json, rows, strict=True):
        assert (row["name"], row["answer"], row["label"]) == (record["name"], record["answer"], record["label"])
        assert float(row["probability"]) == pytest.approx(record["probability"], rel=1e-5)
        assert row["set"] == "|".join(record["labels"])
        for label, share in record["probabilities"].items():
            assert float(row[f"p_{label}"]) == pytest.approx(share, rel=1e-5)
        assert record["epistemic_share"] == pytest.approx(record["epistemic"] / np.log(3))
        assert record["name"] in table
        assert sum(record["probabilities"].values()) == pytest.approx(1.0)


def test_a_parquet_file_has_the_columns_of_the_table(run, fitted, pictures):
    pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")
    result = run("predict", fitted, pictures / "query", "--parquet", "out/answers.parquet")
    assert result.exit_code == 0, result.output
    table = pd.read_parquet("out/answers.parquet")
    rows = pd.read_csv(io.StringIO(run("predict", fitted, pictures / "query", "--csv").stdout))
    assert list(table.columns) == list(rows.columns)
    assert np.allclose(table.p_ring, rows.p_ring, atol=1e-6)
    assert run("predict", fitted, pictures / "query", "--parquet", "x", "--json").exit_code == 2


def test_a_missing_set_explains_itself(run, fitted, pictures):
    arguments = ("predict", fitted, pictures / "query", "--coverage", "0.99")
    assert "? (no set): too few examples" in run(*arguments).stderr
    assert {row["set"] for row in csv.DictReader(io.StringIO(run(*arguments, "--csv").stdout))} == {"?"}
    assert "no set" not in run("predict", fitted, pictures / "query").stderr


def test_answers_that_surprise_explain_themselves(run, fitted, pictures):
    (one, *_) = records(run("predict", fitted, pictures / "query", "--novelty", 0, "--json"))
    assert one["note"].startswith("unlike all examples: novelty ")
    assert one["novelty_threshold"] == 0
    assert "only the nearest one" in run("predict", fitted, pictures / "query", "--novelty", 0).stderr


def test_pictures_come_from_files_patterns_and_pipes(run, fitted, pictures):
    names = sorted(str(path) for path in (pictures / "query" / "bar").iterdir())
    piped = CliRunner().invoke(main, ["predict", fitted, "-", "--json"], input="\n".join(names))
    for result in (
        run("predict", fitted, *names, "--json"),
        run("predict", fitted, pictures / "query" / "bar" / "*.png", "--json"),
        piped,
    ):
        assert [record["name"] for record in records(result)] == names


def test_a_narrow_terminal_breaks_no_name_of_a_class(run, pictures, tmp_path, monkeypatch):
    from mirrorshot.cli import tables

    names = ["Red_legged_Kittiwake", "Kentucky_Warbler", "A_class_with_an_even_longer_name"]
    for old, new in zip(("bar", "cross", "ring"), names, strict=True):
        shutil.copytree(pictures / "support" / old, tmp_path / "named" / new)
    assert run("fit", tmp_path / "named", "-o", "named.mirrorshot").exit_code == 0
    arguments = ("predict", "named.mirrorshot", pictures / "query", "--novelty", "0", "--coverage", "0.99")
    piped = run(*arguments).stdout
    assert sum("none of these (" in line and line.rstrip().endswith("%") for line in piped.splitlines()) == 9
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    monkeypatch.setattr("mirrorshot.cli.predict_command.is_terminal", lambda: True)
    shown = run(*arguments).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("(Kentucky_Warbler?)", "(Red_legged_Kittiwake?)", "(A_class_wi…nger_name?)"):
        assert word in shown


def test_a_threshold_decides_what_is_none_of_these(run, fitted, pictures):
    every = records(run("predict", fitted, pictures / "query", "--novelty", 0, "--json"))
    assert {record["answer"] for record in every} == {"none of these"}
    none = records(run("predict", fitted, pictures / "query", "--novelty", 1, "--json"))
    assert not any(record["is_novel"] for record in none)
    assert "none of these (" in run("predict", fitted, pictures / "query", "--novelty", 0).stdout


def test_damaged_pictures_are_told_and_the_others_answered(run, fitted, pictures, tmp_path):
    folder = shutil.copytree(pictures / "query" / "bar", tmp_path / "mixed")
    (folder / "bad.png").write_bytes(b"junk")
    for command in (["predict", fitted, folder, "--json"], ["suggest", fitted, folder, "--json"]):
        result = run(*command)
        assert result.exit_code == 3
        assert len(json.loads(result.stdout)) == 3
        assert "bad.png cannot be read" in result.stderr


def test_examples_are_added_and_removed(run, fitted, pictures):
    bar = pictures / "query" / "bar"
    arguments = ("add", fitted, f"bar={bar}", f"dash={bar / '0.png'}", "--json")
    refused = run(*arguments)
    assert refused.exit_code == 1
    assert "the same under two classes" in refused.stderr
    added = records(run(*arguments, "--allow-contradictions"))
    assert added["classes"] == {"bar": 7, "cross": 4, "dash": 1, "ring": 4}
    assert run("add", fitted, bar / "1.png", "--label", "dash", "--allow-contradictions").exit_code == 0
    name = str(bar / "2.png")
    assert records(run("remove", fitted, name, "--json"))["n_examples"] == 16
    assert name not in Model.load(fitted).names
    removed = records(run("remove", fitted, "--label", "dash", "-o", "other", "--json"))
    assert removed["model"] == "other"
    assert set(removed["classes"]) == {"bar", "cross", "ring"}
    assert "dash" in Model.load(fitted).classes


def test_examples_are_removed_by_any_spelling_of_their_paths(run, pictures, tmp_path):
    shutil.copytree(pictures / "support", tmp_path / "own")
    assert run("fit", "own", "-o", "model").exit_code == 0
    for name in ("own/bar/../bar/0.png", tmp_path / "own" / "ring" / "1.png", "cross/2.png"):
        assert run("remove", "model", name).exit_code == 0
    assert len(Model.load("model").names) == 9
    several = run("remove", "model", "3.png")
    assert several.exit_code == 1
    assert "3 that end so" in several.stderr


def test_suggestions_are_paths_one_a_line(run, fitted, pictures):
    lines = run("suggest", fitted, pictures / "query", "-k", 4).stdout.splitlines()
    assert len(set(lines)) == 4
    assert all(os.path.isfile(line) for line in lines)


def test_explanations_name_examples(run, fitted, pictures):
    picture = pictures / "query" / "ring" / "0.png"
    (record,) = records(run("explain", fitted, picture, "-n", 3, "--json"))
    assert len(record["reasons"]) == 3
    assert {reason["name"] for reason in record["reasons"]} <= set(Model.load(fitted).names)
    shown = run("explain", fitted, picture, "--label", "bar")
    assert ": bar with probability" in shown.stdout


def test_a_model_is_evaluated_on_labelled_pictures(run, fitted, pictures):
    scores = records(run("evaluate", fitted, pictures / "query", "--keep-copies", "--json"))
    answers = records(run("predict", fitted, pictures / "query", "--json"))
    right = [record["label"] == record["name"].split(os.sep)[-2] for record in answers]
    assert scores["accuracy"] == np.mean(right)
    assert scores["n_items"] == 9
    told = run("evaluate", fitted, pictures / "query", "--keep-copies").stdout
    assert "of 9 images" in told
    assert "fewer than 50" in told
    assert "Confusion matrix" in told
    assert run("evaluate", fitted).exit_code == 2


def test_images_that_the_model_has_learned_from_are_left_out(run, fitted, pictures, tmp_path):
    folder = shutil.copytree(pictures / "support", tmp_path / "test")
    alone = run("evaluate", fitted, folder)
    assert alone.exit_code == 1
    assert "all 12" in alone.stderr
    rng = np.random.default_rng(0)
    for kind in ("bar", "ring"):
        Image.fromarray(rng.integers(0, 255, (40, 40)).astype(np.uint8)).save(folder / kind / "new.png")
    told = run("evaluate", fitted, folder, "--json")
    assert records(told)["n_items"] == 2
    assert len(records(told)["shared"]) == 12
    assert "12 images are examples of the model" in run("evaluate", fitted, folder).stderr
    kept = run("evaluate", fitted, folder, "--keep-copies")
    assert "too good" in kept.stderr
    assert "of 14 images" in kept.stdout


def test_a_confusion_matrix_without_room_for_its_numbers_is_not_printed(run, fitted, pictures, monkeypatch):
    assert "Confusion matrix" in run("evaluate", fitted, pictures / "query").stdout
    monkeypatch.setenv("COLUMNS", "30")
    assert "Confusion matrix" not in run("evaluate", fitted, pictures / "query").stdout


def test_the_same_image_under_two_classes_is_refused(run, pictures, tmp_path):
    folder = shutil.copytree(pictures / "support", tmp_path / "two")
    shutil.copy(folder / "bar" / "0.png", folder / "ring" / "wrong.png")
    refused = run("fit", folder, "-o", "model")
    assert refused.exit_code == 1
    assert "wrong.png" in refused.stderr
    assert not os.path.exists("model")
    assert run("fit", folder, "-o", "model", "--allow-contradictions").exit_code == 0
    shutil.copy(folder / "bar" / "0.png", folder / "bar" / "again.png")
    (folder / "ring" / "wrong.png").unlink()
    named = run("fit", folder, "-o", "model")
    assert named.exit_code == 0
    assert "1 example the same as another" in named.stderr


def test_the_same_row_under_two_classes_is_not_added(run):
    Path("t.csv").write_text("x,y,label\n1,2,a\n3,4,b\n3,5,b\n")
    Path("more.csv").write_text("x,y,label\n9,9,a\n9,9,b\n")
    assert run("fit", "t.csv", "-o", "model").exit_code == 0
    before = Path("model").read_bytes()
    refused = run("add", "model", "more.csv")
    assert refused.exit_code == 1
    assert "under two classes" in refused.stderr
    assert Path("model").read_bytes() == before


def test_a_report_counts_the_images_that_cannot_be_read(run, fitted, pictures, tmp_path):
    folder = shutil.copytree(pictures / "query", tmp_path / "query")
    (folder / "bar" / "junk.png").write_bytes(b"junk")
    result = run("report", fitted, folder, "-o", "model.html")
    assert result.exit_code == 3, result.output
    assert "<dt>unreadable</dt><dd>1</dd>" in Path("model.html").read_text()


def test_a_model_has_a_report(run, fitted, pictures):
    arguments = ("report", fitted, pictures / "query", "-o", "out/model.html", "--keep-copies")
    result = run(*arguments, "--pool", pictures / "support")
    assert result.exit_code == 0, result.output
    page = Path("out/model.html")
    assert "of 9 images" in page.read_text()
    assert "What to label next" not in page.read_text()  # all images of the pool are examples
    told = records(run(*arguments, "--json"))
    assert told == json.loads(page.with_suffix(".json").read_text())
    assert "What to label next" in page.read_text()
    assert run("report", fitted, pictures / "query", "-o", "model.txt").exit_code == 2
    assert run("report", fitted).exit_code == 2


def test_a_report_names_images_of_the_pool_that_cannot_be_read(run, fitted, pictures, tmp_path):
    pool = shutil.copytree(pictures / "query" / "bar", tmp_path / "pool")
    (pool / "broken.png").write_bytes(b"\x89PNG")
    result = run("report", fitted, pictures / "query", "--pool", pool, "--keep-copies")
    assert result.exit_code == 3, result.output
    assert "broken.png cannot be read and is left out" in result.stderr
    assert "in the pool" in Path("report.html").read_text()


@pytest.mark.parametrize(
    "line",
    [
        ["report", "--max-ece", "0.001"],
        ["evaluate", "--report", "x.html"],
        ["evaluate", "--n-shot", "1"],
        ["evaluate", "--n-tasks", "600"],
    ],
)
def test_a_model_refuses_options_that_it_would_ignore(run, fitted, pictures, line):
    result = run(line[0], fitted, pictures / "test", *line[1:])
    assert result.exit_code == 2
    assert f"Expected options for a model, but got {line[1]}, for runs only" in result.stderr


def test_a_long_name_of_a_class_is_not_taken_for_a_file(run, fitted, pictures):
    result = run("add", fitted, f"{'long' * 100}={pictures / 'query' / 'bar' / '0.png'}", "--json")
    assert result.exit_code == 0, result.output
    assert "long" * 100 in records(result)["classes"]
    missing = run("evaluate", f"{'long' * 100}.mirrorshot", pictures / "query")
    assert (missing.exit_code, missing.stderr.startswith("Error: Expected a model at long")) == (2, True)


def test_a_missing_model_is_called_that(run, pictures):
    for command in ("evaluate", "report"):
        result = run(command, "nowhere.mirrorshot", pictures / "query")
        assert result.exit_code == 2
        assert "Expected a model at nowhere.mirrorshot" in result.stderr


def test_a_head_is_exported(run, fitted, pictures):
    import onnxruntime

    about = records(run("export", fitted, "-o", "head.onnx", "--json"))
    session = onnxruntime.InferenceSession("head.onnx", providers=["CPUExecutionProvider"])
    model = Model.load(fitted)
    (prob, *_) = session.run(None, {"embeddings": model.embeddings.astype(np.float32)})
    assert about["classes"] == model.classes
    assert np.allclose(prob, model.head.predict_proba(model.embeddings), atol=1e-5)


def test_an_exported_table_takes_rows_as_they_are(run, tmp_path):
    import onnxruntime

    rng = np.random.default_rng(0)
    y = np.arange(20) % 2
    X = (rng.normal(size=(20, 3)) + 2 * y[:, None]) * [1.0, 100.0, 0.01] + [5.0, 3000.0, 0.0]
    np.savez(tmp_path / "t.npz", X=X, y=y)
    assert run("fit", "t.npz", "-o", "m").exit_code == 0
    assert run("export", "m", "-o", "head.onnx").exit_code == 0
    session = onnxruntime.InferenceSession("head.onnx", providers=["CPUExecutionProvider"])
    (prob, *_) = session.run(None, {"embeddings": X.astype(np.float32)})
    answers = records(run("predict", "m", "t.npz", "--json"))
    assert np.allclose(prob, [list(answer["probabilities"].values()) for answer in answers], atol=1e-5)


def test_a_missing_image_of_a_table_is_called_that(run, pictures, tmp_path):
    (tmp_path / "t.csv").write_text(f"path,label\n{pictures}/support/bar/0.png,bar\nnowhere.png,ring\n")
    assert "nowhere.png (no such file or directory)" in run("fit", "t.csv").stderr


def test_the_doctor_ends_with_a_code_of_its_own(run, pictures, tmp_path):
    folder = shutil.copytree(pictures / "support", tmp_path / "support")
    assert run("doctor", folder).exit_code == 0
    (folder / "bar" / "bad.png").write_bytes(b"junk")
    result = run("doctor", folder, "--against", pictures / "query", "--json")
    assert result.exit_code == 3
    report = json.loads(result.stdout)
    assert report["findings"][0]["check"] == "unreadable"
    shown = run("doctor", folder)
    assert "error: 1 image cannot be read" in shown.stdout
    assert "Delete them" in shown.stdout


def test_embeddings_are_fitted_and_predicted(run, tmp_path, blobs):
    items = blobs()
    np.savez("support.npz", X=items.content, y=items.labels)
    np.savez("query.npz", X=items.content[:3])
    assert run("fit", "support.npz", "-o", "model").exit_code == 0
    answers = records(run("predict", "model", "query.npz", "--json"))
    assert [record["label"] for record in answers] == ["class 0"] * 3


def test_names_with_odd_characters_are_shown_on_one_line(run, fitted, pictures, tmp_path):
    odd = [tmp_path / name for name in ("a b.png", "[red]x.png", "ä\u202e.png", "new\nline.png", "=1+1.png", "-.png")]
    for path in odd:
        shutil.copy(pictures / "query" / "bar" / "0.png", path)
    result = run("predict", fitted, *odd, "--csv")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(odd) + 1
    assert "[red]x.png" in run("predict", fitted, *odd).stdout


def test_a_function_of_a_model_needs_trust(run, pictures, tmp_path, monkeypatch):
    (tmp_path / "mean_colour.py").write_text(
        "import numpy as np\n"
        "def encode(pictures):\n    return np.stack([np.asarray(p.resize((4, 4))).ravel() / 255 for p in pictures])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run("fit", pictures / "support", "-e", "mean_colour:encode", "-o", "model").exit_code == 0
    refused = run("predict", "model", pictures / "query")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "--trust-encoder" in refused.stderr
    assert run("predict", "model", pictures / "query", "--trust-encoder").exit_code == 0


def test_a_run_on_embeddings_is_no_encoder_of_pictures(run, train, pictures, tmp_path):
    folder = train(tmp_path / "run")
    result = run("fit", pictures / "support", "-e", folder)
    assert result.exit_code == 1
    assert "it was trained on embeddings" in result.stderr


WRONG = {
    "no such folder": (["fit", "nowhere"], 1, "does not exist"),
    "one class": (["fit", "one"], 1, "at least two classes"),
    "an empty class": (["fit", "holes"], 1, "remove them or add"),
    "a damaged picture": (["fit", "damaged"], 1, "--skip-corrupt"),
    "unknown encoder": (["fit", "{support}", "-e", "glyph"], 1, "Check the spelling"),
    "unknown kernel": (["fit", "{support}", "--kernel", "unheard"], 2, "--kernel to be one of"),
    "novelty above one": (["predict", "{model}", "{support}", "--novelty", "7"], 2, "--novelty to be between 0 and 1"),
    "missing package": (["fit", "{support}", "-e", "open_clip:ViT-B-32"], 1, "pip install open_clip_torch"),
    "output is a folder": (["fit", "{support}", "-o", "one"], 2, "to be a file"),
    "output is an example": (["fit", "one", "-o", "one/a/0.png"], 2, "It would be overwritten"),
    "output cannot be made": (["fit", "{support}", "-o", "note.txt/model"], 2, "is no folder"),
    "no such model": (["predict", "nowhere", "{support}"], 1, "no such file"),
    "a picture is no model": (["predict", "{support}/bar/0.png", "{support}"], 1, "something else"),
    "a folder is no model": (["predict", "one", "{support}"], 1, "folder"),
    "a pipe is no model": (["predict", "pipe", "{support}"], 1, "name a file"),
    "a pipe is no picture": (["predict", "{model}", "pipe"], 1, "a pipe, a socket or a device"),
    "a pipe is no folder": (["fit", "pipe"], 1, "check the path"),
    "a pipe holds no settings": (["train", "--config", "pipe"], 2, "not a regular file"),
    "no such picture": (["predict", "{model}", "nowhere.png"], 1, "check the path"),
    "csv and json": (["predict", "{model}", "{support}", "--csv", "--json"], 2, "but got --csv and --json"),
    "wrong coverage": (["predict", "{model}", "{support}", "--coverage", "1.5"], 2, "between 0 and 1"),
    "add without a class": (["add", "{model}", "{support}"], 2, "CLASS=PATH"),
    "add with an empty class": (["add", "{model}", "{support}", "--label", " "], 2, "is empty"),
    "remove nothing": (["remove", "{model}"], 2, "neither or both"),
    "remove an unknown name": (["remove", "{model}", "unheard"], 1, "names of examples"),
    "remove an unknown class": (["remove", "{model}", "--label", "unheard"], 1, "a class of the model"),
    "explain an unknown class": (["explain", "{model}", "{support}", "-l", "unheard"], 1, "class of the model"),
    "evaluate without labels": (["evaluate", "{model}", "one/a"], 1, "folder for each class"),
    "evaluate on its own examples": (["evaluate", "{model}", "{support}"], 1, "--keep-copies"),
    "examine nothing": (["doctor", "nowhere"], 1, "check the path"),
    "export into nowhere": (["export", "{model}", "-o", "note.txt/x"], 2, "is no folder"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_goes_wrong_is_said_in_one_line(run, fitted, pictures, tmp_path, what):
    for folder in ("one/a", "holes/a", "holes/b", "damaged/a", "damaged/b"):
        (tmp_path / folder).mkdir(parents=True)
        if folder != "holes/b":
            Image.new("L", (20, 20), 40).save(tmp_path / folder / "0.png")
    (tmp_path / "damaged" / "a" / "1.png").write_bytes(b"junk")
    (tmp_path / "note.txt").write_text("hello")
    os.mkfifo(tmp_path / "pipe")
    arguments, code, message = WRONG[what]
    before = (tmp_path / "model").read_bytes()
    result = run(*(word.format(support=pictures / "support", model=fitted) for word in arguments))
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert (tmp_path / "model").read_bytes() == before

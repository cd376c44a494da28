"""Names of strangers on the terminal and in tables: they are shown, and do nothing."""

import csv
import io
import unicodedata

import numpy as np
import pytest
from typer.testing import CliRunner

from mirrorshot.cli import main
from mirrorshot.files.checkpoint import load_checkpoint
from mirrorshot.files.sealed import save_sealed
from mirrorshot.tool import Items, Model

EVIL, TURNED, FORMULA = "\x1b]0;owned\x07\x1b[2J", "a\u202egnp.exe", "=HYPERLINK(1)"


@pytest.fixture
def model(tmp_path):
    """A model whose classes and examples have names that a terminal would obey, as only a forger can make one."""
    X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0], [0.9, 0.1]])
    labels = ["a", "a", "b", "b"]
    Model.fit(Items("embedding", ["one", EVIL, TURNED, FORMULA], X, labels)).save(tmp_path / "model")
    tensors, info = load_checkpoint(tmp_path / "model", as_arrays=True)
    info = {name: info[name] for name in ("names", "labels", "head", "encoder")}
    evil = dict(zip("ab", [EVIL, FORMULA], strict=True))
    info["labels"], info["head"]["classes"] = [evil[label] for label in labels], [EVIL, FORMULA]
    save_sealed(tmp_path / "model", tensors, info, kind="model", version=1)
    (tmp_path / "query.csv").write_text(
        f"name,x0,x1\n{FORMULA},0.1,0.9\n{EVIL},0.8,0.1\n-1,0.9,0.1\n", encoding="utf-8"
    )
    return str(tmp_path / "model"), str(tmp_path / "query.csv")


def assert_harmless(text):
    steering = [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"]
    assert steering == []


COMMANDS = {
    "predict": ["predict"], "csv": ["predict", "--csv"], "json": ["predict", "--json"], "explain": ["explain"],
    "suggest": ["suggest"], "no such class": ["explain", "--label", EVIL + "x"],
}  # fmt: skip


@pytest.mark.parametrize("what", COMMANDS)
def test_commands_print_nothing_that_steers(model, what):
    command, *options = COMMANDS[what]
    done = CliRunner().invoke(main, [command, *model, *options])
    assert done.exit_code == (1 if what == "no such class" else 0), done.output
    assert_harmless(done.output)
    assert "x1b" in done.output or "u001b" in done.output or what == "suggest"


@pytest.mark.parametrize("command", ["doctor", "export", "remove", "evaluate"])
def test_other_commands_too(model, command, tmp_path):
    options = {"export": ["-o", str(tmp_path / "head.onnx")], "remove": ["--label", "x\x1b[2J"]}.get(command, [])
    done = CliRunner().invoke(main, [command, model[0], *options])
    assert_harmless(done.output)


def test_text_in_csv_is_no_formula_and_numbers_are_numbers(model):
    done = CliRunner().invoke(main, ["predict", "--csv", *model])
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["name"] for row in rows] == [f"'{FORMULA}", r"\x1b]0;owned\x07\x1b[2J", "'-1"]
    for row in rows:
        assert not any(row[name].startswith(("=", "+", "-", "@")) for name in ("name", "answer", "label", "set"))
        assert 0.0 <= float(row["probability"]) <= 1.0
        float(row["aleatoric"])


def test_two_forms_of_a_class_are_fitted_as_one():
    X = np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0]])
    with pytest.warns(UserWarning, match="Unicode form and are one class: .*\u00e9"):
        model = Model.fit(Items("embedding", list("abc"), X, ["\u00e9", "e\u0301", "owl"]))
    assert model.classes == ["owl", "\u00e9"]
    with pytest.raises(ValueError, match="cannot be printed"):
        Model.fit(Items("embedding", list("abc"), X, ["a", "a", EVIL]))

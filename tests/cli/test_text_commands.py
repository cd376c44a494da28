"""The tool for people with texts and tables, from the command line."""

import csv
import json

import numpy as np
import pytest

from mirrorshot.encoders import candidates

SPORT = ["the team won the match", "a late goal decided the game", "the coach praised the players", "a tennis final"]
MONEY = ["shares fell on the market", "the bank raised its rates", "profits of the company rose", "a loan and a tax"]
COLUMNS = ("--text-column", "body", "--label-column", "topic")


@pytest.fixture
def texts(tmp_path):
    """A table of labelled texts."""
    path = tmp_path / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "topic"])
        writer.writerows([(text, "sport") for text in SPORT] + [(text, "money") for text in MONEY])
    return path


@pytest.fixture
def fitted(run, texts):
    result = run("fit", texts, *COLUMNS, "-e", "tfidf", "-o", "model")
    assert result.exit_code == 0, result.output
    return "model"


def records(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_texts_are_fitted_predicted_and_evaluated(run, fitted, texts, tmp_path):
    (tmp_path / "new.txt").write_text("the goal of the team\nthe rates of the bank\n")
    assert [answer["label"] for answer in records(run("predict", fitted, tmp_path / "new.txt", "--json"))] == [
        "sport",
        "money",
    ]
    scores = records(run("evaluate", fitted, texts, *COLUMNS, "--json", "--keep-copies"))
    assert scores["accuracy"] == 1.0


def test_an_explanation_of_a_text_names_words_and_examples(run, fitted, tmp_path):
    (tmp_path / "new.txt").write_text("some goal of somebody\n")
    (found,) = records(run("explain", fitted, tmp_path / "new.txt", "--json"))
    assert found["words"][0]["word"] == "goal"
    assert found["words"][0]["added"] > 0
    assert found["reasons"][0]["name"] == "row 2"
    shown = run("explain", fitted, tmp_path / "new.txt")
    assert "goal" in shown.stdout


def test_texts_are_suggested_added_and_removed(run, fitted, tmp_path):
    (tmp_path / "pool.jsonl").write_text('{"body": "the team"}\n{"body": "rain and snow in the north"}\n')
    assert len(records(run("suggest", fitted, tmp_path / "pool.jsonl", "-k", "2", "--json"))) == 2
    added = records(run("add", fitted, f"weather={tmp_path / 'pool.jsonl'}", "--json"))
    assert added["classes"] == {"money": 4, "sport": 4, "weather": 2}
    assert records(run("remove", fitted, "--label", "weather", "--json"))["n_examples"] == 8


def test_the_doctor_examines_a_table(run, texts):
    result = run("doctor", texts, *COLUMNS, "-e", "tfidf", "--json")
    assert json.loads(result.stdout)["n_classes"] == 2


def test_the_encoder_of_texts_is_chosen(run, texts):
    result = run("fit", texts, *COLUMNS)
    assert result.exit_code == 0, result.output
    told = "leave-one-out log-likelihood" if len(candidates("text")) > 1 else "pip install 'mirrorshot[text]'"
    assert told in result.stderr


def test_a_missing_column_is_told_with_the_others(run, texts):
    result = run("fit", texts, "--text-column", "text")
    assert result.exit_code == 1
    assert "'body', 'topic'" in result.stderr


def test_empty_texts_are_told_and_may_be_left_out(run, texts, fitted, tmp_path):
    texts.write_text(texts.read_text() + " ,sport\n")
    assert "row 9 (the text is empty)" in run("fit", texts, *COLUMNS).stderr
    assert run("fit", texts, *COLUMNS, "--skip-corrupt", "-e", "tfidf").exit_code == 0
    result = run("predict", fitted, texts)
    assert result.exit_code == 3
    assert "the text is empty" in result.stderr


@pytest.mark.parametrize("query", ["x.npz", "x.png"])
def test_a_model_of_texts_takes_nothing_else(run, fitted, tmp_path, query):
    from PIL import Image

    np.savez(tmp_path / "x.npz", X=np.eye(3))
    Image.new("L", (20, 20)).save(tmp_path / "x.png")
    result = run("predict", fitted, tmp_path / query)
    assert result.exit_code == 1
    assert "Expected texts" in result.stderr


def test_a_table_of_embeddings_goes_through_every_command(run, tmp_path):
    rng = np.random.default_rng(0)
    X, y = np.concatenate([rng.normal(c, 0.3, (5, 3)) for c in (0, 2)]), ["a"] * 5 + ["b"] * 5
    np.savez(tmp_path / "t.npz", X=X, y=y)
    np.save(tmp_path / "q.npy", X[::2] + 0.1)
    assert records(run("fit", tmp_path / "t.npz", "-o", "m", "--json"))["n_examples"] == 10
    assert [r["label"] for r in records(run("predict", "m", tmp_path / "q.npy", "--json"))] == ["a"] * 3 + ["b"] * 2
    assert records(run("evaluate", "m", tmp_path / "t.npz", "--json", "--keep-copies"))["accuracy"] == 1.0
    assert len(records(run("suggest", "m", tmp_path / "q.npy", "-k", "1", "--json"))) == 1
    assert "words" not in records(run("explain", "m", tmp_path / "q.npy", "--json"))[0]
    assert records(run("add", "m", f"c={tmp_path / 'q.npy'}", "--json"))["n_examples"] == 15
    assert run("doctor", tmp_path / "t.npz").exit_code == 0


def test_a_labelled_table_is_added_by_its_labels(run, fitted, tmp_path):
    more = tmp_path / "more.csv"
    more.write_text("body,topic\nrain in the north,weather\nsnow and ice,weather\na cup final,sport\n")
    refused = run("add", fitted, more)
    assert refused.exit_code == 1
    assert "--label-column" in refused.stderr
    under_one = run("add", fitted, more, "--label", "weather", "--label-column", "topic")
    assert under_one.exit_code == 1
    assert "labels of its own" in under_one.stderr
    added = records(run("add", fitted, more, "--label-column", "topic", "--json"))
    assert added["classes"] == {"money": 4, "sport": 5, "weather": 2}


def test_labels_of_any_name_do_not_count_as_numbers(run, tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'xy'[i % 2]}" for i, (a, b) in enumerate(rng.normal(size=(8, 2)))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,kind", *rows]))
    assert run("fit", "t.csv", "--label-column", "kind", "-o", "m").exit_code == 0
    assert len(records(run("predict", "m", "t.csv", "--label-column", "kind", "--json"))) == 8


def test_a_prior_takes_columns_of_any_name(run, texts):
    refused = run("prior", texts, *COLUMNS, "-e", "tfidf")
    assert refused.exit_code == 1
    assert "at least 10 background classes" in refused.stderr


def test_texts_that_are_left_out_are_named(run, tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na cat,cat\n,cat\na dog,dog\n")
    told = run("fit", "t.csv", "-e", "tfidf", "--skip-corrupt")
    assert told.exit_code == 0
    assert "cannot be read: row 2." in told.stderr

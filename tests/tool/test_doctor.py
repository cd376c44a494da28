import shutil

import numpy as np
import pytest
from PIL import Image

from mirrorshot.tool.doctor import examine
from mirrorshot.tool.doctor.images import perceptual_hash
from mirrorshot.types import DataError


@pytest.fixture
def folder(tmp_path, write_pictures):
    """A healthy folder."""
    return write_pictures(tmp_path / "support", n=5)


def found(report):
    return {finding.check: finding for finding in report.findings}


def test_a_healthy_folder_has_no_errors(folder):
    report = examine(folder)
    assert (report.n_pictures, report.n_classes, report.encoder) == (15, 3, "glyphs")
    assert not report.has_errors
    assert "label" not in found(report)


def colour(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)


def break_it(folder, what):
    first = folder / "bar" / "0.png"
    match what:
        case "unreadable":
            (folder / "bar" / "bad.png").write_bytes(b"junk")
        case "empty":
            (folder / "nothing").mkdir()
        case "tiny":
            Image.open(first).resize((8, 8)).save(folder / "bar" / "tiny.png")
        case "blank":
            Image.new("L", (40, 40), 255).save(folder / "bar" / "blank.png")
        case "colour":
            colour(folder / "bar" / "colour.png")
        case "imbalance":
            for i in range(1, 5):
                (folder / "ring" / f"{i}.png").unlink()
        case "single":
            for i in range(1, 5):
                (folder / "ring" / f"{i}.png").unlink()
        case "duplicate in one class":
            Image.open(first).save(folder / "bar" / "again.bmp")
        case "duplicate in two classes":
            shutil.copy(first, folder / "ring" / "again.png")
        case "near-duplicate":
            Image.open(first).save(folder / "bar" / "again.jpg", quality=60)
        case "label":
            (folder / "ring" / "0.png").rename(folder / "bar" / "wrong.png")
        case "confused":
            for i, path in enumerate(sorted((folder / "ring").iterdir())):
                path.unlink()
                Image.open(folder / "bar" / f"{i}.png").rotate(0.6, fillcolor=245).save(path)
        case "classes":
            shutil.rmtree(folder / "ring")
            shutil.rmtree(folder / "cross")


@pytest.mark.parametrize(
    ("what", "check", "severity"),
    [
        ("unreadable", "unreadable", "error"),
        ("empty", "empty", "error"),
        ("tiny", "tiny", "warning"),
        ("blank", "blank", "warning"),
        ("colour", "colour", "warning"),
        ("imbalance", "imbalance", "warning"),
        ("single", "single", "note"),
        ("duplicate in one class", "duplicate", "warning"),
        ("duplicate in two classes", "duplicate", "error"),
        ("near-duplicate", "near-duplicate", "warning"),
        ("label", "label", "warning"),
        ("confused", "confused", "warning"),
        ("classes", "classes", "error"),
    ],
)
def test_what_is_wrong_is_found_and_comes_with_advice(folder, what, check, severity):
    before = found(examine(folder))
    break_it(folder, what)
    report = examine(folder)
    finding = found(report)[check]
    assert finding.severity == severity
    assert finding.advice
    assert finding.items
    assert before.get(check) != finding
    assert report.has_errors == any(f.severity == "error" for f in report.findings)


def test_the_worst_comes_first(folder):
    for what in ("single", "tiny", "unreadable"):
        break_it(folder, what)
    order = ["error", "warning", "note"]
    places = [order.index(finding.severity) for finding in examine(folder).findings]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}


def test_pictures_in_both_folders_are_a_leak(folder, tmp_path, write_pictures):
    other = write_pictures(tmp_path / "test", n=3, seed=9)
    assert "leak" not in found(examine(folder, other))
    shutil.copy(folder / "ring" / "2.png", other / "ring" / "renamed.png")
    Image.open(folder / "cross" / "1.png").save(other / "cross" / "saved.jpg", quality=70)
    report = found(examine(folder, other))
    assert report["leak"].items == ["support/ring/2.png = test/ring/renamed.png"]
    assert any("saved.jpg" in pair and "cross/1.png" in pair for pair in report["near-leak"].items)


def test_a_folder_of_loose_pictures_can_be_examined(folder):
    assert examine(folder / "bar").n_classes == 0


@pytest.mark.parametrize("what", ["missing", "empty", "a file"])
def test_a_folder_without_pictures_is_told(tmp_path, what):
    path = {"missing": tmp_path / "no", "empty": tmp_path, "a file": tmp_path / "x.md"}[what]
    if what == "a file":
        path.write_text("x")
    with pytest.raises(DataError, match="Expected"):
        examine(path)


def test_hashes_hardly_change_with_size_and_compression(folder, tmp_path):
    picture = Image.open(folder / "cross" / "0.png")
    picture.resize((80, 80)).save(tmp_path / "x.jpg", quality=50)
    own, saved, other = (
        perceptual_hash(Image.open(path))
        for path in (folder / "cross" / "0.png", tmp_path / "x.jpg", folder / "ring" / "0.png")
    )
    assert own @ saved > 0.9 * np.abs(own).sum()
    assert own @ other < 0.7 * np.abs(own).sum()


def test_a_table_of_texts_is_examined(tmp_path):
    sport = ["the team won the match", "a late goal decided the game", "the coach praised the young players"]
    money = ["shares fell on the market", "the bank raised its interest rates", "profits of the company rose"]
    rows = [(text, "sport") for text in sport] + [(text, "money") for text in money]
    rows += [("The team won  the match!", "sport"), (money[0], "sport"), ("", "money")]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["body,topic", *(f"{body},{topic}" for body, topic in rows)]))
    report = examine(table, text_column="body", label_column="topic", encoder="tfidf")
    assert (report.n_pictures, report.n_classes) == (8, 2)
    checks = {(finding.check, finding.severity): finding for finding in report.findings}
    assert checks["duplicate", "error"].items == ["row 4 = row 8"]
    assert checks["duplicate", "warning"].items == ["row 1 = row 7"]
    assert checks["unreadable", "error"].items == ["row 9"]
    assert "texts" in checks["duplicate", "error"].message


def test_texts_of_a_test_that_were_learned_are_a_leak(tmp_path):
    for name, texts in {"a": ["one two three", "four five six"], "b": ["seven eight nine", "One, two, three"]}.items():
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(f'"{text}",{text[:3]}\n' for text in texts))
    report = examine(tmp_path / "a.csv", tmp_path / "b.csv", encoder="tfidf")
    assert next(f for f in report.findings if f.check == "leak").items == ["a.csv/row 1 = b.csv/row 2"]


def test_rows_of_numbers_are_examined(tmp_path):
    (tmp_path / "t.csv").write_text("label,a,b\nx,1,2\nx,1,2.1\ny,2,1\ny,1,2\n")
    report = examine(tmp_path / "t.csv")
    assert next(f for f in report.findings if f.check == "duplicate").items == ["row 1 = row 4"]

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

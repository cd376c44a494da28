import json

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from mirrorshot.classifier.prior import Prior
from mirrorshot.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits: `background` of ten classes, `support` of three with two images each."""
    X, y = load_digits(return_X_y=True)
    root = tmp_path_factory.mktemp("digits")
    for name, classes, per_class in (("background", range(10), 10), ("support", range(3), 2)):
        for label in classes:
            place = root / name / str(label)
            place.mkdir(parents=True)
            for i in np.flatnonzero(y == label)[:per_class]:
                Image.fromarray((255 - 15 * X[i].reshape(8, 8)).astype(np.uint8)).resize((32, 32)).save(
                    place / f"{i}.png"
                )
    return root


@pytest.fixture(scope="module")
def prior(folder):
    path = folder / "pixels.prior"
    result = CliRunner().invoke(main, ["prior", str(folder / "background"), "-e", "pixels", "-o", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["encoder"] == "pixels"
    return path


def test_a_learned_prior_is_used_by_fit_and_kept_in_the_model(folder, prior, tmp_path):
    from mirrorshot.tool import Model

    model = tmp_path / "model"
    arguments = ["fit", str(folder / "support"), "-e", "pixels", "--prior", str(prior), "-o", str(model)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    head = Model.load(model).head
    assert head.prior.temperature == pytest.approx(Prior.load(prior).temperature)
    assert head.outputscale_ == pytest.approx(Prior.load(prior).outputscale)


def test_a_prior_of_another_encoder_is_refused(folder, prior, tmp_path):
    arguments = ["fit", str(folder / "support"), "-e", "glyphs", "--prior", str(prior), "-o", str(tmp_path / "model")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "Expected a prior of the encoder glyphs" in result.stderr
    assert not (tmp_path / "model").exists()


def test_too_few_background_classes_are_refused(folder, tmp_path):
    result = CliRunner().invoke(main, ["prior", str(folder / "support"), "-e", "pixels", "-o", str(tmp_path / "p")])
    assert result.exit_code == 1
    assert "at least 10 background classes" in result.stderr

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.classifier import solve


@pytest.fixture(scope="module")
def harness():
    path = Path(__file__).parents[2] / "benchmarks" / "edits.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_edits", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def check(edits, tolerance):
    for edit in edits:
        assert edit.proba <= tolerance, edit
        assert edit.elbo <= tolerance, edit
        assert edit.temperature <= tolerance, edit


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 10))])
def test_random_edits_are_what_a_fit_gives(harness, seed):
    edits = [edit for task in range(2) for edit in harness.run_task(task, 100 + seed)]
    check(edits, harness.TOLERANCE)
    assert {edit.start for edit in edits} <= {"previous", "prior"}


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_random_edits_are_what_a_fit_gives(harness):
    check([edit for task in range(2000) for edit in harness.run_task(task, 1)], harness.TOLERANCE)


def assert_edit_is_fit(edited, X, y):
    fresh = FewShotClassifier(**edited.get_params()).fit(X, y)
    assert edited.elbo_ == pytest.approx(fresh.elbo_, abs=1e-6)
    np.testing.assert_allclose(edited.predict_proba(X), fresh.predict_proba(X), atol=1e-6)


def test_a_sequence_of_edits_of_many_classes_is_what_a_fit_gives():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(18), 9)
    X = 0.4 * rng.normal(size=(18, 130))[y] + rng.normal(size=(len(y), 130))
    y[-1] = 3  # a surprise
    order = rng.permutation(len(y))
    X, y = X[order], y[order]
    edited = FewShotClassifier().fit(X[:-6], y[:-6])
    for i in range(len(y) - 6, len(y)):
        edited.add(X[i], y[i])
        assert edited.start_ == "previous"
    edited.remove([5, 100]).add(X[[5, 100]], y[[5, 100]])
    order = np.concatenate([np.delete(np.arange(len(y)), [5, 100]), [5, 100]])
    assert_edit_is_fit(edited, X[order], y[order])
    fresh = FewShotClassifier().fit(X[order], y[order])
    assert edited.temperature_ == pytest.approx(fresh.temperature_, rel=1e-6)
    assert edited.loo_log_likelihood_ == pytest.approx(fresh.loo_log_likelihood_, abs=1e-5)


def test_an_edit_whose_first_step_leaves_the_basin_ends_where_a_fit_does():
    X = np.array([0.737, -0.229, -0.865, -0.322, 0.042, 0.176, -0.196, 0.814, 1.543, 0.999, -0.313, 0.074])[:, None]
    y = np.array([0, 1, 2, 1, 1, 1, 2, 1, 1, 1, 0, 1])
    edited = FewShotClassifier("polynomial").fit(X[:10], y[:10]).add(X[10:], y[10:])
    assert_edit_is_fit(edited, X, y)
    assert edited.gap_ < 1e-9


def test_surprising_labels_at_a_large_scale_end_where_a_fit_does():
    rng = np.random.default_rng(0)
    for _ in range(12):
        X, y = rng.normal(size=(13, 3)), rng.permutation(np.arange(13) % 3)
        X[12] = X[0] + 0.01 * rng.normal(size=3)
        y[12] = (y[0] + 1) % 3
        assert_edit_is_fit(FewShotClassifier(outputscale=100.0).fit(X[:12], y[:12]).add(X[12], y[12]), X, y)


def test_an_edit_says_how_it_was_solved(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 3)), np.arange(12) % 3
    model = FewShotClassifier().fit(X[:11], y[:11])
    assert model.start_ == "prior"
    assert model.add(X[11], y[11]).start_ == "previous"
    assert model.gap_ < 1e-12
    alternate = solve.alternate
    unproven = lambda task, start: alternate(task, None)._replace(error=1.0 if start is not None else 0.0)  # noqa: E731
    monkeypatch.setattr(solve, "alternate", unproven)
    model.remove(11)
    assert model.start_ == "prior"
    assert_edit_is_fit(model, X[:11], y[:11])


def test_a_fit_whose_steps_are_all_refused_starts_anew():
    x = np.array([[0.02419526], [-0.01688299], [0.00629365], [-0.016883], [-0.00909073], [-0.01688252], [0.01487677]])
    y, weight = np.array([0, 1, 0, 2, 2, 2, 4]), np.array([7.0, 7.0, 7.0, 2.0, 0.5, 7.0, 0.5])
    fitted = FewShotClassifier("cosine", outputscale=30.0, centre="none").fit(x, y, weight)
    assert fitted.gap_ < 1e-12
    assert fitted.elbo_ == pytest.approx(-21.98014, abs=1e-4)  # -22.47 where the first run of mirror descent stops

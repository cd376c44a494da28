import json

import numpy as np
import pytest
from sklearn.base import clone

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.prior import (
    BROAD_TEMPERATURE,
    FeatureMap,
    Prior,
    TemperaturePrior,
    broad_map,
    of_moderated,
    prior_state,
    restore_prior,
)
from mirrorshot.classifier.prior_learning import learn_prior, measure
from mirrorshot.classifier.selection import log_spread
from mirrorshot.files.checkpoint import CheckpointError
from mirrorshot.types import InvalidInputError

D = 12


def background(seed=0, n_classes=12, n=12, offset=2.0):
    """Classes that differ in all features, with most of their variance along the first one."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n_classes, n, D)) * np.where(np.arange(D) == 0, 2.0, 0.7)
    X = np.abs(offset + rng.normal(size=(n_classes, 1, D)) + noise)
    return X.reshape(-1, D), np.repeat(np.arange(n_classes), n)


@pytest.fixture(scope="module")
def prior():
    return learn_prior([background()], encoder="mine")


def task(seed=5, n_shot=2):
    X, y = background(seed, n_classes=4, n=n_shot + 3)
    first = np.tile(np.arange(n_shot + 3) < n_shot, 4)
    return X[first], y[first], X[~first], y[~first]


def test_map_equals_whitening_by_the_shrunk_covariance():
    X, y = background()
    X = FeatureMap(root=True, unit=True)(X)
    statistics = measure([(X, y)])
    found = statistics.map(0.5, root=True)
    within = np.concatenate([X[y == c] - X[y == c].mean(0) for c in np.unique(y)])
    S = within.T @ within / len(X)
    values, vectors = np.linalg.eigh(S)
    values[0] = statistics.remaining
    shrunk = 0.5 * values + 0.5 * statistics.average
    white = (X - statistics.mean) @ vectors @ np.diag(shrunk**-0.5) @ vectors.T
    mapped = (X - found.mean) + ((X - found.mean) @ found.directions.T * found.gain) @ found.directions
    scale = np.linalg.norm(white) / np.linalg.norm(mapped)
    np.testing.assert_allclose(scale * mapped, white, atol=1e-4 * np.abs(white).max())


def test_embeddings_without_negative_values_get_square_roots_and_others_do_not():
    assert broad_map(np.array([[0.0, 4.0]])) == FeatureMap(root=True, unit=True)
    assert broad_map(np.array([[-1.0, 4.0]])) == FeatureMap(root=False, unit=True)


def test_scaled_embeddings_give_the_same_probabilities():
    x, y, q, _ = task()
    plain = FewShotClassifier().fit(x, y).predict_proba(q)
    size = np.random.default_rng(0).uniform(0.1, 10.0, (len(x), 1))
    np.testing.assert_allclose(FewShotClassifier().fit(size * x, y).predict_proba(7.0 * q), plain, atol=1e-6)


def test_temperature_follows_features_classes_and_shots():
    mean = BROAD_TEMPERATURE.mean(1.0, 5, 256, 30.0)
    assert BROAD_TEMPERATURE.mean(5.0, 5, 256, 30.0) > mean
    assert BROAD_TEMPERATURE.mean(1.0, 15, 256, 30.0) > mean
    assert BROAD_TEMPERATURE.mean(1.0, 5, 1280, 30.0) < mean
    assert BROAD_TEMPERATURE.mean(1.0, 5, 2048, 30.0) == BROAD_TEMPERATURE.mean(1.0, 5, 10**6, 30.0)


def test_one_shot_has_the_temperature_of_the_prior(prior):
    x, y, *_ = task(n_shot=1)
    few = FewShotClassifier(prior=prior).fit(x, y)
    fitted = few.fitted_
    K = fitted.kernel(fitted.support.x, centre=fitted.centre)[0, 0]
    spread = log_spread(K / prior.outputscale, fitted.support.y, fitted.support.weight)
    wanted = prior.temperature.mean(1.0, 4, D, prior.outputscale, spread)
    assert np.log(few.temperature_) == pytest.approx(wanted, abs=0.02)


def test_temperature_of_an_earlier_version_is_that_of_another_link_and_is_translated(prior):
    arrays, info = prior_state(prior)
    earlier = {name: value for name, value in info.items() if name != "link"}
    found = restore_prior(arrays, earlier).temperature
    assert found == of_moderated(prior.temperature)
    assert found.mean(1.0, 2, D, 30.0) == pytest.approx(prior.temperature.mean(1.0, 2, D, 30.0) + 1.23)
    with pytest.raises(ValueError, match="unknown"):
        restore_prior(arrays, info | {"link": "of tomorrow"})


def test_prior_of_an_earlier_version_has_no_slope_in_the_spread(prior):
    arrays, info = prior_state(prior)
    earlier = {name: value for name, value in info["temperature"].items() if name != "spread"}
    assert restore_prior(arrays, info | {"temperature": earlier}).temperature.spread == 0.0


def test_saved_prior_is_the_same(prior, tmp_path):
    prior.save(tmp_path / "a.prior")
    again = Prior.load(tmp_path / "a.prior")
    x, y, q, _ = task()
    wanted, got = (FewShotClassifier(prior=p).fit(x, y).predict_proba(q) for p in (prior, again))
    np.testing.assert_array_equal(got, wanted)
    assert again.encoder == "mine"


def test_saved_classifier_brings_its_prior_and_can_be_edited(prior, tmp_path):
    x, y, q, _ = task(n_shot=3)
    clone(FewShotClassifier(prior=prior)).fit(x[:-1], y[:-1]).save(tmp_path / "head")
    again = FewShotClassifier.load(tmp_path / "head").add(x[-1], y[-1])
    wanted = FewShotClassifier(prior=prior).fit(x, y)
    np.testing.assert_allclose(again.predict_proba(q), wanted.predict_proba(q), atol=1e-6)


def test_edits_that_bring_negative_values_equal_a_fit_of_all():
    x, y, q, _ = task(n_shot=3)
    few = FewShotClassifier().fit(x, y).add(-x[:1], y[:1])
    wanted = FewShotClassifier().fit(np.concatenate([x, -x[:1]]), np.append(y, y[:1]))
    np.testing.assert_allclose(few.predict_proba(q), wanted.predict_proba(q), atol=1e-6)


def test_prior_of_other_embeddings_is_refused(prior):
    with pytest.raises(InvalidInputError, match=r"12 features, because the prior .* 'mine', but got 3"):
        FewShotClassifier(prior=prior).fit(np.eye(3), [0, 1, 2])
    with pytest.raises(InvalidInputError, match="kernel 'auto' or 'cosine'"):
        FewShotClassifier("rbf", prior=prior).fit(np.eye(3), [0, 1, 2])


def test_too_few_background_classes_are_refused():
    with pytest.raises(InvalidInputError, match=r"at least 10 background classes .* got 4 of 4"):
        learn_prior([background(n_classes=4)])


@pytest.mark.parametrize(
    ("name", "value"),
    [("root", 1), ("outputscale", float("nan")), ("outputscale", 0.0), ("centre", 2.0), ("encoder", 3),
     ("encoder", "x" * 300), ("temperature", {}), ("temperature", None)],
)  # fmt: skip
def test_damaged_numbers_are_refused(prior, name, value):
    arrays, info = prior_state(prior)
    with pytest.raises((ValueError, TypeError)):
        restore_prior(arrays, {**info, name: value})


def test_damaged_arrays_are_refused(prior):
    arrays, info = prior_state(prior)
    for name, array in {"gain": arrays["gain"] - 5, "mean": arrays["mean"][1:], "directions": arrays["gain"]}.items():
        with pytest.raises(ValueError, match=r"gain|mean|directions"):
            restore_prior({**arrays, name: array}, info)
    with pytest.raises(ValueError, match="arrays"):
        restore_prior({**arrays, "more": arrays["mean"]}, info)


def test_changed_file_is_refused(prior, tmp_path):
    path = tmp_path / "a.prior"
    prior.save(path)
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError):
        Prior.load(path)


def test_state_is_json(prior):
    info = prior_state(prior)[1]
    assert TemperaturePrior(**json.loads(json.dumps(info))["temperature"]) == prior.temperature


def test_export_applies_the_map(prior, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from mirrorshot.classifier.export import export_onnx

    x, y, q, _ = task()
    few = FewShotClassifier(prior=prior).fit(x, y)
    export_onnx(few, tmp_path / "head.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx")
    got = session.run(["probabilities"], {"embeddings": q.astype(np.float32)})[0]
    np.testing.assert_allclose(got, few.predict_proba(q), atol=1e-5)

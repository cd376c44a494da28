"""Arrays that are unusual and right, and embeddings whose squares are beyond floating point."""

import warnings
from datetime import date

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from mirrorshot import FewShotClassifier
from mirrorshot.gp.kernels import RBF
from mirrorshot.types import InvalidInputError, NumericalError

RNG = np.random.default_rng(0)
Y = np.arange(24) % 3
X = RNG.normal(size=(24, 5)) + 2 * np.eye(3, 5)[Y]
Q = RNG.normal(size=(6, 5))
PRIOR, PRIOR_Q = RNG.normal(size=(24, 3)), RNG.normal(size=(6, 3))

METHODS = {
    "fit": lambda m, x, s: m.fit(x[:6], [0, 1, 2, 0, 1, 2], prior_scores=s).predict_proba(Q, s),
    "add": lambda m, x, s: m.add(x, [0, 1, 2, 0, 1, 2], prior_scores=s).predict_proba(Q, s),
    "partial_fit": lambda m, x, s: m.partial_fit(x, [0, 1, 2, 0, 1, 2], prior_scores=s).predict_proba(Q, s),
    "predict": lambda m, x, s: m.predict(x, s),
    "predict_proba": lambda m, x, s: m.predict_proba(x, s),
    "predict_log_proba": lambda m, x, s: m.predict_log_proba(x, s),
    "predict_latent": lambda m, x, s: np.stack(m.predict_latent(x, s)),
    "uncertainty": lambda m, x, s: np.stack(m.uncertainty(x, s)),
    "novelty": lambda m, x, s: m.novelty(x, s),
    "suggest": lambda m, x, s: m.suggest(x, 2),
    "explain": lambda m, x, s: m.explain(x),
    "influence": lambda m, x, s: m.influence(x, s),
    "evidence": lambda m, x, s: np.stack(m.evidence(x, prior_scores=s)),
    "predict_set": lambda m, x, s: m.predict_set(x, 0.8, prior_scores=s),
    "predict_set with guarantee": lambda m, x, s: m.predict_set(x, 0.8, guarantee=True, prior_scores=s),
    "reject": lambda m, x, s: m.reject(x, 0.3, prior_scores=s).rejected,
    "score": lambda m, x, s: np.array(m.score(x, [0, 1, 2, 0, 1, 2])) if s is None else np.zeros(1),
}
BACKWARDS = {
    "rows": lambda x: x[::-1].copy()[::-1],
    "columns": lambda x: x[:, ::-1].copy()[:, ::-1],
    "Fortran": np.asfortranarray,
    "every other": lambda x: np.repeat(x, 2, axis=0)[::2],
}


@pytest.mark.parametrize("layout", BACKWARDS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_arrays_of_any_layout(name, layout):
    view = BACKWARDS[layout]
    plain = METHODS[name](FewShotClassifier().fit(X, Y), Q, None)
    np.testing.assert_allclose(METHODS[name](FewShotClassifier().fit(view(X), Y), view(Q), None), plain, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "suggest"])
def test_every_method_takes_prior_scores_of_any_layout(name):
    view = BACKWARDS["rows"]
    model = FewShotClassifier().fit(X, Y, prior_scores=PRIOR)
    plain = METHODS[name](model, Q, PRIOR_Q)
    model = FewShotClassifier().fit(view(X), Y, prior_scores=view(PRIOR))
    np.testing.assert_allclose(METHODS[name](model, view(Q), view(PRIOR_Q)), plain, atol=1e-9)


def test_a_frame_may_be_backwards():
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = FewShotClassifier().fit(frame[::-1], Y[::-1])
    found = model.predict_proba(frame[::-1])
    np.testing.assert_allclose(found, model.predict_proba(frame)[::-1], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32])
def test_tensors_of_every_real_type_are_taken(dtype):
    x, q = torch.tensor(4 * X).to(dtype), torch.tensor(4 * Q).to(dtype)
    found = FewShotClassifier().fit(x, Y).add(x[0], 0).predict_proba(q)
    plain = FewShotClassifier().fit(x.double().numpy(), Y).add(x[0].double().numpy(), 0)
    np.testing.assert_array_equal(found, plain.predict_proba(q.double().numpy()))


@pytest.mark.parametrize("centre", ["auto", "mean", "none"])
@pytest.mark.parametrize("kernel", ["cosine", "rbf", "linear", "polynomial"])
@pytest.mark.parametrize("size", [1e-90, 1e90])
def test_the_unit_of_the_embeddings_does_not_matter(kernel, centre, size):
    plain = FewShotClassifier(kernel, centre=centre).fit(X, Y).predict_proba(Q)
    found = FewShotClassifier(kernel, centre=centre).fit(size * X, Y).predict_proba(size * Q)
    np.testing.assert_allclose(found, plain, atol=1e-4)


@pytest.mark.parametrize("kernel", ["cosine", "rbf", "linear", "polynomial"])
def test_embeddings_whose_squares_overflow_are_refused_by_what_the_user_gave(kernel):
    with pytest.raises(InvalidInputError, match=r"absolute value at most 1e\+100, but got .*e\+200 at row 0, column 0"):
        FewShotClassifier(kernel).fit(1e200 * np.ones((4, 2)), [0, 0, 1, 1])
    with pytest.raises(InvalidInputError, match=r"at least 1e-100, or all zero, but got .*e-200\. Rescale them"):
        FewShotClassifier(kernel).fit(1e-200 * X, Y)
    model = FewShotClassifier(kernel).fit(X, Y)
    with pytest.raises(InvalidInputError, match=r"but got 1e\+200 at row 1, column 2\. Rescale them"):
        model.predict(np.where(np.arange(30).reshape(6, 5) == 7, 1e200, Q))
    with pytest.raises(InvalidInputError, match="at most"):
        model.add(1e200 * np.ones(5), 0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", 1, "a", "b"], r"sort with each other, but got 'a' and 1\. Make all"),
        (["a", None, "b", None], r"row 1 is None \(2 of 4 are missing\)"),
        (["a", "b", np.nan, "b"], r"row 2 is nan \(1 of 4"),
    ],
)
def test_labels_that_are_missing_or_mixed_are_named(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        FewShotClassifier().fit(np.eye(4), np.array(labels, dtype=object))


def test_missing_labels_of_frames_and_times_are_named():
    times = np.array(["2020-01-01", "NaT", "2020-01-02", "2020-01-01"], dtype="datetime64[D]")
    for labels in (pd.Series(["a", None, "b", "a"], dtype="string"), pd.Series(times), times):
        with pytest.raises(InvalidInputError, match=r"row 1 is (<NA>|NaT)"):
            FewShotClassifier().fit(np.eye(4), labels)


@pytest.mark.parametrize("labels", [[date(2020, 1, 1), date(2020, 1, 2)], [3, 5], [2**70, 2**71]])
def test_labels_are_of_any_kind_that_sorts(labels):
    X, y = np.eye(4), np.array(labels * 2, dtype=object)
    few = FewShotClassifier().fit(X, y)
    assert few.classes_.tolist() == labels
    assert few.predict(X).tolist() == y.tolist()


def test_columns_of_different_units_are_pointed_out():
    X, y = load_wine(return_X_y=True)
    with pytest.warns(UserWarning, match=r"make_pipeline\(StandardScaler\(\), FewShotClassifier\(\)\)"):
        FewShotClassifier().fit(X[::9], y[::9])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FewShotClassifier().fit(StandardScaler().fit_transform(X[::9]), y[::9])
        FewShotClassifier().fit(load_digits().data[:40], load_digits().target[:40])


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "boolean"])
def test_labels_of_a_frames_own_types_stay_integers_and_truth_values(dtype):
    labels = pd.Series([0, 1, 0, 1], dtype=dtype)
    few = FewShotClassifier().fit([[0.0, 1.0], [1.0, 0.0], [0.1, 1.0], [1.0, 0.1]], labels)
    assert few.classes_.dtype.kind in "iub"
    assert few.predict([[0.0, 2.0]]).tolist() == [0]


def test_weights_and_scales_beyond_the_accuracy_of_inference_are_refused():
    X, y = [[0.0, 1.0], [1.0, 0.0]], ["a", "b"]
    with pytest.raises(InvalidInputError, match=r"`sample_weight` to be at most 1e\+08, .* got 1e\+15 at row 1"):
        FewShotClassifier().fit(X, y, sample_weight=[1.0, 1e15])
    with pytest.raises(InvalidInputError, match="None"):
        FewShotClassifier().partial_fit(X, y, classes=["a", "b", None])
    with pytest.raises(InvalidInputError, match=r"`outputscale` .* between 1e-12 and 1e\+12, but got 1e\+300"):
        FewShotClassifier(outputscale=1e300).fit(X, y)


@pytest.mark.filterwarnings("ignore:Inference stopped")
def test_a_kernel_whose_bound_is_not_finite_is_refused():
    with pytest.raises(NumericalError, match="Choose a smaller output scale"):
        FewShotClassifier(RBF(outputscale=1e300)).fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])

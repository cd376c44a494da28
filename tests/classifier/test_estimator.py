import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from mirrorshot import FewShotClassifier
from mirrorshot.gp import mirror_descent
from mirrorshot.gp.gaussian import GaussianSites, condition, predict_latent
from mirrorshot.gp.kernels import RBF, Cosine, Linear, TrainableKernel
from mirrorshot.softmax.moments import softmax_moments
from mirrorshot.types import InvalidInputError


@parametrize_with_checks([FewShotClassifier()])
def test_every_check_of_scikit_learn_passes(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def task(digits):
    X, y = digits
    rows = np.concatenate([np.flatnonzero(y == c)[:5] for c in range(5)])
    queries = np.concatenate([np.flatnonzero(y == c)[5:15] for c in range(5)])
    return X[rows], y[rows], X[queries], y[queries]


def test_probabilities_agree_with_the_core_computed_by_hand(task):
    X, y, Xq, _ = task
    model = FewShotClassifier(RBF(lengthscale=0.7, outputscale=8.0), centre="none", temperature=0.5)
    prob = model.fit(X, y).predict_proba(Xq)
    kernel = 8.0 * sklearn_kernels.RBF(0.7)
    K, cross = (torch.tensor(kernel(X, other))[None, None] for other in (X, Xq))
    posterior, _ = mirror_descent(K, torch.tensor(y)[None], n_way=5, tol=1e-13)
    mean, var = predict_latent(posterior, cross, torch.full((1, 1, len(Xq)), 8.0, dtype=torch.float64))
    moderated = mean[0].mT / (1 + 0.4 * var[0].mT).sqrt()
    np.testing.assert_allclose(prob, (moderated / 0.5).softmax(-1), atol=5e-6)


def rings(n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that differ in their distance from the origin, which a cosine does not see."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, n_features))
    x *= np.repeat([1.0, 5.0], 12)[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.repeat([0, 1], 12)


def test_auto_chooses_rbf_for_a_table_whose_distances_matter():
    X, y = rings(2)
    assert isinstance(FewShotClassifier().fit(X, y).kernel_, RBF)
    named = FewShotClassifier("rbf").fit(X, y)
    np.testing.assert_array_equal(FewShotClassifier().fit(X, y).predict_proba(X), named.predict_proba(X))


def test_auto_is_cosine_for_one_example_per_class_and_for_embeddings():
    X, y = rings(2)
    assert isinstance(FewShotClassifier().fit(X[[0, 12]], y[[0, 12]]).kernel_, Cosine)
    assert isinstance(FewShotClassifier().fit(*rings(128)).kernel_, Cosine)


def test_auto_is_not_misled_by_the_numbers_of_examples():
    X, y = load_breast_cancer(return_X_y=True)
    assert np.bincount(y[:40]).tolist() == [36, 4]
    model = FewShotClassifier().fit(StandardScaler().fit_transform(X)[:40], y[:40])
    assert isinstance(model.kernel_, Cosine)


def test_predict_score_and_probabilities_agree(task):
    X, y, Xq, yq = task
    model = FewShotClassifier().fit(X, y)
    prob = model.predict_proba(Xq)
    np.testing.assert_allclose(prob.sum(1), 1.0, atol=1e-10)
    np.testing.assert_array_equal(model.predict(Xq), model.classes_[prob.argmax(1)])
    assert model.score(Xq, yq) == np.mean(model.predict(Xq) == yq) > 0.8
    np.testing.assert_allclose(np.log(prob), model.predict_log_proba(Xq))


def test_fitting_twice_gives_bitwise_the_same_answer(task):
    X, y, Xq, _ = task
    first, second = (FewShotClassifier().fit(X, y).predict_proba(Xq) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_one_example_per_class_is_calibrated_enough_to_beat_default_logistic_regression(digits):
    X, y = digits
    rng = np.random.default_rng(0)
    ours, theirs = [], []
    for _ in range(12):
        labels = rng.permutation(10)[:5]
        drawn = [rng.permutation(np.flatnonzero(y == c))[:16] for c in labels]
        support = np.array([rows[0] for rows in drawn])
        query = np.concatenate([rows[1:] for rows in drawn])
        for found, model in ((ours, FewShotClassifier()), (theirs, LogisticRegression())):
            found.append(log_loss(y[query], model.fit(X[support], y[support]).predict_proba(X[query])))
    assert np.mean(ours) < 0.7 * np.mean(theirs)


@pytest.mark.parametrize("kernel", ["cosine", "rbf", "matern", "linear", "polynomial"])
def test_every_kernel_learns_wine(kernel):
    X, y = load_wine(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    rows = np.concatenate([np.flatnonzero(y == c)[:6] for c in range(3)])
    rest = np.setdiff1d(np.arange(len(y)), rows)
    model = FewShotClassifier(kernel).fit(X[rows], y[rows])
    assert model.score(X[rest], y[rest]) > 0.85
    assert log_loss(y[rest], model.predict_proba(X[rest])) < 0.5


def test_string_labels_unbalanced_classes_and_frames_are_accepted(task):
    X, y, Xq, _ = task
    keep = np.r_[0:5, 5, 10:13, 15, 20]
    frame = pd.DataFrame(X[keep], columns=[f"pixel{i}" for i in range(X.shape[1])])
    labels = pd.Series(np.array(["zero", "one", "two", "three", "four"])[y[keep]])
    model = FewShotClassifier().fit(frame, labels)
    assert list(model.classes_) == ["four", "one", "three", "two", "zero"]
    assert list(model.feature_names_in_) == list(frame.columns)
    from_frame = model.predict_proba(pd.DataFrame(Xq, columns=frame.columns))
    from_lists = FewShotClassifier().fit(X[keep].tolist(), labels.tolist()).predict_proba(Xq.tolist())
    from_torch = FewShotClassifier().fit(torch.tensor(X[keep]), labels.to_numpy()).predict_proba(torch.tensor(Xq))
    np.testing.assert_allclose(from_frame, from_lists)
    np.testing.assert_allclose(from_frame, from_torch)


def test_permuting_classes_permutes_columns(task):
    X, y, Xq, _ = task
    renamed = (y + 2) % 5
    before, after = (FewShotClassifier().fit(X, labels).predict_proba(Xq) for labels in (y, renamed))
    np.testing.assert_allclose(after[:, (np.arange(5) + 2) % 5], before, atol=1e-6)


def test_a_weight_of_two_is_the_same_as_two_copies(task):
    X, y, Xq, _ = task
    weight = np.where(np.arange(len(y)) % 3 == 0, 2.0, 1.0)
    copies = np.repeat(np.arange(len(y)), weight.astype(int))
    weighted = FewShotClassifier().fit(X, y, sample_weight=weight)
    copied = FewShotClassifier().fit(X[copies], y[copies])
    assert weighted.temperature_ == pytest.approx(copied.temperature_, rel=1e-6)
    np.testing.assert_allclose(weighted.predict_proba(Xq), copied.predict_proba(Xq), atol=1e-7)


def test_it_works_with_pipelines_searches_cross_validation_and_pickle(task):
    X, y, Xq, _ = task
    pipeline = make_pipeline(StandardScaler(), FewShotClassifier())
    search = GridSearchCV(pipeline, {"fewshotclassifier__centre": ["auto", "none"]}, cv=2, scoring="neg_log_loss")
    assert search.fit(X, y).best_score_ > -1.5
    assert cross_val_predict(FewShotClassifier(), X, y, cv=5, method="predict_proba").shape == (25, 5)
    model = clone(FewShotClassifier("rbf", outputscale=5.0)).fit(X, y)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict_proba(Xq), model.predict_proba(Xq))


def test_a_kernel_of_ones_own_is_used_as_it_is_and_not_changed(task):
    X, y, Xq, _ = task
    kernel = RBF(lengthscale=0.5, outputscale=20.0) + Linear(outputscale=5.0)
    model = FewShotClassifier(kernel).fit(X, y)
    assert model.kernel_ is kernel
    np.testing.assert_allclose([s["outputscale"][0] for s in kernel.scales], [20.0, 5.0])
    trained = TrainableKernel(kernel).double()
    found = FewShotClassifier(trained).fit(X, y).predict_proba(Xq)  # its parameters began in single precision
    np.testing.assert_allclose(found, model.predict_proba(Xq), rtol=1e-5)


def test_a_hundred_classes_are_no_problem():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(100, 32))
    X = np.repeat(centres, 2, axis=0) + 0.3 * rng.normal(size=(200, 32))
    y = np.repeat(np.arange(100), 2)
    model = FewShotClassifier(outputscale=10.0).fit(X, y)
    queries = centres + 0.3 * rng.normal(size=(100, 32))
    assert model.score(queries, np.arange(100)) > 0.9


@pytest.mark.filterwarnings("ignore:The scales of the columns of X")  # few distinct rows may differ as units do
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    n_features=st.integers(1, 8),
    scale=st.sampled_from([1e-8, 1e-3, 1.0, 1e4]),
    kind=st.sampled_from(["normal", "constant", "duplicates", "zeros"]),
)
def test_any_finite_embeddings_give_probabilities(seed, n_features, scale, kind):
    rng = np.random.default_rng(seed)
    y = np.r_[0, 1, 2, rng.integers(0, 3, size=rng.integers(0, 5))]
    X = scale * rng.normal(size=(len(y), n_features))
    if kind == "constant":
        X[:] = X[0]
    elif kind == "duplicates":
        X = X[rng.integers(0, 2, size=len(y))]
    elif kind == "zeros":
        X[rng.random(len(y)) < 0.5] = 0.0
    prob = FewShotClassifier().fit(X, y).predict_proba(np.vstack([X, 3 * X, np.zeros((1, n_features))]))
    assert np.isfinite(prob).all()
    np.testing.assert_allclose(prob.sum(1), 1.0, atol=1e-9)


class TestBadInput:
    def test_nan_is_named_by_row_and_column(self, task):
        X = task[0].copy()
        X[3, 7] = np.nan
        with pytest.raises(InvalidInputError, match=r"NaN at row 3, column 7 .1 such values in all"):
            FewShotClassifier().fit(X, task[1])

    def test_infinity_in_a_frame_is_named_by_its_column(self, task):
        frame = pd.DataFrame(task[0][:, :3], columns=["a", "b", "c"])
        frame.loc[2, "b"] = np.inf
        with pytest.raises(InvalidInputError, match=r"inf.* at row 2, column 'b'"):
            FewShotClassifier().fit(frame, task[1])

    def test_many_classes_with_one_example_each_are_no_regression_problem(self, task):
        few = FewShotClassifier().fit(task[0], np.arange(25))  # warnings are errors
        assert few.predict_proba(task[0]).argmax(1).tolist() == list(range(25))

    def test_one_class_only(self, task):
        with pytest.raises(InvalidInputError, match=r"at least two classes .* but got one class, 7\. Add an example"):
            FewShotClassifier().fit(task[0], np.full(25, 7))

    def test_labels_of_another_length(self, task):
        with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[25, 24\]"):
            FewShotClassifier().fit(task[0], task[1][:-1])

    def test_no_features(self, task):
        with pytest.raises(ValueError, match="0 feature"):
            FewShotClassifier().fit(np.empty((25, 0)), task[1])

    def test_a_query_of_the_wrong_width(self, task):
        model = FewShotClassifier().fit(task[0], task[1])
        with pytest.raises(ValueError, match="X has 10 features, but FewShotClassifier is expecting 64 features"):
            model.predict(task[2][:, :10])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"kernel": "cosin"},
                "one of auto, cosine, rbf, matern, linear, polynomial, or a Kernel, but got 'cosin'",
            ),
            ({"kernel": 3}, "a name or a mirrorshot Kernel, but got int"),
            ({"outputscale": -1.0}, "to be 'auto' or 'loo' or a positive number between 1e-12 and 1e.12, but got -1.0"),
            ({"temperature": "auto"}, "to be 'loo' or a positive number between 1e-12 and 1e.12, but got 'auto'"),
            ({"centre": "median"}, "'auto', 'mean' or 'none', but got 'median'"),
        ],
    )
    def test_options_that_do_not_exist(self, task, options, message):
        with pytest.raises(InvalidInputError, match=message):
            FewShotClassifier(**options).fit(task[0], task[1])

    def test_a_failed_fit_leaves_the_earlier_one_usable(self, task):
        X, y, Xq, _ = task
        model = FewShotClassifier().fit(X, y)
        before = model.predict_proba(Xq)
        bad = X[:, :9].copy()
        bad[0, 0] = np.nan
        with pytest.raises(InvalidInputError):
            model.fit(bad, y)
        np.testing.assert_array_equal(model.predict_proba(Xq), before)
        assert model.n_features_in_ == 64


def test_sites_of_a_fit_are_a_fixed_point(task):
    X, y, _, _ = task
    model = FewShotClassifier().fit(X, y)
    posterior = model.fitted_.posterior
    K = model.kernel_(model.fitted_.map(X)[None], centre=model.fitted_.centre)
    moments = softmax_moments(posterior.mean.mT, posterior.var.mT)
    one_hot = np.eye(5)[y].T[None]
    g_m = one_hot - moments.prob.mT
    again = condition(K, GaussianSites(g_m + moments.curvature.mT * posterior.mean, moments.curvature.mT))
    np.testing.assert_allclose(again.mean, posterior.mean, atol=2e-3, rtol=0.0)


@pytest.mark.parametrize("column", [0, 2])
def test_a_single_positive_feature_is_compared_by_its_distance(column):
    X, y = load_iris(return_X_y=True)
    X, chosen = X[:, [column]], np.arange(0, 150, 10)
    few = FewShotClassifier().fit(X[chosen], y[chosen])
    assert few.score(X, y) > 0.6
    assert len(np.unique(FewShotClassifier().fit(X[::50], y[::50]).predict(X))) == 3

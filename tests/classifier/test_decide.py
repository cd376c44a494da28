import pickle

import numpy as np
import pytest
import torch
from scipy.special import entr
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.decide import _loo_novelty
from mirrorshot.classifier.decisions import uncertainty
from mirrorshot.gp.kernels import RBF
from mirrorshot.types import InvalidInputError

CALLS = {
    "uncertainty": lambda model, X: model.uncertainty(X),
    "novelty": lambda model, X: model.novelty(X),
    "explain": lambda model, X: model.explain(X),
    "suggest": lambda model, X: model.suggest(X, 2),
    "influence": lambda model, X: model.influence(X),
    "evidence": lambda model, X: np.stack(model.evidence(X)),
    "reject": lambda model, X: model.reject(X, 0.1).rejected,
    "guaranteed set": lambda model, X: model.predict_set(X, 0.8, guarantee=True),
    "predict_set": lambda model, X: model.predict_set(X, 0.8),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_queries_are_refused_and_change_nothing(name, task):
    model = FewShotClassifier()
    with pytest.raises(NotFittedError):
        CALLS[name](model, task[2])
    model.fit(task[0], task[1])
    before = pickle.dumps(model)
    bad = task[2].copy()
    bad[4, 2] = np.nan
    with pytest.raises(InvalidInputError, match="NaN at row 4, column 2"):
        CALLS[name](model, bad)
    with pytest.raises(ValueError, match="X has 10 features, but FewShotClassifier is expecting 64"):
        CALLS[name](model, task[2][:, :10])
    CALLS[name](model, task[2])
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("name", CALLS)
def test_tensors_and_a_second_call_give_the_same_answer(name, model, task):
    first, second = (CALLS[name](model, X) for X in (task[2], torch.tensor(task[2])))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_with_gradients_is_accepted(name, task):
    model = FewShotClassifier(RBF(lengthscale=0.5, outputscale=8.0)).fit(task[0], task[1])
    assert np.isfinite(CALLS[name](model, task[2])).all()


@pytest.mark.parametrize("temperature", ["loo", 0.1, 1.0])
def test_uncertainty_is_the_entropy_of_the_probabilities_split_as_that_of_the_latents(task, temperature):
    model = FewShotClassifier(temperature=temperature).fit(task[0], task[1])
    parts, prob = model.uncertainty(task[2]), model.predict_proba(task[2])
    np.testing.assert_allclose(parts.total, entr(prob).sum(1), atol=1e-12)
    np.testing.assert_allclose(parts.aleatoric + parts.epistemic, parts.total, atol=1e-12)
    latents = uncertainty(*model.predict_latent(task[2]))
    np.testing.assert_allclose(parts.epistemic * latents.total, latents.epistemic * parts.total, atol=1e-12)


def test_epistemic_uncertainty_is_about_what_many_examples_remove_from_the_nll(digits):
    X, y = digits
    order = np.random.default_rng(0).permutation(len(X))
    queries, rest = order[:300], order[300:]
    many = FewShotClassifier("cosine").fit(X[rest[:800]], y[rest[:800]])
    falls, predicted = [], []
    for few in np.split(rest[:200], 4):
        model = FewShotClassifier("cosine").fit(X[few], y[few])
        nll, best = (-m.predict_log_proba(X[queries])[np.arange(300), y[queries]].mean() for m in (model, many))
        falls.append(nll - best)
        predicted.append(model.uncertainty(X[queries]).epistemic.mean())
    assert np.mean(predicted) == pytest.approx(np.mean(falls), rel=0.3)


def test_more_examples_remove_epistemic_uncertainty(digits, task):
    X, y = digits
    known = np.flatnonzero(y < 5)
    many = FewShotClassifier("cosine").fit(X[known[200:500]], y[known[200:500]])
    few = FewShotClassifier("cosine").fit(task[0], task[1])
    assert many.uncertainty(task[2]).epistemic.mean() < 0.7 * few.uncertainty(task[2]).epistemic.mean()


def test_unknown_digits_are_novel(digits, model, task):
    X, y = digits
    unknown = X[y >= 5][:100]
    found = model.novelty(np.vstack([task[2], unknown]))
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    assert roc_auc_score(np.r_[np.zeros(100), np.ones(100)], found) > 0.85


def test_a_wrong_label_is_the_first_suspect(task):
    X, y, _, _ = task
    wrong = y.copy()
    wrong[12] = "a"
    found = FewShotClassifier().fit(X, wrong).suspects()
    assert (found.row[0], found.label[0]) == (12, "c")
    assert sorted(found.row) == list(range(25))
    assert (np.diff(found.proba) >= 0).all()


def test_the_only_example_of_a_class_is_no_suspect(task):
    X, y, _, _ = task
    keep = np.r_[0:6, 10:13]  # one "b"
    assert 5 not in FewShotClassifier().fit(X[keep], y[keep]).suspects().row
    alone = FewShotClassifier().fit(X[::5], y[::5]).suspects()
    assert [len(part) for part in alone] == [0, 0, 0]


def test_suggestions_are_different_rows_and_a_prefix_of_longer_ones(model, task):
    five = model.suggest(task[2], 5)
    assert len(set(five)) == 5
    np.testing.assert_array_equal(model.suggest(task[2], 2), five[:2])
    assert sorted(model.suggest(task[2][:4], 4)) == [0, 1, 2, 3]


def test_suggestions_from_a_pool_of_copies_are_different_points(model, task):
    pool = np.repeat(task[2][::20], 10, axis=0)
    assert len(set(model.suggest(pool, 5) // 10)) == 5
    assert sorted(model.suggest(pool, 50)) == list(range(50))


@pytest.mark.parametrize("k", [0, -1, 101, 2.0, True, None])
def test_a_number_that_the_pool_cannot_give_is_refused(model, task, k, as_for_users):
    with pytest.raises(InvalidInputError, match="`k` to be an integer from 1 to 100, the size of the pool, but got"):
        model.suggest(task[2], k)


@pytest.mark.parametrize("pool", [[], np.empty((0, 64))])
def test_an_empty_pool_is_refused(model, pool):
    with pytest.raises(InvalidInputError, match="`X_pool` to hold at least one example, but it is empty"):
        model.suggest(pool, 1)


def shares_above_threshold(n_shot, n_tasks, rate):
    """Shares of known and of unknown digits above the threshold, five digits known, over some tasks."""
    X, y = load_digits(return_X_y=True)
    known, unknown = [], []
    for seed in range(n_tasks):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(X))
        classes = rng.permutation(10)[:5]
        rows = np.concatenate([order[y[order] == c][:n_shot] for c in classes])
        rest = np.setdiff1d(order, rows)[:300]
        few = FewShotClassifier().fit(X[rows], y[rows])
        is_novel = few.novelty(X[rest]) > few.novelty_threshold(rate)
        known.append(is_novel[np.isin(y[rest], classes)].mean())
        unknown.append(is_novel[~np.isin(y[rest], classes)].mean())
    return np.mean(known), np.mean(unknown)


@pytest.mark.parametrize("n_shot", [2, 10])
def test_novelty_threshold_lets_the_wanted_share_of_known_queries_pass(n_shot):
    known, unknown = shares_above_threshold(n_shot, 12, 0.1)
    assert 0.02 < known < 0.16
    assert unknown > 2 * known


def test_single_examples_tell_known_from_unknown_queries():
    known, unknown = shares_above_threshold(1, 40, 0.05)
    assert known < 0.1
    assert unknown > 2 * known > 0


@pytest.mark.parametrize("n_shot", [1, 2])
def test_novelty_of_an_example_is_that_for_a_classifier_of_the_others(n_shot):
    """The sites of the others are held, so it is so approximately."""
    X, y = load_digits(return_X_y=True)
    rows = np.concatenate([np.flatnonzero(y == c)[:n_shot] for c in range(6)])
    few = FewShotClassifier().fit(X[rows], y[rows])
    declared = few.classes_
    alone = []
    for i in range(len(rows)):
        rest = np.delete(rows, i)
        other = FewShotClassifier().partial_fit(X[rest], y[rest], classes=declared)
        alone.append(other.novelty(X[rows[i : i + 1]])[0])
    np.testing.assert_allclose(_loo_novelty(few.fitted_), alone, atol=0.1)


def test_prior_scores_take_part_in_the_novelty_threshold():
    X, y = load_digits(return_X_y=True)
    few, scored = FewShotClassifier(), FewShotClassifier()
    few.fit(X[:5], y[:5])
    scored.fit(X[:5], y[:5], prior_scores=np.zeros((5, 5)))
    assert scored.novelty_threshold() == pytest.approx(few.novelty_threshold(), abs=1e-9)
    scored.fit(X[:5], y[:5], prior_scores=np.eye(5))
    assert scored.novelty_threshold() != pytest.approx(few.novelty_threshold(), abs=1e-3)


def test_no_query_is_above_the_threshold_of_two_examples():
    X, y = load_digits(return_X_y=True)
    assert FewShotClassifier().fit(X[:2], y[:2]).novelty_threshold() == 1.0


def test_few_and_many_examples_have_nearly_the_same_threshold(monkeypatch):
    X, y = load_digits(return_X_y=True)
    few = FewShotClassifier().fit(X[:60], y[:60])
    recentred = few.novelty_threshold()
    monkeypatch.setattr("mirrorshot.classifier.decide._RECENTRED", 0)
    assert few.novelty_threshold() == pytest.approx(recentred, abs=0.05)


def test_a_rate_of_zero_is_refused():
    X, y = load_digits(return_X_y=True)
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        FewShotClassifier().fit(X[:10], y[:10]).novelty_threshold(0.0)

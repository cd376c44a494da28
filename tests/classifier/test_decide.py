import itertools
import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.decisions import uncertainty
from mirrorshot.gp.kernels import RBF
from mirrorshot.types import InvalidInputError


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


@pytest.fixture(scope="module")
def task(digits):
    X, y = digits
    rows = np.concatenate([np.flatnonzero(y == c)[:5] for c in range(5)])
    queries = np.concatenate([np.flatnonzero(y == c)[5:25] for c in range(5)])
    return X[rows], np.array(list("abcde"))[y[rows]], X[queries], np.array(list("abcde"))[y[queries]]


@pytest.fixture(scope="module")
def model(task):
    return FewShotClassifier().fit(task[0], task[1])


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
    model = FewShotClassifier(RBF(lengthscale=0.5, outputscale=8.0).double()).fit(task[0], task[1])
    assert np.isfinite(CALLS[name](model, task[2])).all()


def test_uncertainty_is_that_of_the_latents_whatever_the_temperature(model, task):
    parts = uncertainty(*(torch.tensor(part) for part in model.predict_latent(task[2])))
    cold = FewShotClassifier(temperature=0.1).fit(task[0], task[1])
    for found, again, expected in zip(model.uncertainty(task[2]), cold.uncertainty(task[2]), parts, strict=True):
        assert found.shape == (100,)
        np.testing.assert_allclose(found, expected)
        np.testing.assert_allclose(found, again, atol=1e-5)


def test_more_examples_remove_epistemic_uncertainty(digits, task):
    X, y = digits
    known = np.flatnonzero(y < 5)
    many = FewShotClassifier().fit(X[known[200:500]], y[known[200:500]])
    few = FewShotClassifier().fit(task[0], task[1])
    assert many.uncertainty(task[2]).epistemic.mean() < 0.5 * few.uncertainty(task[2]).epistemic.mean()


def test_unknown_digits_are_novel(digits, model, task):
    X, y = digits
    unknown = X[y >= 5][:100]
    found = model.novelty(np.vstack([task[2], unknown]))
    assert found.min() >= 0.0
    assert found.max() <= 1.0
    assert roc_auc_score(np.r_[np.zeros(100), np.ones(100)], found) > 0.85


def test_explanations_add_up_to_the_latent_means(model, task):
    weights = model.explain(task[2])
    assert weights.shape == (100, 5, 25)
    np.testing.assert_allclose(weights.sum(-1), model.predict_latent(task[2])[0], atol=1e-9)


def test_influence_is_what_removing_the_example_changes(model, task):
    X, y, Xq, _ = task
    found = model.influence(Xq)
    assert found.shape == (100, 5, 25)
    np.testing.assert_allclose(found.sum(1), 0.0, atol=1e-9)
    options = {"kernel": model.kernel_, "centre": "none", "temperature": model.temperature_}
    centre = model.fitted_.centre[0].numpy()
    again = FewShotClassifier(**options).fit(X - centre, y)
    for i in (0, 7, 12):
        rest = np.arange(25) != i
        without = FewShotClassifier(**options).fit(X[rest] - centre, y[rest]).predict_proba(Xq - centre)
        exact = again.predict_proba(Xq - centre) - without
        assert np.corrcoef(found[..., i].ravel(), exact.ravel())[0, 1] > 0.85  # the other sites stay: no refit
        assert 0.5 < np.abs(found[..., i]).sum() / np.abs(exact).sum() < 2.0


def test_evidence_is_the_strongest_part_of_the_explanation(model, task):
    found = model.evidence(task[2], k=4)
    best = model.predict_proba(task[2]).argmax(1)
    weights = model.explain(task[2])[np.arange(100), best]
    np.testing.assert_array_equal(found.weight, -np.sort(-weights, axis=1)[:, :4])
    np.testing.assert_array_equal(
        found.influence, model.influence(task[2])[np.arange(100)[:, None], best[:, None], found.row]
    )
    assert (found.influence[:, 0] > 0).mean() > 0.95
    assert (task[1][found.row[:, 0]] == model.predict(task[2])).mean() > 0.95
    with pytest.raises(
        InvalidInputError, match="`k` to be an integer from 1 to 25, the number of examples, but got 26"
    ):
        model.evidence(task[2], k=26)


def test_examples_of_weight_zero_keep_their_rows_and_explain_nothing(task):
    X, y, Xq, _ = task
    weight = np.ones(25)
    weight[[0, 7]] = 0.0
    model = FewShotClassifier().fit(X, y, sample_weight=weight)
    explained = model.explain(Xq)
    assert not explained[..., [0, 7]].any()
    assert not model.influence(Xq)[..., [0, 7]].any()
    np.testing.assert_allclose(explained.sum(-1), model.predict_latent(Xq)[0], atol=1e-9)
    assert set(model.suspects().row) == set(range(25)) - {0, 7}


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


def test_sets_grow_with_the_coverage(model, task):
    sets = [model.predict_set(task[2], coverage) for coverage in (0.3, 0.6, 0.9, 0.96)]
    assert sets[0].shape == (100, 5)
    assert sets[0].dtype == bool
    assert all((small <= large).all() for small, large in itertools.pairwise(sets))
    assert sets[0].sum() < sets[-1].sum()


def test_sets_hold_the_label_about_as_often_as_asked_over_tasks(digits):
    X, y = digits
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(24):
        drawn = [rng.permutation(np.flatnonzero(y == c))[:25] for c in rng.permutation(10)[:5]]
        support, query = (np.concatenate([rows[part] for rows in drawn]) for part in (slice(5), slice(5, 25)))
        model = FewShotClassifier().fit(X[support], y[support])
        sets = model.predict_set(X[query], 0.8)
        covered.append(sets[np.arange(100), np.searchsorted(model.classes_, y[query])].mean())
    assert np.mean(covered) == pytest.approx(0.8, abs=0.06)


def test_a_guarantee_gives_larger_sets(model, task):
    for coverage in (0.5, 0.77, 0.9):
        usual, safe = (model.predict_set(task[2], coverage, guarantee=which) for which in (False, True))
        assert usual.sum() <= safe.sum()


@pytest.mark.parametrize(("n_shot", "least"), [(2, 0.4), (5, 0.8)])
def test_accepted_queries_are_those_above_the_threshold_and_seldom_wrong(digits, n_shot, least):
    X, y = digits
    rng = np.random.default_rng(0)
    wrong, accepted = [], []
    for _ in range(24):
        drawn = [rng.permutation(np.flatnonzero(y == c))[:25] for c in rng.permutation(10)[:5]]
        support, query = (np.concatenate([rows[part] for rows in drawn]) for part in (slice(n_shot), slice(5, 25)))
        model = FewShotClassifier().fit(X[support], y[support])
        found = model.reject(X[query], 0.08)
        np.testing.assert_array_equal(found.rejected, model.predict_proba(X[query]).max(1) < found.threshold)
        assert found.risk <= 0.08
        wrong += list((model.predict(X[query]) != y[query])[~found.rejected])
        accepted.append(1 - found.rejected.mean())
    assert np.mean(wrong) < 0.08
    assert np.mean(accepted) > least


def test_a_higher_risk_accepts_more_and_a_confidence_accepts_less(digits):
    X, y = digits
    model = FewShotClassifier().fit(X[:120], y[:120])
    rejected = [model.reject(X[200:400], risk).rejected for risk in (0.001, 0.03, 0.06, 0.2)]
    assert all((more >= less).all() for more, less in itertools.pairwise(rejected))
    assert (model.reject(X[200:400], 0.06, delta=0.1).rejected >= rejected[2]).all()


def test_with_one_example_of_each_class_a_probability_has_to_keep_to_the_risk_by_itself(digits):
    X, y = digits
    model = FewShotClassifier().fit(X[:10], y[:10])
    found = model.reject(X[10:60], 0.2)
    assert (found.threshold, found.risk) == (0.8, 0.2)
    np.testing.assert_array_equal(found.rejected, model.predict_proba(X[10:60]).max(1) < 0.8)


def test_examples_that_contradict_the_probabilities_are_told_of(digits):
    X, y = digits
    model = FewShotClassifier(temperature=0.05).fit(X[:40], np.random.default_rng(0).permutation(y[:40]))
    with pytest.warns(UserWarning, match=r"examples contradict the probabilities: \d+ of 40 are wrong .* were to be"):
        model.reject(X[50:60])


def test_everything_is_rejected_with_a_warning_if_no_counted_risk_will_do(digits):
    X, y = digits
    wrong = np.random.default_rng(0).permutation(y[:40])
    model = FewShotClassifier().fit(X[:40], wrong)
    with pytest.warns(UserWarning, match=r"No threshold keeps the risk at 0.1, as far as 40 examples can tell"):
        found = model.reject(X[50:60], 0.1, delta=0.1)
    assert found.rejected.all()
    assert found.threshold == float("inf")


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1, 5, float("nan"), "0.05", True])
def test_a_risk_outside_of_zero_and_one_is_refused(model, task, risk):
    with pytest.raises(InvalidInputError, match="`target_risk` to be a number between 0 and 1, but got"):
        model.reject(task[2], risk)
    with pytest.raises(InvalidInputError, match="`delta` to be a number between 0 and 1, but got"):
        model.reject(task[2], 0.1, delta=risk)


def test_a_risk_that_the_examples_cannot_show_is_refused(model, task):
    with pytest.raises(InvalidInputError, match=r"at least 59 examples .* but got 25.* or delta"):
        model.reject(task[2], 0.05, delta=0.05)


def test_a_weight_of_two_gives_the_sets_of_two_copies(task):
    X, y, Xq, _ = task
    weight = np.where(np.arange(25) % 3 == 0, 2.0, 1.0)
    copies = np.repeat(np.arange(25), weight.astype(int))
    weighted = FewShotClassifier().fit(X, y, sample_weight=weight).predict_set(Xq, 0.9)
    np.testing.assert_array_equal(weighted, FewShotClassifier().fit(X[copies], y[copies]).predict_set(Xq, 0.9))


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 90, float("nan"), "0.9", True])
def test_a_coverage_outside_of_zero_and_one_is_refused(model, task, coverage):
    with pytest.raises(InvalidInputError, match="`coverage` to be a number between 0 and 1, but got"):
        model.predict_set(task[2], coverage)


def test_a_coverage_that_the_examples_cannot_give_is_refused(model, task):
    X, y, Xq, _ = task
    with pytest.raises(InvalidInputError, match=r"at least 99 examples .* but got 25.* at most 0.961"):
        model.predict_set(Xq, 0.99)
    with pytest.raises(InvalidInputError, match=r"at least 1 examples .* but got 0"):
        FewShotClassifier().fit(X[::5], y[::5]).predict_set(Xq, 0.5)

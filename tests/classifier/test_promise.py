import itertools

import numpy as np
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.types import InvalidInputError


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

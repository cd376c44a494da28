import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from mirrorshot import FewShotClassifier
from mirrorshot.gp.kernels import RBF
from mirrorshot.types import InvalidInputError


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


def assert_same(edited, X, y, weight, queries):
    fresh = FewShotClassifier(**edited.get_params()).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(edited.classes_, fresh.classes_)
    assert edited.temperature_ == pytest.approx(fresh.temperature_, rel=1e-6)
    assert edited.elbo_ == pytest.approx(fresh.elbo_, abs=1e-6)
    np.testing.assert_allclose(edited.predict_proba(queries), fresh.predict_proba(queries), atol=1e-6)


@settings(max_examples=12)
@given(data=st.data(), seed=st.integers(0, 10_000), n_way=st.integers(2, 6), is_text=st.booleans())
def test_any_sequence_of_edits_ends_where_a_fit_would(digits, data, seed, n_way, is_text):
    X, y = digits
    rng = np.random.default_rng(seed)
    y = NAMES[y] if is_text else y
    some = rng.permutation(len(y))
    first = np.concatenate([some[y[some] == label][:2] for label in np.unique(y)[:n_way]])
    rows, weight = list(first), list(rng.choice([0.5, 1.0, 2.0], size=len(first)))
    model = FewShotClassifier().fit(X[rows], y[rows], sample_weight=weight)
    for _ in range(data.draw(st.integers(1, 4))):
        counts = {label: np.count_nonzero(y[rows] == label) for label in y[rows]}
        spare = [i for i, row in enumerate(rows) if counts[y[row]] > 1]
        if spare and data.draw(st.booleans()):
            i = spare[data.draw(st.integers(0, len(spare) - 1))]
            model.remove(i)
            del rows[i], weight[i]
        else:
            new = list(some[-data.draw(st.integers(1, 3)) :])
            some = some[: -len(new)]
            more = [1.0, *rng.choice([0.0, 1.0, 3.0], size=len(new) - 1)]
            model.add(X[new], y[new], sample_weight=more)
            rows, weight = rows + new, weight + more
    assert_same(model, X[rows], y[rows], weight, X[some[:40]])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "rbf"},
        {"kernel": "linear", "centre": "none"},
        {"outputscale": "loo"},
        {"outputscale": 600.0},
        {"temperature": 0.5},
        {"kernel": RBF(lengthscale=0.5, outputscale=8.0)},
    ],
)
def test_every_kernel_and_option_can_be_edited(digits, options):
    X, y = digits
    model = FewShotClassifier(**options).fit(X[:24], y[:24]).add(X[24:26], y[24:26]).remove([3, 20])
    rows = np.delete(np.arange(26), [3, 20])
    assert_same(model, X[rows], y[rows], None, X[50:90])


def test_an_example_of_a_new_class_may_come_at_any_time(digits):
    X, y = digits
    model = FewShotClassifier().fit(X[:2], NAMES[y[:2]])
    for i in range(2, 12):
        model.add(X[i], NAMES[y[i]])
    assert list(model.classes_) == sorted(NAMES)
    assert_same(model, X[:12], NAMES[y[:12]], None, X[50:90])


def test_one_example_more_takes_fewer_steps_than_a_fit(digits):
    X, y = digits
    model = FewShotClassifier().fit(X[:99], y[:99])
    assert model.add(X[99], y[99]).n_iter_ < FewShotClassifier().fit(X[:100], y[:100]).n_iter_


def test_frames_are_added_to_frames(digits):
    X, y = digits
    frame = pd.DataFrame(X[:30], columns=[f"pixel{i}" for i in range(64)])
    model = FewShotClassifier().fit(frame[:20], y[:20]).add(frame[20:], y[20:30])
    assert_same(model, frame, y[:30], None, pd.DataFrame(X[50:60], columns=frame.columns))


def test_a_class_goes_with_its_last_example_only_if_told_so(digits):
    X, y = digits
    model = FewShotClassifier().fit(X[:21], y[:21])  # the only class with a third example is 0
    with pytest.raises(InvalidInputError, match=r"keep an example, but .*7.* would lose its last one.*drop_class=True"):
        model.remove([7, 17])
    model.remove([7, 17], drop_class=True)
    assert 7 not in model.classes_
    rows = np.delete(np.arange(21), [7, 17])
    assert_same(model, X[rows], y[rows], None, X[50:90])


def test_parts_add_up_to_the_whole(digits):
    X, y = digits
    model = FewShotClassifier().partial_fit(X[:5], y[:5], classes=np.arange(10))
    prob = model.predict_proba(X[50:60])
    assert prob.shape == (10, 10)
    np.testing.assert_allclose(prob.sum(1), 1.0)
    np.testing.assert_allclose(prob[:, 5:], prob[:, 5:6].repeat(5, 1), atol=1e-7)  # the unseen classes are alike
    model.partial_fit(X[5:30], y[5:30], sample_weight=np.full(25, 2.0))
    assert_same(model, X[:30], y[:30], np.r_[np.ones(5), np.full(25, 2.0)], X[50:90])


def test_a_first_part_may_hold_one_class_only(digits):
    X, y = digits
    model = FewShotClassifier().partial_fit(X[y == 3][:2], y[y == 3][:2], classes=[3, 4])
    assert model.predict_proba(X[y == 3][2:3])[0, 0] > 0.5
    model.partial_fit(X[y == 4][:2], y[y == 4][:2])
    assert (model.predict(X[(y == 3) | (y == 4)][10:30]) == y[(y == 3) | (y == 4)][10:30]).mean() > 0.8


EDITS = {
    "too few features": (lambda m, X, y: m.add(X[:2, :9], y[:2]), "X has 9 features, but .* expecting 64"),
    "NaN": (lambda m, X, y: m.add(X[:2] * np.nan, y[:2]), "NaN at row 0, column 0"),
    "labels of another length": (lambda m, X, y: m.add(X[:2], y[:3]), "inconsistent numbers of samples"),
    "labels that do not sort": (lambda m, X, y: m.add(X[:1], ["text"]), "labels that sort with .* but got .*text"),
    "no place": (lambda m, X, y: m.remove(30), "`index` to be integers from 0 to 29, but got 30"),
    "a negative place": (lambda m, X, y: m.remove([0, -1]), "`index` to be integers from 0 to 29"),
    "nothing": (lambda m, X, y: m.remove([]), "`index` to be integers"),
    "a mask": (lambda m, X, y: m.remove(np.ones(30, dtype=bool)), "`index` to be integers"),
    "one twice": (lambda m, X, y: m.remove([4, 4]), "each example once"),
    "a last example": (lambda m, X, y: m.remove([1, 11, 21]), "would lose its last one"),
    "all but one class": (
        lambda m, X, y: m.remove(np.flatnonzero(y[:30] != 1), drop_class=True),
        "at least two classes with positive weight, but got one class",
    ),
    "a label that was not declared": (lambda m, X, y: m.partial_fit(X[:1], [77]), "among the classes .* but got .*77"),
    "other classes": (lambda m, X, y: m.partial_fit(X[:1], y[:1], classes=[0, 1]), "those of the first call"),
    "a kernel that does not exist": (lambda m, X, y: m.set_params(kernel="x").add(X[0], y[0]), "one of auto, cosine"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_bad_edit_is_refused_and_changes_nothing(digits, name):
    X, y = digits
    edit, message = EDITS[name]
    model = FewShotClassifier().fit(X[:30], y[:30])
    before = pickle.dumps({key: value for key, value in vars(model).items() if key != "kernel"})
    with pytest.raises(ValueError, match=message):
        edit(model, X, y)
    assert pickle.dumps({key: value for key, value in vars(model).items() if key != "kernel"}) == before


def test_editing_needs_a_fit(digits):
    X, y = digits
    with pytest.raises(NotFittedError, match=r"no examples yet\. Call `fit`, or `partial_fit` with all classes, first"):
        FewShotClassifier().add(X[:2], y[:2])
    with pytest.raises(NotFittedError, match="no examples yet"):
        FewShotClassifier().remove(0)
    with pytest.raises(InvalidInputError, match="`classes` in the first call of partial_fit, but got None"):
        FewShotClassifier().partial_fit(X[:2], y[:2])
    with pytest.raises(InvalidInputError, match="at least two `classes`, but got one class"):
        FewShotClassifier().partial_fit(X[:1], y[:1], classes=[0])


def test_one_label_is_that_of_all_new_examples(digits):
    X, y = digits
    few = FewShotClassifier().fit(X[:20], y[:20])
    assert few.add(X[20:23], 11).fitted_.examples.targets[-3:].tolist() == [11, 11, 11]
    assert few.add(X[23], [12]).classes_[-1] == 12


def test_messages_name_labels_and_places_as_users_write_them(digits):
    X, y = digits
    few = FewShotClassifier().fit(X[:20], y[:20])
    with pytest.raises(InvalidInputError, match="such as 0, but got 'a'"):
        few.add(X[20], "a")
    with pytest.raises(InvalidInputError, match="but 0 would lose its last one"):
        few.remove(np.flatnonzero(y[:20] == 0))
    with pytest.raises(InvalidInputError, match=r"got a mask; use np\.flatnonzero"):
        few.remove(y[:20] == 0)

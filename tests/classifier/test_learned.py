import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

import mirrorshot.classifier
from mirrorshot import FewShotClassifier
from mirrorshot.classifier import Learned
from mirrorshot.classifier.predict import proba
from mirrorshot.types import InvalidInputError

X, y = load_digits(return_X_y=True)
QUERY = X[60:70]


def assert_same(learned, few):
    assert np.array_equal(proba(*learned.queries(QUERY)), few.predict_proba(QUERY))
    assert learned.fitted.elbo == few.elbo_
    assert learned.fitted.classes.tolist() == few.classes_.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("kernel", ["auto", "matern"])
def test_it_is_the_estimator_to_the_last_bit(kernel, dtype):
    few, learned = (
        FewShotClassifier(kernel).fit(X[:40], y[:40]),
        Learned.fit(X[:40].astype(dtype), y[:40], kernel=kernel),
    )
    assert_same(learned, few)
    added = learned.add(X[40:42].astype(dtype), y[40:42])
    assert_same(added, few.add(X[40:42], y[40:42]))
    assert_same(added.remove([3, 7]), few.remove([3, 7]))
    assert len(learned.fitted.used) == 40


def test_an_estimator_is_made_of_it_and_gives_it_back():
    learned = Learned.fit(X[:40], y[:40])
    few = FewShotClassifier.from_learned(learned)
    assert_same(learned, few)
    few.add(X[40], y[40])
    assert len(learned.fitted.used) == 40
    assert few.n_features_in_ == 64


@pytest.mark.parametrize(
    ("rows", "labels"),
    [(X[0], y[:1]), (X[:3], y[:2]), (X[:0], y[:0]), (X[:2], y[:2, None]), (X[:2, :0], y[:2])],
    ids=["one row", "a label too few", "nothing", "columns of labels", "no features"],
)
def test_examples_that_do_not_fit_together_are_refused(rows, labels):
    with pytest.raises(InvalidInputError, match="n labels, but got shapes"):
        Learned.fit(rows, labels)


@pytest.mark.parametrize(("bad", "message"), [(np.nan, "contains NaN at row 1"), (1e200, "at most 1e+100")])
def test_numbers_that_cannot_be_are_refused(bad, message):
    wrong = X[:4].copy()
    wrong[1, 2] = bad
    with pytest.raises(InvalidInputError, match=message.replace("+", "[+]")):
        Learned.fit(wrong, y[:4])
    with pytest.raises(InvalidInputError, match=message.replace("+", "[+]")):
        Learned.fit(X[:4], y[:4]).queries(wrong)


def test_no_queries_are_refused():
    with pytest.raises(InvalidInputError, match="at least one query"):
        Learned.fit(X[:4], y[:4]).queries(X[:0])


def test_queries_need_the_prior_scores_that_the_examples_have():
    few = FewShotClassifier().fit(X[:10], y[:10], prior_scores=np.zeros((10, 10)))
    learned = Learned(few.fitted_, few._settings())
    with pytest.raises(InvalidInputError, match="had them, but got none"):
        learned.queries(QUERY)


def test_it_needs_no_scikit_learn():
    code = (
        "import sys, numpy as np\n"
        "from mirrorshot.classifier import Learned, decide, explain, predict, promise\n"
        "learned = Learned.fit(np.eye(4), np.array(list('abab'))).add(np.ones((1, 4)), np.array(['c'])).remove([4])\n"
        "assert predict.proba(*learned.queries(np.eye(4))).shape == (4, 2)\n"
        "sys.exit('sklearn' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_name_of_the_package_is_found_and_listed():
    for name in mirrorshot.classifier.__all__:
        assert getattr(mirrorshot.classifier, name) is not None
        assert name in dir(mirrorshot.classifier)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mirrorshot.classifier.nothing

"""Digits, a task of five of them, and a classifier that has learned it."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from mirrorshot import FewShotClassifier


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

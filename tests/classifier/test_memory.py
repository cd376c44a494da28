import re

import numpy as np
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.memory import bytes_needed, check_memory, memory_limit
from mirrorshot.types import InvalidInputError


@pytest.mark.filterwarnings("ignore:The number of unique classes:UserWarning")
def test_too_large_a_task_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr("mirrorshot.classifier.memory._physical_memory", lambda: 2.0**29)
    monkeypatch.setattr("mirrorshot.gp.kernels.Cosine.covariance", lambda *args, **kwargs: pytest.fail("it started"))
    with pytest.raises(
        InvalidInputError,
        match=r"fits into 0.5 GiB of memory, but 2000 examples of 2000 classes need about [\d.]+ GiB\. What fits: \d+ "
        r"examples of 2000 classes, or 2000 examples of \d+ classes\. .*MIRRORSHOT_MAX_MEMORY_GIB",
    ):
        FewShotClassifier().fit(np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000))
    with pytest.raises(InvalidInputError, match="4000 examples of 5 classes need about"):
        FewShotClassifier("rbf").fit(np.random.default_rng(0).normal(size=(4000, 2)), np.arange(4000) % 5)


def test_the_sizes_that_fit_are_those_that_are_accepted(monkeypatch):
    monkeypatch.setenv("MIRRORSHOT_MAX_MEMORY_GIB", "2")
    assert memory_limit() == 2**31
    with pytest.raises(InvalidInputError) as error:
        check_memory(3000, 50, 3000, 3)
    found = re.search(r"What fits: (\d+) examples of 50 classes, or 3000 examples of (\d+) classes", str(error.value))
    most, classes = map(int, found.groups())
    for n, n_way in ((most, 50), (3000, classes)):
        check_memory(n, n_way, 3000, 3)
    assert bytes_needed(most + 1, 50, 3000, 3) > 2**31
    assert bytes_needed(3000, classes + 1, 3000, 3) > 2**31
    monkeypatch.setenv("MIRRORSHOT_MAX_MEMORY_GIB", "plenty")
    with pytest.raises(InvalidInputError, match="positive number of GiB, but got 'plenty'"):
        memory_limit()


def test_too_large_a_pool_is_refused_with_the_size_that_fits(monkeypatch):
    monkeypatch.setenv("MIRRORSHOT_MAX_MEMORY_GIB", "0.001")
    X = np.random.default_rng(0).normal(size=(400, 3))
    few = FewShotClassifier().fit(X[:4], [0, 1, 0, 1])
    with pytest.raises(InvalidInputError, match=r"400 items need about .* GiB\. Draw at most 163 of them"):
        few.suggest(X, k=2)
    assert len(few.suggest(X[:163], k=2)) == 2

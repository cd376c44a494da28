import re

import numpy as np
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.memory import bytes_needed, check_memory, memory_limit
from mirrorshot.types import InvalidInputError


@pytest.mark.filterwarnings("ignore:The number of unique classes:UserWarning")
def test_too_large_a_task_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr("mirrorshot.classifier.memory._physical_memory", lambda: 16 * 2.0**30)
    monkeypatch.setattr("mirrorshot.gp.kernels.Cosine.covariance", lambda *args, **kwargs: pytest.fail("it started"))
    with pytest.raises(
        InvalidInputError,
        match=r"fits into 16 GiB of memory, but 2000 examples of 2000 classes need about \d+ GiB\. What fits: \d+ "
        r"examples of 2000 classes, or 2000 examples of \d+ classes\. .*MIRRORSHOT_MAX_MEMORY_GIB",
    ):
        FewShotClassifier().fit(np.random.default_rng(0).normal(size=(2000, 2)), np.arange(2000))
    with pytest.raises(InvalidInputError, match="3000 examples of 50 classes need about"):
        FewShotClassifier().fit(np.random.default_rng(0).normal(size=(3000, 2)), np.arange(3000) % 50)


def test_the_sizes_that_fit_are_those_that_are_accepted(monkeypatch):
    monkeypatch.setenv("MIRRORSHOT_MAX_MEMORY_GIB", "2")
    assert memory_limit() == 2**31
    with pytest.raises(InvalidInputError) as error:
        check_memory(3000, 50, 3)
    found = re.search(r"What fits: (\d+) examples of 50 classes, or 3000 examples of (\d+) classes", str(error.value))
    most, classes = map(int, found.groups())
    for n, n_way in ((most, 50), (3000, classes)):
        check_memory(n, n_way, 3)
    assert bytes_needed(most + 1, 50, 3) > 2**31
    assert bytes_needed(3000, classes + 1, 3) > 2**31
    monkeypatch.setenv("MIRRORSHOT_MAX_MEMORY_GIB", "plenty")
    with pytest.raises(InvalidInputError, match="positive number of GiB, but got 'plenty'"):
        memory_limit()

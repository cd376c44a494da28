import numpy as np
import pytest

from mirrorshot import FewShotClassifier
from mirrorshot.types import InvalidInputError


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
    X, Xq = (model.fitted_.map(part) - model.fitted_.centre[0] for part in (X, Xq))
    again = FewShotClassifier(**options).fit(X, y)
    for i in (0, 7, 12):
        rest = np.arange(25) != i
        without = FewShotClassifier(**options).fit(X[rest], y[rest]).predict_proba(Xq)
        exact = again.predict_proba(Xq) - without
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

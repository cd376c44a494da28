import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, log_loss

from mirrorshot import FewShotClassifier
from mirrorshot.demo import (
    N_QUERY,
    N_WAY,
    REGULARISATIONS,
    DemoRow,
    as_records,
    best_regularisation,
    contenders,
    logistic_name,
    run_demo,
    sample_episode,
)
from mirrorshot.types import InvalidInputError


@pytest.fixture(scope="module")
def rows():
    return run_demo(n_episodes=2, n_shots=[1, 5], seed=3)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    return [X[y == c] for c in range(10)]


def test_every_method_has_a_row_at_every_number_of_examples(rows):
    names = [method.name for method in contenders()]
    assert [(row.n_shot, row.method) for row in rows] == [(n, name) for n in (1, 5) for name in names]


def test_a_method_that_cannot_run_says_why(rows):
    idle = [row for row in rows if row.scores is None]
    assert [(row.n_shot, row.method.split("(")[0]) for row in idle] == [(1, "CalibratedClassifierCV")]
    assert idle[0].note == "needs 5 examples per class"
    assert idle[0].n_episodes == 0


def test_scores_agree_with_scikit_learn_on_the_same_episodes(rows, digits):
    rng = np.random.default_rng([3, 5])
    episodes = [sample_episode(digits, 5, rng) for _ in range(2)]
    prob = np.concatenate(
        [FewShotClassifier().fit(e.support_x, e.support_y).predict_proba(e.query_x) for e in episodes]
    )
    y = np.concatenate([e.query_y for e in episodes])
    scores = next(row.scores for row in rows if row.method == "mirrorshot" and row.n_shot == 5)
    assert scores.accuracy == pytest.approx(accuracy_score(y, prob.argmax(1)))
    assert scores.nll == pytest.approx(log_loss(y, prob))


def test_scores_are_sensible(rows):
    for row in rows:
        if row.scores is not None:
            assert 0.2 < row.scores.accuracy <= 1
            assert 0 <= row.scores.ece < 1
            assert row.scores.milliseconds > 0
            assert row.n_episodes == 2
            assert float(row.scores.bins.counts.sum()) == 2 * N_WAY * N_QUERY


def test_episodes_do_not_share_pictures_between_support_and_query(digits):
    episode = sample_episode(digits, 3, np.random.default_rng(0))
    assert episode.support_x.shape == (N_WAY * 3, 64)
    assert episode.query_x.shape == (N_WAY * N_QUERY, 64)
    assert np.bincount(episode.support_y).tolist() == [3] * N_WAY
    assert np.bincount(episode.query_y).tolist() == [N_QUERY] * N_WAY
    drawn = np.concatenate([episode.support_x, episode.query_x])
    assert len(np.unique(drawn, axis=0)) == len(drawn)


def test_seed_decides_the_episodes_and_other_shots_do_not(rows):
    alone = run_demo(n_episodes=2, n_shots=[5], seed=3)
    for one, other in zip(alone, rows[len(alone) :], strict=True):
        assert (one.method, one.scores.accuracy, one.scores.nll) == (
            other.method,
            other.scores.accuracy,
            other.scores.nll,
        )
    assert run_demo(n_episodes=2, n_shots=[5], seed=4)[0].scores.nll != alone[0].scores.nll


def test_progress_counts_every_fit():
    calls = []
    run_demo(n_episodes=1, n_shots=[1], progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == list(range(7))
    assert {total for _, total, _ in calls} == {6}
    assert calls[0][2] == "1 per class, mirrorshot"
    assert calls[-1][2] == "done"


def test_best_regularisation_has_the_lowest_nll(rows):
    nll = {row.method: row.scores.nll for row in rows if row.n_shot == 5}
    best = best_regularisation(rows, 5)
    assert nll[logistic_name(best)] == min(nll[logistic_name(C)] for C in REGULARISATIONS)


def test_records_are_plain_and_finite(rows):
    broken = rows[0].scores._replace(nll=float("inf"))
    records = json.loads(json.dumps(as_records([*rows, DemoRow(1, "broken", 1, broken)]), allow_nan=False))
    assert records[0]["method"] == "mirrorshot"
    assert records[0]["accuracy"] == rows[0].scores.accuracy
    torch.testing.assert_close(
        torch.tensor(records[0]["bins"]["counts"], dtype=torch.float64), rows[0].scores.bins.counts
    )
    idle = next(record for record in records if record["note"])
    assert idle["accuracy"] is None
    assert idle["bins"] is None
    assert records[-1]["nll"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_episodes": 0}, "`n_episodes` to be at least 1, but got 0"),
        ({"n_shots": []}, r"`n_shots` to be numbers from 1 to 159 .* but got \[\]"),
        ({"n_shots": [1, 0]}, r"but got \[1, 0\]"),
        ({"n_shots": [160]}, r"a digit has 174 pictures, 15 are queries\), but got \[160\]"),
    ],
)
def test_impossible_sizes_are_explained(options, message):
    with pytest.raises(InvalidInputError, match=message):
        run_demo(**options)

"""The demo: few-shot classification of handwritten digits, against what scikit-learn offers.

The digits come with scikit-learn, so nothing is downloaded; a picture is its 64 pixels, scaled to unit norm.
Every method sees the same episodes: five random digits, a few examples of each to learn from, 15 more of each
to classify.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression

from mirrorshot.estimator import FewShotClassifier
from mirrorshot.metrics import CalibrationBins, accuracy, calibration_bins, expected_calibration_error, nll
from mirrorshot.types import InvalidInputError

N_WAY, N_QUERY = 5, 15
REGULARISATIONS = (1, 10, 100, 1000)  # C of LogisticRegression

Progress = Callable[[int, int, str], None]
"""Called with the number of fits done, the number of all fits, and what comes next."""


class Contender(NamedTuple):
    """A classifier that takes part.

    Attributes:
        name: its name in the table.
        make: makes a fresh one.
        min_shot: examples per class it cannot do without.
    """

    name: str
    make: Callable[[], Any]
    min_shot: int = 1


class Episode(NamedTuple):
    """One task.

    Attributes:
        support_x: examples to learn from, (N, D).
        support_y: their labels 0 .. N_WAY - 1, (N,).
        query_x: examples to classify, (M, D).
        query_y: their labels, (M,).
    """

    support_x: NDArray[np.float64]
    support_y: NDArray[np.int64]
    query_x: NDArray[np.float64]
    query_y: NDArray[np.int64]


class Scores(NamedTuple):
    """What a method reached on the episodes.

    Attributes:
        accuracy: share of right predictions.
        nll: negative log-likelihood of the right class, nats per query.
        ece: expected calibration error, 15 bins over the queries of all episodes.
        milliseconds: to fit and predict one episode, the median.
        bins: the confidence bins, for a reliability diagram.
    """

    accuracy: float
    nll: float
    ece: float
    milliseconds: float
    bins: CalibrationBins


class DemoRow(NamedTuple):
    """One method at one number of examples per class.

    Attributes:
        n_shot: examples per class.
        method: name of the method.
        n_episodes: episodes it has seen.
        scores: what it reached; None if it could not run.
        note: why it could not run, or nothing.
    """

    n_shot: int
    method: str
    n_episodes: int
    scores: Scores | None
    note: str = ""


def contenders() -> list[Contender]:
    """All methods of the demo, mirrorshot first."""
    scaling = "temperature" if _sklearn_has_temperature() else "sigmoid"
    return [
        Contender("mirrorshot", FewShotClassifier),
        *(Contender(logistic_name(C), partial(_logistic, C)) for C in REGULARISATIONS),
        Contender(
            f"CalibratedClassifierCV({scaling})",
            partial(CalibratedClassifierCV, _logistic(100), method=scaling, cv=5),
            min_shot=5,
        ),
        Contender("GaussianProcessClassifier(RBF)", partial(GaussianProcessClassifier, 1.0 * RBF(1.0))),
    ]


def logistic_name(C: float) -> str:
    """Name of logistic regression in the table."""
    return f"LogisticRegression(C={C:g})"


def run_demo(
    *,
    n_episodes: int = 40,
    n_shots: Sequence[int] = (1, 5),
    seed: int = 0,
    progress: Progress | None = None,
) -> list[DemoRow]:
    """Run all methods on the same episodes.

    Args:
        n_episodes: episodes for each number of examples.
        n_shots: numbers of examples per class.
        seed: of the episodes. Those of one number of examples do not depend on the other numbers asked for.
        progress: told before each fit how far it has come.

    Returns:
        The rows of the table, in the order of `n_shots` and of `contenders()`.

    Example:
        >>> rows = run_demo(n_episodes=1, n_shots=[1])
        >>> rows[0].method, rows[0].n_shot, rows[5].note
        ('mirrorshot', 1, 'needs 5 examples per class')
    """
    digits = _digits_by_class()
    _check_sizes(n_episodes, n_shots, min(len(x) for x in digits))
    methods = contenders()
    report = _Counter(progress, n_episodes * sum(n >= m.min_shot for n in n_shots for m in methods))
    rows = []
    for n_shot in n_shots:
        rng = np.random.default_rng([seed, n_shot])
        episodes = [sample_episode(digits, n_shot, rng) for _ in range(n_episodes)]
        rows += _compete(methods, n_shot, episodes, report)
    report("done")
    return rows


def sample_episode(digits: Sequence[NDArray[np.float64]], n_shot: int, rng: np.random.Generator) -> Episode:
    """Draw one task: `N_WAY` classes, `n_shot` examples and `N_QUERY` queries of each.

    Args:
        digits: the pictures of each class, (n, D).
        n_shot: examples per class.
        rng: where the draws come from.
    """
    classes = rng.choice(len(digits), N_WAY, replace=False)
    drawn = [rng.permutation(digits[c])[: n_shot + N_QUERY] for c in classes]
    labels = np.arange(N_WAY)
    return Episode(
        np.concatenate([x[:n_shot] for x in drawn]),
        labels.repeat(n_shot),
        np.concatenate([x[n_shot:] for x in drawn]),
        labels.repeat(N_QUERY),
    )


def best_regularisation(rows: Sequence[DemoRow], n_shot: int) -> int:
    """C of the logistic regression with the lowest NLL, which nobody knows without the labels of the queries."""
    scores = {row.method: row.scores for row in rows if row.n_shot == n_shot and row.scores is not None}
    return min(REGULARISATIONS, key=lambda C: scores[logistic_name(C)].nll)


def as_records(rows: Sequence[DemoRow]) -> list[dict[str, Any]]:
    """The rows as plain dictionaries and lists, for JSON; a number that is missing or not finite is None."""
    return [_record(row) for row in rows]


def _record(row: DemoRow) -> dict[str, Any]:
    scores = dict.fromkeys(Scores._fields) if row.scores is None else row.scores._asdict()
    bins = scores.pop("bins")
    numbers = {k: v if v is not None and math.isfinite(v) else None for k, v in scores.items()}
    sums = None if bins is None else {k: v.tolist() for k, v in bins._asdict().items()}
    return {
        "n_shot": row.n_shot,
        "method": row.method,
        "n_episodes": row.n_episodes,
        **numbers,
        "note": row.note,
        "bins": sums,
    }


def _compete(
    methods: Sequence[Contender], n_shot: int, episodes: Sequence[Episode], report: "_Counter"
) -> list[DemoRow]:
    """Run the methods in turn on each episode: a busy moment of the machine slows all of them alike."""
    runs: dict[str, list[tuple[NDArray[np.float64], float]]] = {method.name: [] for method in methods}
    for episode in episodes:
        for method in methods:
            if n_shot >= method.min_shot:
                report(f"{n_shot} per class, {method.name}")
                runs[method.name].append(_classify(method, episode))
    labels = np.stack([episode.query_y for episode in episodes])
    return [_row(method, n_shot, runs[method.name], labels) for method in methods]


def _row(
    method: Contender,
    n_shot: int,
    runs: Sequence[tuple[NDArray[np.float64], float]],
    labels: NDArray[np.int64],
) -> DemoRow:
    if not runs:
        return DemoRow(n_shot, method.name, 0, None, f"needs {method.min_shot} examples per class")
    probs, seconds = zip(*runs, strict=True)
    return DemoRow(n_shot, method.name, len(runs), _score(np.stack(probs), labels, seconds))


def _classify(method: Contender, episode: Episode) -> tuple[NDArray[np.float64], float]:
    """Probabilities of the queries, (M, C), and the seconds it took."""
    with warnings.catch_warnings():
        # GaussianProcessClassifier says each time that its length scale has reached a bound
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        model = method.make().fit(episode.support_x, episode.support_y)
        prob = model.predict_proba(episode.query_x)
        return prob, time.perf_counter() - start


def _score(probs: NDArray[np.float64], labels: NDArray[np.int64], seconds: Sequence[float]) -> Scores:
    """Scores from probabilities (T, M, C) and labels (T, M)."""
    prob, y = torch.tensor(probs), torch.tensor(labels)
    bins = calibration_bins(prob, y)
    return Scores(
        float(accuracy(prob, y).mean()),
        float(nll(prob, y).mean()),
        float(expected_calibration_error(bins)),
        1000 * float(np.median(seconds)),
        bins,
    )


class _Counter:
    """Counts the fits for a `Progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, label: str) -> None:
        if self.progress is not None:
            self.progress(self.done, self.total, label)
        self.done += 1


def _digits_by_class() -> list[NDArray[np.float64]]:
    """Pictures of each digit as unit vectors, (n, 64)."""
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    return [X[y == c] for c in range(10)]


def _logistic(C: float) -> Any:
    return LogisticRegression(C=C, max_iter=1000)


def _sklearn_has_temperature() -> bool:
    return tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)


def _check_sizes(n_episodes: int, n_shots: Sequence[int], n_pictures: int) -> None:
    if n_episodes < 1:
        raise InvalidInputError(f"Expected `n_episodes` to be at least 1, but got {n_episodes}.")
    most = n_pictures - N_QUERY
    if not n_shots or not all(1 <= n_shot <= most for n_shot in n_shots):
        raise InvalidInputError(
            f"Expected `n_shots` to be numbers from 1 to {most} (a digit has {n_pictures} pictures, "
            f"{N_QUERY} are queries), but got {list(n_shots)}."
        )

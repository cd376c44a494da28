"""Empirical Bayes over tasks of background classes: learns the prior of an encoder.

Half of the background classes give mean and within-class covariance of the features. Tasks of the others select
shrinkage and centre (lowest NLL at the best temperature), and their temperatures are regressed on shots and classes.
The final map uses all classes. Every domain (the background, and degraded copies that `mirrorshot prior` makes) has its
own tasks, so the spread of the best temperatures shows how far to trust them on an unseen domain.

Rejected: the covariance without shrinkage. On other domains it costs 1 to 4 points of accuracy; shrunk by half or more
towards a multiple of the identity it gains up to 1.5.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mirrorshot.classifier.link import moderated, moderation_of
from mirrorshot.classifier.prior import BROAD_TEMPERATURE, FeatureMap, Prior, TemperaturePrior, unit_length
from mirrorshot.classifier.selection import log_spread
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.kernels import Cosine
from mirrorshot.gp.mirror import mirror_descent
from mirrorshot.softmax.arrays import NDArray, log_softmax
from mirrorshot.types import InvalidInputError

RANK = 64
SHRINKAGES = (1.0, 0.85, 0.7, 0.5)
CENTRES = (0.5, 1.0)
OUTPUTSCALE = 30.0
_SHOTS, _WAYS, _QUERIES, _TASKS = (1, 5), (5, 15), 5, 24
_TEMPERATURES = np.geomspace(0.03, 20.0, 80)
_MIN_CLASSES, _MIN_EXAMPLES = 10, 10
_MIN_STD = 0.2  # of a log temperature; unseen domains differ by more than the known ones

Features = Float[NDArray[np.float64], "n D"]
Labels = Int[NDArray[np.int64], " n"]


class Statistics(NamedTuple):
    """Mean and within-class covariance of features, with the means of the eigenvalues not stored and of all."""

    mean: Float[NDArray[np.float64], " D"]
    directions: Float[NDArray[np.float64], "R D"]
    eigenvalues: Float[NDArray[np.float64], " R"]
    remaining: float
    average: float

    def map(self, shrinkage: float, *, root: bool) -> FeatureMap:
        """Return the whitening by the covariance, shrunk towards a multiple of the identity."""
        kept, flat = (
            (1 - shrinkage) * value + shrinkage * self.average for value in (self.eigenvalues, self.remaining)
        )
        mean, directions, gain = (
            array.astype(np.float32).astype(np.float64)  # the precision of a file
            for array in (self.mean, self.directions, np.sqrt(flat / kept) - 1.0)
        )
        return FeatureMap(root, True, mean, directions, gain)


def learn_prior(
    domains: Sequence[tuple[NDArray[np.floating], NDArray[np.int64]]],
    *,
    encoder: str = "",
    learned_on: str = "",
    seed: int = 0,
) -> Prior:
    """Learn a prior from embeddings (n, D) and labels (n,) of many background classes, for each domain.

    `encoder` and `learned_on` describe it; `seed` determines the tasks.

    Raises:
        InvalidInputError: too few classes or examples.
    """
    checked = [_check_domain(np.asarray(X, dtype=np.float64), np.asarray(y)) for X, y in domains]
    root = all(bool((X >= 0).all()) for X, _ in checked)
    parts = [(FeatureMap(root, unit=True)(X), np.unique(y, return_inverse=True)[1]) for X, y in checked]
    statistics = measure([(X[y % 2 == 0], y[y % 2 == 0]) for X, y in parts])
    held_out = [(X[y % 2 == 1], y[y % 2 == 1]) for X, y in parts]
    found = {}
    for shrinkage, centre in itertools.product(SHRINKAGES, CENTRES):
        after = statistics.map(shrinkage, root=False)
        found[shrinkage, centre] = [row for X, y in held_out for row in rows_of(after(X), y, centre, seed)]
    best = min(found, key=lambda key: float(np.mean([row.nll for row in found[key]])))
    temperature = regress(found[best])
    whole = measure(parts).map(best[0], root=root)
    return Prior(whole, OUTPUTSCALE, best[1], temperature, encoder, learned_on)


def measure(parts: Sequence[tuple[Features, Labels]]) -> Statistics:
    """Return the mean of the class means and the pooled within-class covariance; all domains have equal weight."""
    D = parts[0][0].shape[1]
    means, S = [], np.zeros((D, D))
    for X, y in parts:
        label = np.unique(y, return_inverse=True)[1]
        counts = np.bincount(label)
        sums = np.zeros((len(counts), D))
        np.add.at(sums, label, X)
        class_means = sums / counts[:, None]
        within = X - class_means[label]
        means.append(class_means.mean(0))
        S = S + within.T @ within / (len(X) * len(parts))
    values, vectors = np.linalg.eigh(S)
    rank = min(RANK, len(values) - 1)
    average = float(values.mean())
    return Statistics(
        np.mean(means, 0), vectors[:, -rank:].T, values[-rank:], float(values[:-rank].mean()), max(average, 1e-12)
    )


class Row(NamedTuple):
    """The best temperature for one kind of task, its NLL, and the mean spread of the tasks (`selection.log_spread`)."""

    n_shot: int
    n_way: int
    temperature: float
    nll: float
    log_spread: float = 0.0


def rows_of(X: Features, y: Labels, centre: float, seed: int) -> list[Row]:
    """Return the best temperature for each kind of task, from features after the map."""
    n_classes, smallest = len(np.unique(y)), int(np.bincount(y)[np.unique(y)].min())
    ways = sorted({min(n_way, n_classes) for n_way in _WAYS})
    kinds = itertools.product(ways, [shot for shot in _SHOTS if shot < smallest])
    rng = np.random.default_rng(seed)
    return [_row(X, y, n_way, n_shot, centre, rng) for n_way, n_shot in kinds]


def _row(X: Features, y: Labels, n_way: int, n_shot: int, centre: float, rng: np.random.Generator) -> Row:
    support, query = _draw(y, n_way, n_shot, rng)
    shown = np.repeat(np.arange(n_way), n_shot)
    shift = centre * X[support].mean(1, keepdims=True)
    x, q = unit_length(X[support] - shift), unit_length(X[query] - shift)
    spread = float(np.mean([log_spread(each @ each.T, shown, np.ones(len(shown))) for each in x]))
    scores = _scores(x, q, shown, n_way)
    label = np.repeat(np.arange(n_way), query.shape[1] // n_way)
    nll = [-log_softmax(scores / t)[:, np.arange(len(label)), label].mean() for t in _TEMPERATURES]
    best = int(np.argmin(nll))
    return Row(n_shot, n_way, float(_TEMPERATURES[best]), float(nll[best]), spread)


def _draw(
    y: Labels, n_way: int, n_shot: int, rng: np.random.Generator
) -> tuple[Int[NDArray[np.int64], "T N"], Int[NDArray[np.int64], "T M"]]:
    rows = [np.flatnonzero(y == label) for label in np.unique(y)]
    n = n_shot + min(_QUERIES, min(map(len, rows)) - n_shot)
    drawn = np.array(
        [[rng.permutation(rows[label])[:n] for label in rng.permutation(len(rows))[:n_way]] for _ in range(_TASKS)]
    )
    return drawn[:, :, :n_shot].reshape(_TASKS, -1), drawn[:, :, n_shot:].reshape(_TASKS, -1)


def _scores(
    x: Float[NDArray[np.float64], "T N D"],
    q: Float[NDArray[np.float64], "T M D"],
    label: Int[NDArray[np.int64], " N"],
    n_way: int,
) -> Float[NDArray[np.float64], "T M C"]:
    K, cross = (OUTPUTSCALE * (x @ other.mT)[:, None] for other in (x, q))
    y = np.tile(label, (len(x), 1))
    posterior, _ = mirror_descent(K, y, n_way=n_way, tol=1e-4, validate=False)
    mean, var = predict_latent(posterior, cross, np.full((len(x), 1, q.shape[1]), OUTPUTSCALE))
    return moderated(mean.mT, var.mT, moderation_of(Cosine(), x.shape[-1]))


def regress(rows: Sequence[Row]) -> TemperaturePrior:
    """Regress the best log temperatures on the logarithms of shots and classes - 1.

    The slope in the spread of the cosines is that of the broad prior, because a few domains do not determine it.

    Example:
        >>> rows = [Row(n, c, 0.1 * n**0.2 * (c - 1) ** 0.25, 0.5) for n in (1, 5) for c in (5, 15)]
        >>> [round(value, 3) for value in regress(rows)[:3]]
        [-2.303, 0.2, 0.25]
    """
    slope = BROAD_TEMPERATURE.spread
    y = np.array([np.log(row.temperature) - slope * row.log_spread for row in rows])
    A = np.array([[1.0, np.log(row.n_shot), np.log(max(row.n_way - 1, 1))] for row in rows])
    found = np.linalg.lstsq(A, y, rcond=None)[0]
    std = float(np.sqrt(np.square(y - A @ found).mean()))
    intercept, shots, ways = map(float, found)
    return TemperaturePrior(intercept, shots, ways, std=max(std, _MIN_STD), spread=slope)


def _check_domain(X: NDArray[np.float64], y: NDArray[np.int64]) -> tuple[Features, Labels]:
    labels, counts = np.unique(y, return_counts=True)
    kept = labels[counts >= _MIN_EXAMPLES]
    if X.ndim != 2 or len(X) != len(y) or len(kept) < _MIN_CLASSES:
        raise InvalidInputError(
            f"Expected at least {_MIN_CLASSES} background classes of at least {_MIN_EXAMPLES} examples, but got "
            f"{len(kept)} of {len(labels)} classes and embeddings of shape {X.shape}. Add classes or examples."
        )
    is_kept = np.isin(y, kept)
    return X[is_kept], y[is_kept]

"""Scores of a model on labelled items, with their uncertainty, and a verdict in words."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.metrics.bins import wilson_interval

FEW = 50
"""Number of labelled items below which scores are called rough."""
TARGET = 0.98
"""Accuracy to reach by sending the least confident predictions to a person."""
N_BINS, N_RESAMPLES, LEVEL = 15, 1000, 0.95
_CHUNK = 2**22  # draws per batch
_SEED = 0
_BAND, _LEAST_IN_BAND = (0.85, 0.95), 10


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class Referral(NamedTuple):
    """Share of items to send to a person; accuracy of the others, its interval, and their smallest confidence."""

    share: float
    accuracy: float
    interval: Interval
    threshold: float


class Band(NamedTuple):
    """Predictions with a confidence of 85 to 95 %: number, mean confidence, accuracy and its interval."""

    n_items: int
    confidence: float
    accuracy: float
    interval: Interval


class Scores(NamedTuple):
    """Scores of a model on labelled items that are not among its examples.

    Attributes:
        n_items: number of items of the model's classes; all scores but `novel_unknown` are over these.
        accuracy: share of right predictions.
        nll: negative log-likelihood, nats per item.
        ece: expected calibration error, 15 bins.
        confidence: mean probability of the predicted class; equal to the accuracy if the model is calibrated.
        intervals: 95 % intervals of these scores: Wilson's for the accuracy, bootstrap over items for the others (for
            the ECE see `ece_interval`).
        ece_if_calibrated: mean and 95 % quantile of the ECE of perfectly calibrated probabilities for as many items. An
            ECE below the quantile is no evidence of bad calibration.
        accuracy_of: accuracy of each class that has items.
        classes, confusion: row c of the matrix counts the predictions for items of class c.
        confusions: the five most frequent mistakes: right class, predicted class, count.
        referral: how to reach an accuracy of 98 %; None if no threshold reaches it.
        band: the predictions with a confidence of 85 to 95 %; None if there are fewer than ten.
        n_unknown: number of items of other classes.
        novel_known: share of the known items that are called "none of these".
        novel_unknown: share of the other items that are; None without such items.
    """

    n_items: int
    accuracy: float
    nll: float
    ece: float
    confidence: float
    intervals: dict[str, Interval]
    ece_if_calibrated: tuple[float, float]
    accuracy_of: dict[str, float]
    classes: list[str]
    confusion: list[list[int]]
    confusions: list[tuple[str, str, int]]
    referral: Referral | None
    band: Band | None
    n_unknown: int
    novel_known: float
    novel_unknown: float | None

    def record(self) -> dict[str, Any]:
        """Return the scores as a dict for JSON."""
        parts = {"referral": self.referral, "band": self.band}
        return self._asdict() | {name: part and part._asdict() for name, part in parts.items()}


def scores_of(
    classes: Sequence[str],
    labels: NDArray[np.str_],
    log_prob: NDArray[np.float64],
    is_novel: NDArray[np.bool_],
) -> Scores:
    """Compare predictions with labels (n,); `log_prob` (m, C) is of the m > 0 items whose labels are in `classes`."""
    known = np.isin(labels, classes)
    y = np.array([classes.index(label) for label in labels[known]])
    best, sure = log_prob.argmax(1), np.exp(log_prob.max(1))
    right, nll = best == y, -log_prob[np.arange(len(y)), y]
    mistakes = Counter((classes[a], classes[b]) for a, b in zip(y, best, strict=True) if a != b)
    gap, bins, if_calibrated = sure - right, bin_of(sure), ece_if_calibrated(sure)
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (y, best), 1)
    return Scores(
        n_items=len(y),
        accuracy=float(right.mean()),
        nll=float(nll.mean()),
        ece=float(ece_of(gap, bins)),
        confidence=float(sure.mean()),
        intervals={
            "accuracy": wilson(int(right.sum()), len(y)),
            "nll": bootstrap(len(y), lambda rows: nll[rows].mean(1)),
            "ece": ece_interval(gap, bins, if_calibrated[1]),
            "confidence": bootstrap(len(y), lambda rows: sure[rows].mean(1)),
        },
        ece_if_calibrated=if_calibrated,
        accuracy_of={classes[c]: float(right[y == c].mean()) for c in np.unique(y)},
        classes=list(classes),
        confusion=confusion.tolist(),
        confusions=[(a, b, n) for (a, b), n in mistakes.most_common(5)],
        referral=referral_of(sure, right),
        band=_band(sure, right),
        n_unknown=int((~known).sum()),
        novel_known=float(is_novel[known].mean()),
        novel_unknown=float(is_novel[~known].mean()) if (~known).any() else None,
    )


def verdict(scores: Scores, items: str = "items") -> str:
    """Describe the scores and their uncertainty in a few sentences."""
    parts = [f"Right in {_share(scores.accuracy, scores.intervals['accuracy'])} of {scores.n_items} {items}."]
    if scores.band is not None:
        n, sure, right, interval = scores.band
        parts.append(f"When it says {_percent(sure)} it is right in {_share(right, interval)} of {n} cases.")
    else:
        parts.append(f"It is {_percent(scores.confidence)} sure on average.")
    if scores.referral is None:
        parts.append(f"No confidence is high enough for {_percent(TARGET)} of the answers above it to be right.")
    elif scores.referral.share > 0:
        sent, right, interval, threshold = scores.referral
        below = math.floor(1e4 * threshold) / 1e4  # not rounded up to 1
        parts.append(
            f"Send {_percent(sent)} to a person (those below {below:.4g}) and {_share(right, interval)} of the other "
            f"{round((1 - sent) * scores.n_items)} are right."
        )
    if scores.n_items < FEW:
        parts.append(f"With fewer than {FEW} labelled {items} all of these numbers are rough; label more to be sure.")
    return " ".join(parts)


def calibration_in_words(scores: Scores) -> str:
    """Say whether the calibration error is larger than chance explains with so few items."""
    mean, most = scores.ece_if_calibrated
    chance = f"perfect calibration would show {mean:.3f}, and up to {most:.3f}, with as few items"
    low, high = scores.intervals["accuracy"]
    if scores.ece <= most and low <= scores.confidence <= high:
        return f"Calibration error {scores.ece:.3f}: {chance}, so it is no sign of wrong probabilities."
    way = "over-confident" if scores.confidence > scores.accuracy else "too modest"
    return (
        f"Calibration error {scores.ece:.3f}; {chance}. On average it is {_percent(scores.confidence)} sure and right "
        f"in {_share(scores.accuracy, Interval(low, high))}: the probabilities are {way}."
    )


def wilson(n_right: int, n: int) -> Interval:
    """Wilson's 95 % interval of a share. Unlike the bootstrap's, it has a width if all are right.

    Example:
        >>> tuple(round(end, 3) for end in wilson(10, 10))
        (0.722, 1.0)
    """
    (low,), (high,) = wilson_interval(np.array([n_right / n]), np.array([float(n)]))
    return Interval(max(0.0, float(low)), min(1.0, float(high)))


def bootstrap(n: int, statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]]) -> Interval:
    """Percentile interval over resamples of `n` items; `statistic` takes indices (resamples, n)."""
    rng, step = np.random.default_rng(_SEED), max(1, _CHUNK // n)
    values = [statistic(rng.integers(n, size=(min(step, N_RESAMPLES - i), n))) for i in range(0, N_RESAMPLES, step)]
    low, high = np.quantile(np.concatenate(values), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def bin_of(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the indices of bins of equal width, closed above."""
    return np.clip(np.ceil(confidence * N_BINS).astype(np.int64) - 1, 0, N_BINS - 1)


def ece_of(gap: NDArray[np.float64], bins: NDArray[np.int64]) -> NDArray[np.float64]:
    """Expected calibration error over the last dimension; `gap` is the confidence minus 1 (right) or 0 (wrong)."""
    sums = sum(np.abs(np.where(bins == b, gap, 0.0).sum(-1)) for b in range(N_BINS))
    return np.asarray(sums / gap.shape[-1])


def ece_interval(gap: NDArray[np.float64], bins: NDArray[np.int64], most_if_calibrated: float) -> Interval:
    """Interval of the ECE: the percentile interval, reflected at the estimate.

    The noise of bins biases the ECE upwards, and that of resamples once more; the reflection removes both. An ECE of at
    most `most_if_calibrated`, which chance explains, has an interval from zero.

    Rejected: the percentile interval. Of calibrated probabilities it does not contain the true ECE, which is zero.
    """
    ece = float(ece_of(gap, bins))
    low, high = bootstrap(len(gap), lambda rows: ece_of(gap[rows], bins[rows]))
    reflected = max(0.0, 2 * ece - high) if ece > most_if_calibrated else 0.0
    return Interval(reflected, max(2 * ece - low, ece))


def ece_if_calibrated(confidence: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and 95 % quantile of the ECE if each prediction is right with the probability `confidence`.

    The quantile is at least the mean, which rare mistakes among few, sure predictions can raise above it.
    """
    rng, n, bins = np.random.default_rng(_SEED), len(confidence), bin_of(confidence)
    step, values = max(1, _CHUNK // n), []
    for i in range(0, N_RESAMPLES, step):
        right = rng.random((min(step, N_RESAMPLES - i), n)) < confidence
        values.append(ece_of(confidence - right, bins))
    found = np.concatenate(values)
    mean = float(found.mean())
    return mean, max(mean, float(np.quantile(found, LEVEL)))


def referral_of(confidence: NDArray[np.float64], right: NDArray[np.bool_], target: float = TARGET) -> Referral | None:
    """Refer the fewest, least confident predictions to a person so that the others reach the target accuracy."""
    order = np.argsort(-confidence, kind="stable")
    sure, good = confidence[order], np.cumsum(right[order])
    n = np.arange(1, len(sure) + 1)
    is_edge = np.append(sure[1:] < sure[:-1], True)  # do not separate equal confidences
    enough = np.flatnonzero((good / n >= target) & is_edge)
    if not len(enough):
        return None
    k = int(enough[-1])
    return Referral(1 - (k + 1) / len(sure), float(good[k] / (k + 1)), wilson(int(good[k]), k + 1), float(sure[k]))


def _band(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Band | None:
    inside = (confidence >= _BAND[0]) & (confidence <= _BAND[1])
    n = int(inside.sum())
    if n < _LEAST_IN_BAND:
        return None
    interval = wilson(int(right[inside].sum()), n)
    return Band(n, float(confidence[inside].mean()), float(right[inside].mean()), interval)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(share: float, interval: Interval) -> str:
    return f"{_percent(share)} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"

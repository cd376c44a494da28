"""Results of a model: predictions, explanations and scores."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.metrics import calibration_bins, expected_calibration_error


class Prediction(NamedTuple):
    """Prediction for one item.

    Attributes:
        name: of the item.
        label: most probable class.
        probability: its probability.
        is_novel: whether the item looks like none of the classes.
        labels: classes that together hold the right one with the wanted coverage; None: too few examples to say.
        novelty: how much it looks like none of the classes, 0 to 1.
        epistemic: uncertainty in nats that more examples can remove.
        aleatoric: uncertainty in nats that they cannot: the classes overlap.
        probabilities: of all classes.
    """

    name: str
    label: str
    probability: float
    is_novel: bool
    labels: tuple[str, ...] | None
    novelty: float
    epistemic: float
    aleatoric: float
    probabilities: dict[str, float]


class Reason(NamedTuple):
    """Contribution of one example to the latent of a class at an item; positive speaks for the class."""

    name: str
    label: str
    added: float


class Word(NamedTuple):
    """Change of the log-odds of a class by one word of a text; positive speaks for the class."""

    word: str
    added: float


class Scores(NamedTuple):
    """Scores of a model on labelled items that it has not learned from.

    Attributes:
        n_items: items whose class the model knows; only these count.
        accuracy: share of them that are classified right.
        nll: negative log-likelihood, nats per item.
        ece: calibration error, 15 bins.
        accuracy_of: accuracy of each class.
        confusions: most frequent mistakes: right class, predicted class, count.
        n_unknown: items of classes that the model does not know.
        novel_known: share of the known items that are called "none of these".
        novel_unknown: share of the unknown items that are; None without such items.
    """

    n_items: int
    accuracy: float
    nll: float
    ece: float
    accuracy_of: dict[str, float]
    confusions: list[tuple[str, str, int]]
    n_unknown: int
    novel_known: float
    novel_unknown: float | None


def scores_of(
    classes: Sequence[str],
    labels: NDArray[np.str_],
    log_prob: NDArray[np.float64],
    is_novel: NDArray[np.bool_],
) -> Scores:
    """Compare predictions with labels, some of which are in `classes`.

    Args:
        classes: the C classes of the model.
        labels: of n items.
        log_prob: log-probabilities (m, C) of the m items whose labels are in `classes`.
        is_novel: whether each of the n items is called "none of these".
    """
    known = np.isin(labels, classes)
    y = np.array([classes.index(label) for label in labels[known]])
    best = log_prob.argmax(1)
    mistakes = Counter((classes[a], classes[b]) for a, b in zip(y, best, strict=True) if a != b)
    bins = calibration_bins(np.exp(log_prob), y)
    return Scores(
        n_items=int(known.sum()),
        accuracy=float((best == y).mean()),
        nll=float(-log_prob[np.arange(len(y)), y].mean()),
        ece=float(expected_calibration_error(bins)),
        accuracy_of={classes[c]: float((best[y == c] == c).mean()) for c in np.unique(y)},
        confusions=[(right, answer, n) for (right, answer), n in mistakes.most_common(5)],
        n_unknown=int((~known).sum()),
        novel_known=float(is_novel[known].mean()),
        novel_unknown=float(is_novel[~known].mean()) if (~known).any() else None,
    )

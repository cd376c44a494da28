"""What a model is worth on labelled items that it has not learned from."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import torch

from mirrorshot.data.source import first
from mirrorshot.metrics import calibration_bins, expected_calibration_error
from mirrorshot.tool.encoding import Encoded
from mirrorshot.tool.model import NOVELTY_RATE, Model
from mirrorshot.types import DataError


class Scores(NamedTuple):
    """Scores of a model.

    Attributes:
        n_items: items whose class the model knows; only these count.
        accuracy: share of them that are classified right.
        nll: negative log-likelihood, nats per item.
        ece: calibration error, 15 bins.
        accuracy_of: accuracy of each class.
        confusions: most frequent mistakes, as (right class, answer, how often).
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


def score(model: Model, found: Encoded) -> Scores:
    """Compare the predictions for labelled items with their labels.

    Args:
        model: the model.
        found: labelled items, from `encode_items` with its encoder.

    Raises:
        DataError: no labels, or none that the model knows.
    """
    classes = model.classes
    labels = np.array(found.items.labels or [], dtype=np.str_)
    names = sorted(set(labels.tolist()))
    known = np.isin(labels, classes)
    if not known.any():
        raise DataError(
            f"Expected items of the classes of the model ({first(classes)}), but got {first(names)}. "
            "Name the folders as the classes."
        )
    X = model.check_embeddings(found.embeddings)
    log_prob = model.head.predict_log_proba(X[known])
    y = np.array([classes.index(label) for label in labels[known]])
    best = log_prob.argmax(1)
    mistakes = Counter((classes[a], classes[b]) for a, b in zip(y, best, strict=True) if a != b)
    is_novel = model.head.novelty(X) > model.head.novelty_threshold(NOVELTY_RATE)
    bins = calibration_bins(torch.tensor(np.exp(log_prob)), torch.tensor(y))
    return Scores(
        int(known.sum()),
        float((best == y).mean()),
        float(-log_prob[np.arange(len(y)), y].mean()),
        float(expected_calibration_error(bins)),
        {classes[c]: float((best[y == c] == c).mean()) for c in np.unique(y)},
        [(right, answer, n) for (right, answer), n in mistakes.most_common(5)],
        int((~known).sum()),
        float(is_novel[known].mean()),
        float(is_novel[~known].mean()) if (~known).any() else None,
    )

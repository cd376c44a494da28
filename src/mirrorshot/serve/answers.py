"""Answers of a fitted model as JSON for the page."""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier import decisions
from mirrorshot.classifier.predict import loo_proba
from mirrorshot.metrics import calibration_bins, expected_calibration_error
from mirrorshot.serve.fitting import Fitted
from mirrorshot.serve.forms import Answer, Answers, Bin, Calibration, Checked, PictureAnswer, Share, Suspect, Verdict
from mirrorshot.serve.records import Rows
from mirrorshot.tool import Encoded, Items, Prediction

N_BINS = 5  # few, because there are few examples
SURE = 0.8  # smallest probability of a sure answer
_SUSPICIOUS = 0.2  # leave-one-out probability of its label below which an example is a suspect


def predict(fitted: Fitted, names: Sequence[str], embeddings: NDArray[Any]) -> list[Prediction]:
    """Return the predictions of the model for embeddings (n, D)."""
    items = Items("embedding", list(names), embeddings, None)
    found = Encoded(items, embeddings, None, {})
    return fitted.model.predict_encoded(found, novelty_threshold=fitted.novelty_threshold)


def verdict(prediction: Prediction) -> Verdict:
    """Return how reliable a prediction is: "sure", "unsure", or "none" of the classes."""
    if prediction.is_novel:
        return "none"
    is_one = prediction.labels is None or len(prediction.labels) == 1
    return "sure" if is_one and prediction.probability >= SURE else "unsure"


def answer(prediction: Prediction) -> Answer:
    """Convert a prediction to JSON; the most probable class comes first."""
    shares = sorted(prediction.probabilities.items(), key=lambda pair: -pair[1])
    own: dict[str, Any] = {
        "verdict": verdict(prediction),
        "probabilities": [Share(label=label, probability=share) for label, share in shares],
    }
    return Answer(**own, **{name: getattr(prediction, name) for name in Answer.model_fields if name not in own})


def all_answers(fitted: Fitted, pool: Rows, decided: Set[int] = frozenset()) -> Answers:
    """Return answers about the unlabelled images, the undecided one to label next, and suspicious labels."""
    told = fitted.told.copy()
    new = pool.take([row for row, number in enumerate(pool.ids) if number not in told])
    if new.ids:
        for number, prediction in zip(new.ids, predict(fitted, new.names, new.embeddings), strict=True):
            told[number] = PictureAnswer(picture_id=number, **answer(prediction).model_dump())
    found = [told[number] for number in pool.ids]
    fitted.told.clear()  # other threads have copies
    fitted.told.update(zip(pool.ids, found, strict=True))
    open_rows = [row for row, number in enumerate(pool.ids) if number not in decided]
    chosen = open_rows[fitted.model.suggest_rows(pool.embeddings[open_rows])[0]] if open_rows else None
    suggestion = None if chosen is None else pool.ids[chosen]
    return Answers(support=fitted.support, answers=found, suggestion=suggestion, suspects=_suspects(fitted))


def _suspects(fitted: Fitted) -> list[Suspect]:
    found, labels = fitted.model.suspects(), fitted.model.labels
    return [
        Suspect(picture_id=fitted.ids[row], label=labels[row], probability=float(share), suggested=str(best))
        for row, share, best in zip(found.row, found.proba, found.label, strict=True)
        if share < _SUSPICIOUS and str(best) != labels[row]
    ]


def calibration(fitted: Fitted) -> Calibration:
    """Return confidence and accuracy of the leave-one-out predictions of the examples."""
    head = fitted.model.learned.fitted
    y, weight = head.support.y, head.support.weight
    kept = decisions.kept_without(y, weight, weight, len(head.classes))
    n = int(kept.sum())
    if n == 0:
        return Calibration(support=fitted.support, n=0, accuracy=None, confidence=None, ece=None, bins=[], examples=[])
    prob = loo_proba(head, np.ones_like(weight))[kept]
    bins = calibration_bins(prob, y[kept], n_bins=N_BINS)
    edges, counts, sure, right = bins
    return Calibration(
        support=fitted.support,
        n=n,
        accuracy=float(right.sum() / n),
        confidence=float(sure.sum() / n),
        ece=float(expected_calibration_error(bins)),
        bins=[
            Bin(
                low=float(edges[i]),
                high=float(edges[i + 1]),
                n=int(counts[i]),
                confidence=float(sure[i] / counts[i]) if counts[i] else None,
                accuracy=float(right[i] / counts[i]) if counts[i] else None,
            )
            for i in range(N_BINS)
        ],
        examples=[
            Checked(picture_id=fitted.ids[row], probability=float(share.max()), is_right=bool(share.argmax() == y[row]))
            for row, share in zip(np.flatnonzero(kept), prob, strict=True)
        ],
    )

"""Sections of the report on a model: scores, mistakes, calibration, and items to label next."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.views.page import Block, Card, Gallery, Image, Section, Table
from mirrorshot.views.reliability import ReliabilityDisplay, reliability_figure
from mirrorshot.views.risk_coverage import RiskCoverageDisplay, risk_coverage_figure
from mirrorshot.views.sections import reliability_section, risk_image_section

_RELIABILITY = (
    "Sort the answers by how sure they claim to be. Those that say 80 % should be right in 80 of 100 cases: bars that "
    "end on the dashed line. Short lines are 95 % intervals; wide ones mean that there are few answers of that kind."
)
_MISTAKES = "The mistakes that the model was surest of come first. Look for wrong labels among them, too."
_MAX_MATRIX, _MAX_NAMES = 30, 60  # classes; letters of all names in the head of a matrix


class ModelResults(NamedTuple):
    """Results of a model on labelled items.

    Attributes:
        scores: rows of name, value and 95 % interval as text.
        notes: paragraphs below the scores.
        protocol: how the numbers were made, name and value.
        classes: names of the C classes.
        confusion: row c counts the answers for items of class c, (C, C).
        prob: probabilities (n, C) of the items whose class is known.
        y: right classes of these items (n,).
        mistakes: wrong answers, the surest first; `n_mistakes` counts all, also those not shown.
        suggestions: items to label next, the most useful first; `about_suggestions` is a paragraph about them.
    """

    scores: Sequence[Sequence[str]]
    notes: Sequence[str]
    protocol: Mapping[str, str]
    classes: Sequence[str]
    confusion: Sequence[Sequence[int]]
    prob: NDArray[Any]
    y: NDArray[np.int64]
    mistakes: Sequence[Card]
    n_mistakes: int
    suggestions: Sequence[Card]
    about_suggestions: str


def model_sections(results: ModelResults) -> list[Section]:
    """Return the sections of the report; those without content are left out."""
    numbers = Table("Scores", ["", "value", "95 % interval"], results.scores, results.protocol)
    sections = [Section("Numbers", [numbers, *results.notes])]
    mistakes: list[Block] = [_confusion(results)]
    if results.mistakes:
        few = len(results.mistakes)
        text = f"{few} of {results.n_mistakes} mistakes. {_MISTAKES}" if few < results.n_mistakes else _MISTAKES
        mistakes += [text, Gallery("Mistakes", results.mistakes)]
    sections.append(Section("Where it is wrong" if results.n_mistakes else "Nothing was wrong", mistakes))
    sections += _figures(results)
    if results.suggestions:
        gallery = Gallery("To label next", results.suggestions)
        sections.append(Section("What to label next", [results.about_suggestions, gallery]))
    return sections


def _figures(results: ModelResults) -> list[Section]:
    reliability = reliability_figure([[ReliabilityDisplay.from_predictions(results.prob, results.y)]])
    risk = risk_coverage_figure([RiskCoverageDisplay.from_predictions(results.prob, results.y)])
    return [
        reliability_section(Image(reliability, "Reliability diagram: accuracy over confidence."), _RELIABILITY),
        risk_image_section(Image(risk, "Error rate of the answers that are kept, over their share.")),
    ]


def _confusion(results: ModelResults) -> Table | str:
    """Return the confusion matrix or, for many classes, the most frequent mistakes."""
    counts = np.array(results.confusion)
    kept = np.flatnonzero(counts.sum(1) > 0).tolist()
    if len(results.classes) > _MAX_MATRIX:
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:20]
        pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape), strict=True) if wrong[i, j]]
        rows = [[results.classes[i], results.classes[j], str(wrong[i, j])] for i, j in pairs]
        return Table("Most frequent mistakes", ["class", "answer", "items"], rows, results.protocol) if rows else ""
    is_short = sum(map(len, results.classes)) <= _MAX_NAMES
    heads = list(results.classes) if is_short else [f"({c + 1})" for c in range(len(counts))]
    caption = f"Confusion matrix: a row for each class, a column for each answer{'' if is_short else ', by number'}"
    rows = [
        [
            results.classes[c] if is_short else f"({c + 1}) {results.classes[c]}",
            *(str(n) if n else "·" for n in counts[c]),
            f"{counts[c, c] / counts[c].sum():.0%}",
        ]
        for c in kept
    ]
    return Table(caption, ["class", *heads, "right"], rows, results.protocol)

"""Parts that reports share: calibration and risk of several methods, how they learned, what they think of a task."""

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorshot.evaluation import Calibration, Evaluation
from mirrorshot.views.episode import EpisodeDisplay
from mirrorshot.views.learning import learning_curve_figure
from mirrorshot.views.page import Picture, Section
from mirrorshot.views.reliability import ReliabilityDisplay, reliability_figure
from mirrorshot.views.risk_coverage import RiskCoverageDisplay, risk_coverage_figure

_PER_ROW = 3


def reliability_of(calibration: Calibration, name: str) -> ReliabilityDisplay:
    """Reliability diagram of an evaluation, with its intervals over tasks."""
    return ReliabilityDisplay(calibration.bins, name=name, intervals=calibration.bin_intervals)


def reliability_section(found: Mapping[str, Evaluation]) -> Section:
    """Reliability diagrams as the predictions are and, where it was fitted, at one temperature."""
    displays = [reliability_of(e.raw, f"{name}\nas it is") for name, e in found.items()]
    fitted = [
        reliability_of(e.calibrated, f"{name}\nat T = {e.temperature:.3g}")
        for name, e in found.items()
        if e.calibrated is not None
    ]
    rows = [part[i : i + _PER_ROW] for part in (displays, fitted) for i in range(0, len(part), _PER_ROW)]
    alt = f"Reliability diagrams of {', '.join(found)}: accuracy over confidence."
    return Section("Do the probabilities mean what they say?", [_RELIABILITY, Picture(reliability_figure(rows), alt)])


def risk_section(found: Mapping[str, Evaluation]) -> Section:
    """Risk-coverage curves of the predictions as they are, on one panel."""
    displays = [
        RiskCoverageDisplay.from_risk(e.raw.risk, e.raw.scores["aurc"], name=name)
        for name, e in found.items()
        if e.raw.risk is not None
    ]
    picture = Picture(risk_coverage_figure(displays), f"Error rate over coverage of {', '.join(found)}.")
    return Section("Is it right when it is sure?", [_RISK, picture])


def learning_section(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Section | None:
    """Learning curves; None if nothing was logged."""
    shown = {name: log for name, log in logs.items() if log}
    if not shown:
        return None
    alt = f"Training bound or loss, validation accuracy and NLL of {', '.join(shown)} over the episodes."
    return Section("How they learned", [Picture(learning_curve_figure(shown), alt, _LEARNING)])


def cards_section(cards: Mapping[str, Sequence[EpisodeDisplay]]) -> Section | None:
    """The first test tasks of each method; None without any."""
    blocks: list[str | Picture] = []
    for name, displays in cards.items():
        for display in displays:
            alt = f"A task of {name}, classes {', '.join(display.class_names)}: examples, queries and probabilities."
            caption = f"{name}: {display.accuracy:.0%} of {len(display.y)} queries are right."
            blocks.append(Picture(display.plot().figure_, alt, caption))
    return Section("Some tasks", [_CARDS, *blocks]) if blocks else None


_RELIABILITY = (
    "Sort the predictions by how sure they claim to be. Those that say 80 % should be right in 80 of 100 cases: bars "
    "that end on the dashed line. The hatched part is what is missing, and ECE is its mean. Intervals are 95 %, by the "
    "bootstrap over tasks."
)
_RISK = (
    "Refuse the least confident predictions and keep the others: the further to the left, the fewer are kept, and the "
    "fewer of these should be wrong. AURC is the area under the curve; less is better."
)
_LEARNING = "Losses of different methods are different quantities; only the validations compare."
_CARDS = (
    "The first tasks of the test, not chosen. Each column is a class with the pictures it was learned from; each row "
    "is a query with the probability of each class, before any temperature of the validation tasks. Where a method has "
    "latents, its uncertainty has two parts: the aleatoric one would stay with more examples, the epistemic one would "
    "go."
)

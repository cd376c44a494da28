"""Shared sections of reports: reliability, risk and coverage, learning curves, some tasks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mirrorshot.views.learning import learning_curve_figure
from mirrorshot.views.page import Image, Section
from mirrorshot.views.reliability import ReliabilityDisplay, reliability_figure
from mirrorshot.views.risk_coverage import RiskCoverageDisplay, risk_coverage_figure

if TYPE_CHECKING:
    from mirrorshot.training.evaluation import Evaluation
    from mirrorshot.views.episode import EpisodeDisplay

_PER_ROW = 3
_RELIABILITY = (
    "Sort the predictions by how sure they claim to be. Those that say 80 % should be right in 80 of 100 cases: bars "
    "that end on the dashed line. The hatched part is what is missing, and ECE is its mean. Intervals are 95 %, by the "
    "bootstrap over tasks."
)
_RISK = (
    "Send the least sure answers to a person and keep the others: the further to the left, the fewer are kept, and the "
    "fewer of these should be wrong. AURC is the area under the curve; less is better."
)
_LEARNING = "Losses of different methods are different quantities; only the validations compare."
_CARDS = (
    "The first tasks of the test, not chosen. Each column is a class with the images it was learned from; each row "
    "is a query with the probability of each class, before any temperature of the validation tasks. Where a method has "
    "latents, its uncertainty has two parts: the aleatoric one would stay with more examples, the epistemic one would "
    "go."
)


def reliability_section(image: Image, text: str = _RELIABILITY) -> Section:
    """Return reliability diagrams with an explanation."""
    return Section("Do the probabilities mean what they say?", [text, image])


def reliability_image(found: Mapping[str, "Evaluation"]) -> Image:
    """Draw reliability diagrams of the raw predictions and, if fitted, of those at one temperature."""
    raw = [ReliabilityDisplay.from_calibration(e.raw, name=f"{name}\nas it is") for name, e in found.items()]
    fitted = [
        ReliabilityDisplay.from_calibration(e.calibrated, name=f"{name}\nat T = {e.temperature:.3g}")
        for name, e in found.items()
        if e.calibrated is not None
    ]
    rows = [part[i : i + _PER_ROW] for part in (raw, fitted) for i in range(0, len(part), _PER_ROW)]
    return Image(reliability_figure(rows), f"Reliability diagrams of {', '.join(found)}: accuracy over confidence.")


def risk_section(found: Mapping[str, "Evaluation"]) -> Section:
    """Return risk-coverage curves of the raw predictions, on one panel."""
    displays = [
        RiskCoverageDisplay.from_calibration(e.raw, name=name) for name, e in found.items() if e.raw.risk is not None
    ]
    return risk_image_section(Image(risk_coverage_figure(displays), f"Error rate over coverage of {', '.join(found)}."))


def risk_image_section(image: Image) -> Section:
    """Return risk-coverage curves with an explanation."""
    return Section("Is it right when it is sure?", [_RISK, image])


def learning_section(logs: Mapping[str, Sequence[Mapping[str, Any]]], *text: str) -> list[Section]:
    """Return learning curves below the text; no section if nothing was logged."""
    shown = {name: log for name, log in logs.items() if log}
    if not shown:
        return []
    alt = f"Training bound or loss, validation accuracy and NLL of {', '.join(shown)} over the episodes."
    return [Section("How they learned", [*text, Image(learning_curve_figure(shown), alt, _LEARNING)])]


def cards_section(cards: Mapping[str, Sequence["EpisodeDisplay"]]) -> list[Section]:
    """Return the cards of each run; no section if there are none."""
    images = [
        Image(
            card.plot().figure_,
            f"A task of {name}, classes {', '.join(card.class_names)}: examples, queries and probabilities.",
            f"{name}: {card.accuracy:.0%} of {len(card.y)} queries are right.",
        )
        for name, displays in cards.items()
        for card in displays
    ]
    return [Section("Some tasks", [_CARDS, *images])] if images else []

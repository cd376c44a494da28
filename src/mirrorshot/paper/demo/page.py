"""Tables, text and report of the demo."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mirrorshot import views
from mirrorshot.files.texts import count
from mirrorshot.files.writing import write_json
from mirrorshot.paper.demo.experiment import METHODS, DemoResult
from mirrorshot.training.evaluation import Calibration, Evaluation, paired_difference
from mirrorshot.views import Image, ReliabilityDisplay, Section, Table

OURS, OTHER = METHODS

_INTRO = (
    "A network has practised on many small puzzles with printed characters from all over the world, but never on a "
    "digit. Now it gets one handwritten example of each of five digits, and has to say of other images which digit "
    "they show and how sure it is.\n\n"
    "Two methods practised with the same network on the same puzzles: mirror_gp, a Gaussian process fitted by mirror "
    "descent, and protonet, a prototypical network, which picks the class whose mean is nearest."
)
_TASKS = (
    "The first three tasks of the test, not chosen. Each column is a class with the one image that mirror_gp learned "
    "it from; each row is an image it has to classify, with the probability that it gives to each class. "
    "On the right is its uncertainty: the aleatoric part would stay with more examples, the epistemic part would go."
)
_LEARNING = (
    "Each method trained on {n_episodes:,} tasks of 5 characters out of {n_train:,}, and was validated on tasks of "
    "{n_val} others. The weights that were best there are those tested above."
)
_HOW_TO_GO_ON = (
    "Train longer, or on other data; mirrorshot list data says what there is:\n\n"
    "$ mirrorshot train --data glyphs --episodes 2000",
    "Evaluate a run by the protocol of the paper, 5 × 600 tasks; here that of the demo:\n\n"
    "$ mirrorshot evaluate {folder}/runs/mirror_gp",
    "See all methods, with their papers and options:\n\n$ mirrorshot list methods",
)


def write_demo(result: DemoResult, folder: Path) -> dict[str, Any]:
    """Write `report.html`, `results.json` and `reliability.png`; return the content of the JSON."""
    reliability = _reliability(result)
    views.save_figure(reliability.figure, folder / "reliability.png")
    n_train, n_val = result.n_classes
    learning = _LEARNING.format(n_episodes=result.settings.n_episodes, n_train=n_train, n_val=n_val)
    sections = [
        Section("What came out", [in_words(result), *_all_tables(result)]),
        views.reliability_section(reliability),
        views.risk_section(result.evaluations[1]),
        Section("Three tasks", [_TASKS, *_tasks(result)]),
        *views.learning_section(result.logs, learning),
        Section("How to go on", [text.format(folder=folder) for text in _HOW_TO_GO_ON]),
    ]
    views.write_report(
        folder / "report.html", title="Handwritten digits from one example each", intro=_INTRO, sections=sections
    )
    record = as_record(result)
    write_json(folder / "results.json", record)
    return record


def demo_tables(result: DemoResult) -> list[Table]:
    """Return a table of results for each number of examples per class."""
    return [
        views.evaluation_table(found, caption=f"Handwritten digits, {_examples(n_shot)}")
        for n_shot, found in result.evaluations.items()
    ]


def in_words(result: DemoResult) -> str:
    """Return a paragraph on the results for each number of examples per class."""
    return "\n\n".join(_compare(n_shot, found) for n_shot, found in result.evaluations.items())


def as_record(result: DemoResult) -> dict[str, Any]:
    """Return all numbers for JSON."""
    return {
        "mirrorshot_version": version("mirrorshot"),
        "seed": result.seed,
        "settings": result.settings._asdict(),
        "n_training_classes": result.n_classes[0],
        "n_validation_classes": result.n_classes[1],
        "seconds": result.seconds,
        "validation": {name: log[-1] for name, log in result.logs.items()},
        "results": [
            {"n_shot": n_shot, "method": name, **evaluation.record()}
            for n_shot, found in result.evaluations.items()
            for name, evaluation in found.items()
        ],
        "differences": [
            {
                "n_shot": n_shot,
                "method": OURS,
                "minus": OTHER,
                "accuracy": paired_difference(found[OURS], found[OTHER])._asdict(),
                "nll": paired_difference(found[OURS], found[OTHER], "nll")._asdict(),
            }
            for n_shot, found in result.evaluations.items()
        ],
    }


def _compare(n_shot: int, found: Mapping[str, Evaluation]) -> str:
    mean, interval, _ = paired_difference(found[OURS], found[OTHER])
    if abs(mean) <= interval:
        accuracy = f"the accuracies do not differ clearly ({100 * mean:+.1f} ± {100 * interval:.1f} points)"
    else:
        ahead = OURS if mean > 0 else OTHER
        accuracy = f"{ahead} is right more often by {100 * abs(mean):.1f} ± {100 * interval:.1f} points"
    return (
        f"With {_examples(n_shot)}, {accuracy}. As they are, the probabilities of {OURS} have "
        f"{_errors(found[OURS].raw)}, those of {OTHER} {_errors(found[OTHER].raw)}; at the best temperature of the "
        f"validation tasks, {_errors(found[OURS].calibrated)} and {_errors(found[OTHER].calibrated)}."
    )


def _errors(calibration: Calibration | None) -> str:
    assert calibration is not None  # the characters have validation classes
    return f"NLL {calibration.nll:.3f} and ECE {calibration.ece:.3f}"


def _all_tables(result: DemoResult) -> list[Table]:
    tables = []
    for results, (n_shot, found) in zip(demo_tables(result), result.evaluations.items(), strict=True):
        caption = f"On the same tasks, {_examples(n_shot)}"
        tables += [results, views.difference_table(found, reference=OTHER, caption=caption)]
    return tables


def _reliability(result: DemoResult) -> Image:
    rows = [
        [ReliabilityDisplay.from_calibration(e.raw, name=f"{name}\n{_examples(n_shot)}") for name, e in found.items()]
        for n_shot, found in result.evaluations.items()
    ]
    alt = "Reliability diagrams: accuracy over confidence, for both methods with one and with five examples per class."
    caption = "Predictions as they are, without a temperature fitted on validation tasks."
    return Image(views.reliability_figure(rows), alt, caption)


def _tasks(result: DemoResult) -> list[Image]:
    images = []
    for i, card in enumerate(result.cards[OURS]):
        alt = f"A task with the digits {', '.join(card.class_names)}: examples, queries, probabilities, uncertainty."
        right = ", ".join(f"{name} {cards[i].accuracy:.0%}" for name, cards in result.cards.items())
        n = len(card.y)
        images.append(Image(card.plot().figure_, alt, f"6 of {n} queries. Right among all {n}: {right}."))
    return images


def _examples(n_shot: int) -> str:
    return f"{count(n_shot, 'examples')} per class"

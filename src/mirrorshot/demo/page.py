"""What the demo shows: its tables, its pictures and its report."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrorshot.demo.experiment import METHODS, DemoResult, Drawn
from mirrorshot.evaluation import Calibration, paired_difference
from mirrorshot.views import (
    Picture,
    Section,
    Table,
    difference_table,
    evaluation_table,
    learning_curve_figure,
    reliability_figure,
    reliability_of,
    risk_section,
    save_figure,
    write_report,
)

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

OURS, OTHER = METHODS

_INTRO = (
    "A network has practised on many small puzzles with printed characters from all over the world, but never on a "
    "digit. Now it gets one handwritten example of each of five digits, and has to say of other pictures which digit "
    "they show and how sure it is.\n\n"
    "Two methods practised with the same network on the same puzzles: mirror_gp, a Gaussian process fitted by mirror "
    "descent, and protonet, a prototypical network, which picks the class whose mean is nearest."
)
_HOW_TO_GO_ON = (
    (
        "Train longer, or on other data; mirrorshot list data says what there is:",
        "mirrorshot train --data glyphs --episodes 2000",
    ),
    (
        "Evaluate a run by the protocol of the paper, 5 × 600 tasks; here that of the demo:",
        "mirrorshot evaluate {folder}/runs/mirror_gp",
    ),
    ("See all methods, with their papers and options:", "mirrorshot list methods"),
)


def write_demo(result: DemoResult, folder: Path) -> dict[str, Any]:
    """Write `report.html`, `results.json` and `reliability.png`; return what is in the JSON."""
    picture = _reliability(result)
    save_figure(picture, folder / "reliability.png")
    write_report(
        folder / "report.html",
        title="Handwritten digits from one example each",
        intro=_INTRO,
        sections=_sections(result, folder, picture),
    )
    record = as_record(result)
    (folder / "results.json").write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return record


def demo_tables(result: DemoResult) -> list[Table]:
    """The results at each number of examples per class, then the differences of the methods."""
    return [
        evaluation_table(found, caption=f"Handwritten digits, {_examples(n_shot)}")
        for n_shot, found in result.evaluations.items()
    ]


def in_words(result: DemoResult) -> str:
    """What came out, in a sentence for each number of examples; whoever is ahead."""
    return "\n\n".join(_compare(n_shot, found) for n_shot, found in result.evaluations.items())


def _compare(n_shot: int, found: Any) -> str:
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


def _errors(calibration: Calibration) -> str:
    return f"NLL {calibration.nll:.3f} and ECE {calibration.ece:.3f}"


def _difference_tables(result: DemoResult) -> list[Table]:
    """What one method reaches more than the other, task by task."""
    return [
        difference_table(found, reference=OTHER, caption=f"On the same tasks, {_examples(n_shot)}")
        for n_shot, found in result.evaluations.items()
    ]


def as_record(result: DemoResult) -> dict[str, Any]:
    """All numbers, ready for JSON."""
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


def _sections(result: DemoResult, folder: Path, picture: "matplotlib.figure.Figure") -> list[Section]:
    learned = learning_curve_figure(result.logs)
    n_train, n_val = result.n_classes
    return [
        Section("What came out", [in_words(result), *demo_tables(result), *_difference_tables(result)]),
        Section("Do the probabilities mean what they say?", [_RELIABILITY_TEXT, _reliability_picture(picture)]),
        risk_section(result.evaluations[1]),
        Section("Three tasks", [_TASKS_TEXT, *map(_task_picture, result.drawn)]),
        Section(
            "How they learned",
            [
                f"Each method trained on {result.settings.n_episodes:,} tasks of 5 characters out of {n_train:,}, and "
                f"was validated on tasks of {n_val} others. The weights that were best there are those tested above.",
                Picture(
                    learned, "Training loss, validation accuracy and NLL of both methods over the episodes.", _LOSSES
                ),
            ],
        ),
        Section("How to go on", [f"{text}\n\n$ {line.format(folder=folder)}" for text, line in _HOW_TO_GO_ON]),
    ]


_LOSSES = "The training losses are different quantities, a bound and a cross-entropy; only the validations compare."
_RELIABILITY_TEXT = (
    "Sort the predictions by how sure they claim to be. Those that say 80 % should be right in 80 of 100 cases: bars "
    "that end on the dashed line. The hatched part is what is missing, and ECE is its mean."
)
_TASKS_TEXT = (
    "The first three tasks of the test, not chosen. Each column is a class with the one picture that mirror_gp learned "
    "it from; each row is a picture it has to classify, with the probability that it gives to each class. "
    "On the right is its uncertainty: the aleatoric part would stay with more examples, the epistemic part would go."
)


def _reliability(result: DemoResult) -> "matplotlib.figure.Figure":
    """A row for each number of examples, a column for each method; before any temperature."""
    return reliability_figure(
        [
            [reliability_of(e.raw, f"{name}\n{_examples(n_shot)}") for name, e in found.items()]
            for n_shot, found in result.evaluations.items()
        ]
    )


def _reliability_picture(figure: "matplotlib.figure.Figure") -> Picture:
    alt = "Reliability diagrams: accuracy over confidence, for both methods with one and with five examples per class."
    return Picture(figure, alt, "Predictions as they are, without a temperature fitted on validation tasks.")


def _task_picture(task: Drawn) -> Picture:
    alt = f"A task with the digits {', '.join(task.card.class_names)}: examples, queries, probabilities, uncertainty."
    right, n = ", ".join(f"{name} {share:.0%}" for name, share in task.right.items()), len(task.card.y)
    return Picture(task.card.plot().figure_, alt, f"6 of {n} queries. Right among all {n}: {right}.")


def _examples(n_shot: int) -> str:
    return f"{n_shot} example{'s' if n_shot > 1 else ''} per class"

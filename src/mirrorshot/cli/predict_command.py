"""`mirrorshot predict`."""

import csv
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.models import end_with_damaged, read_queries
from mirrorshot.cli.options import AsJson, Download, ModelFile, Queries, Quiet, TextColumn, Trust, examples
from mirrorshot.cli.terminal import refuse, say_json, short_work, shown
from mirrorshot.files.texts import csv_cell

if TYPE_CHECKING:
    from mirrorshot.tool import Prediction

PREDICT_EXAMPLES = examples(
    {
        "mirrorshot predict model.mirrorshot scan.png": "One image.",
        "mirrorshot predict model.mirrorshot new/ --csv > answers.csv": "All images in and below a folder, as a table "
        "for other programs.",
        "find . -name '*.jpg' -mtime -1 | mirrorshot predict model.mirrorshot - --json": "Paths from another program.",
    },
    "[bold]Exit codes[/bold]: 0 done, 1 failed, 2 wrong usage, 3 done, but some images could not be read.",
)

_NONE = "none of these"
_NUMBERS = ("novelty", "epistemic", "aleatoric")


def predict(
    model: ModelFile,
    queries: Queries,
    coverage: Annotated[float, typer.Option(help="How often the set is to hold the right class.")] = 0.9,
    novelty: Annotated[
        float | None,
        typer.Option(
            help="Novelty from which an image is none of the classes; 1: never.", show_default="from the examples"
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    download: Download = False,
    trust_encoder: Trust = False,
    text_column: TextColumn = None,
    quiet: Quiet = False,
) -> None:
    """Classify images: class, probability, the set of classes to consider, or "none of these".

    More examples would remove the "epistemic" part of the uncertainty (nats), but not the "aleatoric" part.
    """
    if as_csv and as_json:
        refuse("Expected --csv or --json, but got both.")
    if not 0.0 < coverage < 1.0:
        refuse(f"Expected --coverage to be between 0 and 1, but got {coverage}.")
    with short_work():
        fitted, found = read_queries(
            model, queries, label="Predicting", trust_encoder=trust_encoder, download=download, quiet=quiet,
            text_column=text_column,
        )  # fmt: skip
        answers = fitted.predict_encoded(found, coverage=coverage, novelty_threshold=novelty)
    if as_json:
        say_json([_record(answer) for answer in answers])
    elif as_csv:
        _print_csv(answers)
    else:
        _print_table(answers)
    end_with_damaged(found)


def _record(answer: "Prediction") -> dict[str, object]:
    return answer._asdict() | {"name": shown(answer.name), "answer": _NONE if answer.is_novel else answer.label}


def _print_csv(answers: Sequence["Prediction"]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["name", "answer", "label", "probability", "set", *_NUMBERS])
    for answer in answers:
        in_set = "" if answer.labels is None else "|".join(answer.labels)
        texts = (answer.name, _NONE if answer.is_novel else answer.label, answer.label, in_set)
        name, given, label, in_set = (csv_cell(shown(text)) for text in texts)
        values = [f"{getattr(answer, column):.6g}" for column in _NUMBERS]
        writer.writerow([name, given, label, f"{answer.probability:.6g}", in_set, *values])


def _print_table(answers: Sequence["Prediction"]) -> None:
    from mirrorshot.cli.tables import print_rows

    rows = []
    for answer in answers:
        label = f"{_NONE} ({answer.label}?)" if answer.is_novel else answer.label
        in_set = "?" if answer.labels is None else ", ".join(answer.labels) or "-"
        values = [f"{getattr(answer, column):.2f}" for column in _NUMBERS]
        rows.append([shown(answer.name), label, f"{answer.probability:.3f}", in_set, *values])
    width = None if sys.stdout.isatty() else 200  # a pipe has no width
    print_rows(["image", "class", "prob.", "set", *_NUMBERS], rows, numbers=(2, 4, 5, 6), width=width)

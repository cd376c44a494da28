"""`mirrorshot predict`."""

import csv
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.model_options import (
    AsJson,
    Download,
    ModelFile,
    Quiet,
    Trust,
    end_with_findings,
    read_queries,
    shown,
    tell_damaged,
    work,
)
from mirrorshot.cli.terminal import make_console, plain_table, refuse, say
from mirrorshot.files.texts import csv_cell

if TYPE_CHECKING:
    from mirrorshot.tool import Prediction

PREDICT_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot predict model.mirrorshot scan.png[/cyan]
One picture.

[cyan]mirrorshot predict model.mirrorshot new/ --csv > answers.csv[/cyan]
All pictures in and below a folder, as a table for other programs.

[cyan]find . -name '*.jpg' -mtime -1 | mirrorshot predict model.mirrorshot - --json[/cyan]
Paths from another program.

[bold]Exit codes[/bold]: 0 done, 1 failed, 2 wrong usage, 3 done, but some pictures could not be read.
"""

_NONE = "none of these"


def predict(
    model: ModelFile,
    queries: Annotated[
        list[str],
        typer.Argument(
            help="Pictures, folders, patterns, one .csv, .npz or .txt file, or - for paths on standard input.",
            metavar="QUERY...",
        ),
    ],
    coverage: Annotated[float, typer.Option(help="How often the set is to hold the right class.")] = 0.9,
    novelty: Annotated[
        float | None,
        typer.Option(
            help="Novelty from which a picture is none of the classes; 1: never.", show_default="from the examples"
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: AsJson = False,
    download: Download = False,
    trust_encoder: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Classify pictures: class, probability, the set of classes to consider, or "none of these".

    More examples would remove the "epistemic" part of the uncertainty (nats); the "aleatoric" part they would not.
    """
    if as_csv and as_json:
        refuse("Expected --csv or --json, but got both.")
    if not 0.0 < coverage < 1.0:
        refuse(f"Expected --coverage to be between 0 and 1, but got {coverage}.")
    with work():
        fitted, found = read_queries(
            model, queries, label="Predicting", trust_encoder=trust_encoder, download=download, quiet=quiet
        )
        answers = fitted.predict_encoded(found, coverage=coverage, novelty_threshold=novelty)
    if as_json:
        say(json.dumps([_record(answer) for answer in answers], indent=2))
    elif as_csv:
        _print_csv(answers)
    else:
        _print_table(answers)
    if found.damaged:
        tell_damaged(found)
        end_with_findings()


def _record(answer: "Prediction") -> dict[str, object]:
    record = answer._asdict()
    record["name"] = shown(answer.name)
    record["answer"] = _NONE if answer.is_novel else answer.label
    return record


def _print_csv(answers: Sequence["Prediction"]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    numbers = ("novelty", "epistemic", "aleatoric")
    writer.writerow(["name", "answer", "label", "probability", "set", *numbers])
    for answer in answers:
        in_set = "" if answer.labels is None else "|".join(answer.labels)
        record = _record(answer)
        values = [f"{getattr(answer, name):.6g}" for name in numbers]
        texts = (record["name"], record["answer"], answer.label, in_set)
        name, given, label, in_set = (csv_cell(shown(text)) for text in texts)
        writer.writerow([name, given, label, f"{answer.probability:.6g}", in_set, *values])


def _print_table(answers: Sequence["Prediction"]) -> None:
    from rich.text import Text

    table = plain_table(
        "", ["picture", "class", "prob.", "set", "novelty", "epistemic", "aleatoric"], numbers=(2, 4, 5, 6)
    )
    for answer in answers:
        label = f"{_NONE} ({answer.label}?)" if answer.is_novel else answer.label
        in_set = "?" if answer.labels is None else ", ".join(answer.labels) or "-"
        numbers = [f"{value:.2f}" for value in (answer.novelty, answer.epistemic, answer.aleatoric)]
        texts = [shown(answer.name), label, f"{answer.probability:.3f}", in_set, *numbers]
        table.add_row(*map(Text, texts))
    wide = None if sys.stdout.isatty() else 200  # a pipe has no width
    make_console(width=wide).print(table)

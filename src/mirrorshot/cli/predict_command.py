"""`mirrorshot predict`, `suggest` and `explain`."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli.models import end_with_damaged, read_queries
from mirrorshot.cli.options import ModelFile, Queries, Reading, examples
from mirrorshot.cli.terminal import note, prepare_file, refuse, say, say_json, say_result, short_work, shown
from mirrorshot.files.lazy import need
from mirrorshot.files.texts import csv_cell, cut

if TYPE_CHECKING:
    from mirrorshot.tool import Prediction, Reason, Word

_NONE = "none of these"
_NUMBERS = ("novelty", "novelty_threshold", "epistemic", "aleatoric", "epistemic_share", "aleatoric_share")
_WIDE = 110  # least width of a terminal that shows the parts of the uncertainty
_NARROW_NAME = 20  # characters of the name of a class on narrower terminals
_ENDLESS = 100_000


@examples(
    {
        "mirrorshot predict model.mirrorshot scan.png": "One image.",
        "mirrorshot predict model.mirrorshot new/ --csv > answers.csv": "All images in and below a folder, as a table "
        "for other programs, with a column for the probability of each class.",
        "mirrorshot predict model.mirrorshot new/ --parquet answers.parquet": "The same table as a Parquet file.",
        "find . -name '*.jpg' -mtime -1 | mirrorshot predict model.mirrorshot - --json": "Paths from another program.",
    },
    "[bold]Exit codes[/bold]: 0 done, 1 failed, 2 wrong usage, 3 done, but some images could not be read.",
)
def predict(
    model: ModelFile,
    queries: Queries,
    given: Reading,
    coverage: Annotated[float, typer.Option(help="How often the set is to hold the right class.")] = 0.9,
    novelty: Annotated[
        float | None,
        typer.Option(
            help="Novelty from which an image is none of the classes; 1: never.", show_default="from the examples"
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write a Parquet file.", metavar="FILE")] = None,
) -> None:
    """Classify images: class, probability, the set of classes to consider, or "none of these".

    More examples would remove the "epistemic" part of the uncertainty, but not the "aleatoric" part; both are shares of
    the largest possible uncertainty.
    """
    formats = [
        name for name, is_given in (("--csv", as_csv), ("--json", given.as_json), ("--parquet", parquet)) if is_given
    ]
    if len(formats) > 1:
        refuse(f"Expected one of --csv, --json and --parquet, but got {' and '.join(formats)}. Choose one.")
    if not 0.0 < coverage < 1.0:
        refuse(f"Expected --coverage to be between 0 and 1, but got {coverage}.")
    if novelty is not None and not 0.0 <= novelty <= 1.0:
        refuse(f"Expected --novelty to be between 0 and 1, but got {novelty}.")
    if parquet is not None:
        prepare_file("--parquet", parquet, inputs=(model, *queries))
    with short_work():
        fitted, found = read_queries(model, queries, given, "Predicting")
        answers = fitted.predict_encoded(found, coverage=coverage, novelty_threshold=novelty)
        if parquet is not None:
            _write_parquet(parquet, answers)
            say(f"Answers: {parquet}")
    if given.as_json:
        say_json([_record(answer) for answer in answers])
    elif as_csv:
        _print_csv(answers)
    elif parquet is None:
        _print_table(answers, found.items.kind, given.quiet)
    end_with_damaged(found)


def _record(answer: "Prediction") -> dict[str, object]:
    more = {name: getattr(answer, name) for name in _NUMBERS}
    texts = {"name": shown(answer.name), "answer": _NONE if answer.is_novel else answer.label, "note": answer.note}
    return answer._asdict() | more | texts


def _row(answer: "Prediction") -> dict[str, Any]:
    """Return an answer as a row of a table; `set` is None if there are too few examples for sets."""
    return {
        "name": shown(answer.name),
        "answer": _NONE if answer.is_novel else answer.label,
        "label": answer.label,
        "probability": answer.probability,
        "set": None if answer.labels is None else "|".join(answer.labels),
        **{name: getattr(answer, name) for name in _NUMBERS},
        **{f"p_{label}": share for label, share in answer.probabilities.items()},
    }


def _print_csv(answers: Sequence["Prediction"]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for i, row in enumerate(map(_row, answers)):
        if i == 0:
            writer.writerow([csv_cell(shown(name)) for name in row])
        row["set"] = "?" if row["set"] is None else row["set"]
        writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else csv_cell(shown(cell)) for cell in row.values()])


def _write_parquet(path: Path, answers: Sequence["Prediction"]) -> None:
    table = need("pyarrow").Table.from_pylist([_row(answer) for answer in answers])
    need("pyarrow.parquet").write_table(table, path)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def _print_table(answers: Sequence["Prediction"], kind: str, quiet: bool) -> None:
    from mirrorshot.cli.tables import print_rows, terminal_width

    width = terminal_width() if is_terminal() else None  # in a pipe, a line for each item
    is_wide = width is None or width >= _WIDE
    most = 1000 if is_wide else _NARROW_NAME
    parts = ("epistemic_share", "aleatoric_share") if is_wide else ()
    rows = []
    for answer in answers:
        label = f"{_NONE} ({cut(answer.label, most)}?)" if answer.is_novel else cut(answer.label, most)
        in_set = "?" if answer.labels is None else ", ".join(cut(one, most) for one in answer.labels) or "-"
        limit = f" {'>' if answer.is_novel else '≤'} {answer.novelty_threshold:.3f}" if is_wide else ""
        values = [f"{getattr(answer, part):.0%}" for part in parts]
        rows.append(
            [shown(answer.name), label, f"{answer.probability:.3f}", in_set, f"{answer.novelty:.3f}{limit}", *values]
        )
    name = "image" if kind == "picture" else "item"
    columns = [name, "class", "prob.", "set", "novelty", *(part.partition("_")[0] for part in parts)]
    print_rows(columns, rows, numbers=(2, 4, 5, 6), width=width or _ENDLESS, shorten=0)
    novel = next((answer for answer in answers if answer.is_novel), None)
    if novel is not None:
        why = f"unlike all examples, novelty above {novel.novelty_threshold:.3f}"
        note(f"none of these: {why}. The class in brackets is only the nearest one.", quiet=quiet)
    if any(answer.labels is None for answer in answers):
        note("? (no set): too few examples for sets of this coverage. Add examples, or lower --coverage.", quiet=quiet)
    if any(answer.labels == () and not answer.is_novel for answer in answers):
        note("- (empty set): no class is as plausible as it usually is for the examples. Look at it.", quiet=quiet)


@examples(
    {
        "mirrorshot suggest model.mirrorshot unlabelled/ -k 10": "The ten images whose labels would help most, one "
        "path a line.",
    }
)
def suggest(
    model: ModelFile,
    pool: Annotated[list[str], typer.Argument(help="Unlabelled images, as for `predict`.", metavar="POOL")],
    given: Reading,
    k: Annotated[int, typer.Option("-k", help="Number of images.", min=1)] = 10,
) -> None:
    """List the images to label next: those whose labels would make the predictions for the whole pool surest."""
    with short_work():
        fitted, found = read_queries(model, pool, given, "Reading")
        names = [shown(name) for name in fitted.suggest(found, k)]
    say_result(names, "\n".join(names), as_json=given.as_json)
    end_with_damaged(found)


@examples(
    {
        "mirrorshot explain model.mirrorshot scan.png": "The examples for and against the class that was predicted.",
        "mirrorshot explain model.mirrorshot scan.png --label owl": "Why is it an owl, or why not?",
    }
)
def explain(
    model: ModelFile,
    queries: Queries,
    given: Reading,
    label: Annotated[
        str | None, typer.Option("--label", "-l", help="Class to explain.", show_default="the most probable one")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Number of examples.", min=1)] = 5,
) -> None:
    """Show which examples (and words of a text) speak for a class, and which against it.

    The contributions of all examples add up to the score of the class. For texts, the most important words are shown
    too: how much the log-odds of the class would fall without each.
    """
    with short_work():
        fitted, found = read_queries(model, queries, given, "Reading")
        answers, reasons = fitted.predict_encoded(found), fitted.explain(found, label, n)
        words = fitted.words(found, label, n) if found.items.kind == "text" else [None] * len(answers)
    parts = zip(answers, reasons, words, strict=True)
    records = [_reasons(answer, examples_, label or answer.label, own) for answer, examples_, own in parts]
    if given.as_json:
        say_json(records)
    else:
        _print_reasons(records)
    end_with_damaged(found)


def _reasons(
    answer: "Prediction", reasons: "Iterable[Reason]", label: str, words: "Iterable[Word] | None"
) -> dict[str, Any]:
    own = {} if words is None else {"words": [{**word._asdict(), "word": shown(word.word)} for word in words]}
    return {
        "name": shown(answer.name),
        "label": label,
        "probability": answer.probabilities[label],
        "reasons": [{**reason._asdict(), "name": shown(reason.name)} for reason in reasons],
        **own,
    }


def _print_reasons(records: list[dict[str, Any]]) -> None:
    from mirrorshot.cli.tables import print_rows

    for record in records:
        rows = [(reason["name"], reason["label"], f"{reason['added']:+.2f}") for reason in record["reasons"]]
        title = f"{record['name']}: {record['label']} with probability {record['probability']:.3f}"
        print_rows(["example", "its class", "adds"], rows, title=title, numbers=(2,), shorten=0)
        words = [(word["word"], f"{word['added']:+.2f}") for word in record.get("words", [])]
        if words:
            print_rows(["word", "adds"], words, numbers=(1,))

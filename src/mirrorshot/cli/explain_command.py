"""`mirrorshot explain`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli.models import end_with_damaged, read_queries
from mirrorshot.cli.options import ModelFile, Queries, Reading, examples
from mirrorshot.cli.terminal import say_json, short_work, shown

if TYPE_CHECKING:
    from mirrorshot.tool import Prediction, Reason, Word


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

    The contributions of all examples add up to the score of the class. For texts also the words that count most: how
    much the log-odds of the class would fall without each.
    """
    with short_work():
        fitted, found = read_queries(model, queries, given, "Reading")
        answers, reasons = fitted.predict_encoded(found), fitted.explain(found, label, n)
        words = fitted.words(found, label, n) if found.items.kind == "text" else [None] * len(answers)
    parts = zip(answers, reasons, words, strict=True)
    records = [_record(answer, examples_, label or answer.label, own) for answer, examples_, own in parts]
    if given.as_json:
        say_json(records)
    else:
        _print(records)
    end_with_damaged(found)


def _record(
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


def _print(records: list[dict[str, Any]]) -> None:
    from mirrorshot.cli.tables import print_rows

    for record in records:
        rows = [(reason["name"], reason["label"], f"{reason['added']:+.2f}") for reason in record["reasons"]]
        title = f"{record['name']}: {record['label']} with probability {record['probability']:.3f}"
        print_rows(["example", "its class", "adds"], rows, title=title, numbers=(2,), shorten=0)
        words = [(word["word"], f"{word['added']:+.2f}") for word in record.get("words", [])]
        if words:
            print_rows(["word", "adds"], words, numbers=(1,))

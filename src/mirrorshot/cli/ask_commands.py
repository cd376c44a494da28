"""`mirrorshot suggest`, `mirrorshot explain` and `mirrorshot export`: what else a model can say."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mirrorshot.cli.model_options import (
    AsJson,
    Download,
    ModelFile,
    Quiet,
    Trust,
    end_with_findings,
    load_model,
    read_queries,
    shown,
    tell_damaged,
    work,
)
from mirrorshot.cli.terminal import check_folder, make_console, plain_table, say

SUGGEST_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot suggest model.mirrorshot unlabelled/ -k 10[/cyan]
The ten pictures whose labels would help most, one path a line.
"""

EXPLAIN_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot explain model.mirrorshot scan.png[/cyan]
The examples that speak for and against the class it was given.

[cyan]mirrorshot explain model.mirrorshot scan.png --label owl[/cyan]
Why is it an owl, or why not?
"""

EXPORT_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot export model.mirrorshot -o head.onnx[/cyan]
The classifier for onnxruntime: embeddings in; probabilities, latent mean and variance out.
"""


def suggest(
    model: ModelFile,
    pool: Annotated[list[str], typer.Argument(help="Unlabelled pictures, as of `predict`.", metavar="POOL...")],
    k: Annotated[int, typer.Option("-k", help="How many.", min=1)] = 10,
    as_json: AsJson = False,
    download: Download = False,
    trust_encoder: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Which pictures to label next: those whose labels would make the predictions of all of them surest."""
    with work():
        fitted, found = read_queries(
            model, pool, label="Reading", trust_encoder=trust_encoder, download=download, quiet=quiet
        )
        names = [shown(name) for name in fitted.suggest(found, k)]
    say(json.dumps(names, indent=2) if as_json else "\n".join(names))
    if found.damaged:
        tell_damaged(found)
        end_with_findings()


def explain(
    model: ModelFile,
    queries: Annotated[list[str], typer.Argument(help="Pictures, as of `predict`.", metavar="QUERY...")],
    label: Annotated[
        str | None, typer.Option("--label", "-l", help="Class to explain.", show_default="the most probable one")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="How many examples.", min=1)] = 5,
    as_json: AsJson = False,
    download: Download = False,
    trust_encoder: Trust = False,
    quiet: Quiet = False,
) -> None:
    """Which examples speak for a class, and which against it. What all of them add is the latent of the class."""
    with work():
        fitted, found = read_queries(
            model, queries, label="Reading", trust_encoder=trust_encoder, download=download, quiet=quiet
        )
        answers = fitted.predict_encoded(found)
        reasons = fitted.explain(found, label, n)
    records = [
        {
            "name": shown(answer.name),
            "label": label or answer.label,
            "probability": answer.probabilities[label or answer.label],
            "reasons": [{**reason._asdict(), "name": shown(reason.name)} for reason in of_item],
        }
        for answer, of_item in zip(answers, reasons, strict=True)
    ]
    if as_json:
        say(json.dumps(records, indent=2))
    else:
        _print_reasons(records)
    if found.damaged:
        tell_damaged(found)
        end_with_findings()


def _print_reasons(records: list[dict[str, object]]) -> None:
    from rich.text import Text

    console = make_console()
    for record in records:
        title = f"{record['name']}: {record['label']} with probability {record['probability']:.3f}"
        table = plain_table("", ["example", "its class", "adds"], numbers=(2,))
        for reason in record["reasons"]:  # type: ignore[attr-defined]
            table.add_row(Text(reason["name"]), Text(reason["label"]), f"{reason['added']:+.2f}")
        console.print(Text(title, style="bold"))
        console.print(table)


def export(
    model: ModelFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.", metavar="FILE")] = Path("head.onnx"),
    as_json: AsJson = False,
) -> None:
    """Write the classifier of a model as ONNX. It takes embeddings: the encoder stays where it is."""
    check_folder("--output", output.parent)
    with work():
        from mirrorshot.classifier.export import export_onnx

        fitted = load_model(model)
        export_onnx(fitted.head, output)
    about = {"output": str(output), "n_features": int(fitted.head.n_features_in_), "classes": fitted.classes}
    if as_json:
        say(json.dumps(about, indent=2))
    else:
        say(f"{output}: embeddings (n, {about['n_features']}) -> probabilities of {', '.join(fitted.classes)}")

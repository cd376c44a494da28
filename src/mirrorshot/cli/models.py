"""Shared steps of the commands for models: reading models and items, reporting damaged items and copies."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mirrorshot.cli.options import Encoding, Reading
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import FINDINGS, note, say, shown
from mirrorshot.files.texts import count, few

if TYPE_CHECKING:
    from mirrorshot.encoders import Encoder
    from mirrorshot.tool import Encoded, Items, Model
    from mirrorshot.tool.copies import Copy


def load_model(path: Path, given: Reading = Reading()) -> "Model":  # noqa: B008 (immutable)
    """Load a model with the options of a command."""
    from mirrorshot.tool import Model

    return Model.load(path, trust_encoder=given.trust_encoder, download=given.download)


def read_examples(path: Path, given: Encoding) -> "tuple[Items, Encoder]":
    """Read labelled items and make their encoder; `auto` depends on the items and prints a note."""
    from mirrorshot.encoders import make_encoder
    from mirrorshot.tool import decide, read_labelled

    items = read_labelled(path, text_column=given.text_column, label_column=given.label_column)
    name = given.encoder
    if name == "auto" or items.kind == "embedding":
        name, reason, advice = decide(items)
        note(f"Encoder {name}: {reason}.{advice}", quiet=given.quiet or items.kind == "embedding")
    return items, make_encoder(name, download=given.download)


def read_unlabelled(arguments: Sequence[str], given: Reading, model: "Model") -> "Items":
    """Read unlabelled items from the arguments of a command; `-` is standard input."""
    from mirrorshot.tool import read_unlabelled as read

    lines = sys.stdin if "-" in arguments else ()
    columns = {"text_column": given.text_column, "label_column": given.label_column}
    return read(arguments, lines, numbers=model.columns, **columns)


def read_queries(path: Path, arguments: Sequence[str], given: Reading, label: str) -> "tuple[Model, Encoded]":
    """Load a model and encode items with it; `label` names the progress bar."""
    from mirrorshot.tool import encode_items

    model = load_model(path, given)
    items = read_unlabelled(arguments, given, model)
    with progress_bar(quiet=given.quiet) as stage:
        return model, encode_items(model.encoder, items, progress=stage(label))


def report_damaged(found: "Encoded") -> None:
    """Print a line for each item that could not be read."""
    for name, why in found.damaged.items():
        say(f"Warning: {shown(name)} cannot be read and is left out: {why}", err=True)


def end_with_damaged(*parts: "Encoded") -> None:
    """If items could not be read, print a line for each and exit with code 3."""
    for found in parts:
        report_damaged(found)
    if any(found.damaged for found in parts):
        raise typer.Exit(FINDINGS)


def report_copies(
    copies: "Sequence[Copy]",
    names: Sequence[str],
    labels: Sequence[str],
    model: "Model",
    *,
    allow_contradictions: bool,
    quiet: bool,
) -> None:
    """Warn of copies of examples of a model; refuse copies with another label unless they are allowed.

    Raises:
        DataError: the same item has two labels.
    """
    from mirrorshot.tool.copies import contradictions, refuse_contradictions

    def pair(copy: "Copy") -> str:
        return f"{shown(names[copy.row])} = {shown(model.names[copy.other])}"

    opposed = contradictions(copies, labels, model.labels)
    if not allow_contradictions:
        refuse_contradictions([f"{pair(copy)} ({model.labels[copy.other]})" for copy in opposed])
    for is_exact, alike in ((True, "the same as"), (False, "nearly the same as")):
        found = [copy for copy in copies if copy.is_exact is is_exact]
        across = sum(labels[copy.row] != model.labels[copy.other] for copy in found)
        classes = f", {across} of them in two classes" if across else ""
        note(
            f"Warning: {count(len(found), 'examples')} {alike} {'another' if len(found) == 1 else 'others'}{classes}: "
            f"{few([pair(copy) for copy in found])}. "
            "A copy tells nothing new.",
            quiet=quiet or not found,
        )


def summary(model: "Model", path: Path) -> dict[str, Any]:
    """Describe a model for JSON."""
    return {
        "model": str(path),
        "encoder": model.encoder.name,
        "n_examples": len(model.names),
        "classes": {label: model.labels.count(label) for label in model.classes},
        "kernel": str(model.learned.settings.kernel),
        "temperature": model.learned.fitted.temperature,
        "loo_log_likelihood": model.learned.fitted.loo_log_likelihood,
    }


def in_words(model: "Model", path: Path) -> str:
    """Return the size of a model in words."""
    return f"{path} has {count(len(model.names), 'examples')} of {count(len(model.classes), 'classes')}"

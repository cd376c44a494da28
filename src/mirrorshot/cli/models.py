"""Steps that the commands for models share: read models and images, report damaged images, print a summary."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import FINDINGS, note, say, shown

if TYPE_CHECKING:
    from mirrorshot.encoders import Encoder
    from mirrorshot.tool import Encoded, Items, Model
    from mirrorshot.tool.copies import Copy


def load_model(path: Path, *, trust_encoder: bool = False, download: bool = False) -> "Model":
    """Load the model in a file."""
    from mirrorshot.tool import Model

    return Model.load(path, trust_encoder=trust_encoder, download=download)


def pick_encoder(name: str, items: "Items", *, download: bool, quiet: bool) -> "Encoder":
    """Make the encoder of that name; `auto` is decided by the items, with a note to the user."""
    from mirrorshot.encoders import make_encoder
    from mirrorshot.tool import decide

    if name == "auto" or items.kind == "embedding":
        choice = decide(items)
        name = choice.name
        if items.kind != "embedding":
            note(f"Encoder {name}: {choice.reason}.", quiet=quiet)
    return make_encoder(name, download=download)


def read_queries(
    path: Path,
    arguments: Sequence[str],
    *,
    label: str,
    trust_encoder: bool,
    download: bool,
    quiet: bool,
    text_column: str | None = None,
) -> "tuple[Model, Encoded]":
    """Load a model, and encode items with it; `-` is standard input, `label` names the progress bar."""
    from mirrorshot.tool import encode_items, read_unlabelled

    model = load_model(path, trust_encoder=trust_encoder, download=download)
    items = read_unlabelled(arguments, sys.stdin if "-" in arguments else (), text_column=text_column)
    with progress_bar(quiet=quiet) as stage:
        return model, encode_items(model.encoder, items, progress=stage(label))


def end_with_damaged(found: "Encoded") -> None:
    """If images could not be read, print a line for each and exit with the code for findings."""
    for name, why in found.damaged.items():
        say(f"Warning: {shown(name)} cannot be read and is left out: {why}", err=True)
    if found.damaged:
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
    """Name copies of the examples of a model, and refuse those with another label unless they are allowed.

    Raises:
        DataError: the same item has two labels.
    """
    from mirrorshot.tool.copies import contradictions, refuse_contradictions

    def pair(copy: "Copy") -> str:
        return f"{shown(names[copy.row])} = {shown(model.names[copy.other])}"

    opposed = contradictions(copies, labels, model.labels)
    if not allow_contradictions:
        refuse_contradictions([f"{pair(copy)} ({model.labels[copy.other]})" for copy in opposed])
    for is_exact, alike in ((True, "the same"), (False, "nearly the same")):
        found = [copy for copy in copies if copy.is_exact is is_exact]
        across = sum(labels[copy.row] != model.labels[copy.other] for copy in found)
        listed = few([pair(copy) for copy in found])
        classes = f", {across} of them in two classes" if across else ""
        note(
            f"Warning: {len(found)} examples are {alike} as others{classes}: {listed}. A copy tells nothing new.",
            quiet=quiet or not found,
        )


def few(names: Sequence[str], n: int = 3) -> str:
    """The first few names.

    Example:
        >>> few(["a", "b", "c", "d"])
        'a, b, c and 1 more'
    """
    return ", ".join(names[:n]) + (f" and {len(names) - n} more" if len(names) > n else "")


def summary(model: "Model", path: Path) -> dict[str, Any]:
    """Describe a model in a file, as JSON."""
    return {
        "model": str(path),
        "encoder": model.encoder.name,
        "n_examples": len(model.names),
        "classes": {label: model.labels.count(label) for label in model.classes},
        "kernel": str(model.head.kernel),
        "temperature": model.head.temperature_,
        "loo_log_likelihood": model.head.loo_log_likelihood_,
    }

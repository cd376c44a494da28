"""`mirrorshot add` and `mirrorshot remove`: edit the examples of a model."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.fit_command import summary
from mirrorshot.cli.model_options import AsJson, Download, ModelFile, Quiet, SkipCorrupt, Trust, load_model, work
from mirrorshot.cli.terminal import progress_bar, refuse, say

if TYPE_CHECKING:
    from mirrorshot.tool import Items, Model

ADD_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot add model.mirrorshot owl=photos/owls/ wren=wren.jpg[/cyan]
More examples of classes, old or new ones.

[cyan]mirrorshot add model.mirrorshot IMG_1.jpg IMG_2.jpg --label owl[/cyan]
The same for one class.
"""

REMOVE_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot remove model.mirrorshot support/owl/IMG_7.jpg[/cyan]
The example of that name; `mirrorshot explain` and `mirrorshot doctor` show names.

[cyan]mirrorshot remove model.mirrorshot --label owl[/cyan]
A whole class.
"""


def add(
    model: ModelFile,
    pictures: Annotated[
        list[str], typer.Argument(help="CLASS=PATH, or pictures and folders with --label.", metavar="PICTURES...")
    ],
    label: Annotated[str | None, typer.Option("--label", "-l", help="Class of all the pictures.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write.", show_default="the model itself", metavar="FILE"),
    ] = None,
    download: Download = False,
    trust_encoder: Trust = False,
    skip_corrupt: SkipCorrupt = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Add examples to a model, also of new classes. Nothing is trained again."""
    groups = _groups(pictures, label)
    with work():
        from mirrorshot.tool import encode_items, read_unlabelled
        from mirrorshot.tool.encoding import check_damaged

        fitted = load_model(model, trust_encoder=trust_encoder, download=download)
        batches = {name: read_unlabelled(paths) for name, paths in groups.items()}
        with progress_bar(quiet=quiet) as stage:
            for name, items in batches.items():
                found = encode_items(fitted.encoder, items, thumbnails=True, progress=stage(f"Adding {name}"))
                check_damaged(found, skip_corrupt)
                fitted.add(found, [name] * len(found.embeddings))
        fitted.save(output or model)
    n_added = sum(_size(items) for items in batches.values())
    _print(fitted, output or model, f"Added {n_added} examples", as_json)


def remove(
    model: ModelFile,
    names: Annotated[list[str] | None, typer.Argument(help="Names of examples.", metavar="NAME...")] = None,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Remove all examples of this class.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write.", show_default="the model itself", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Take examples out of a model."""
    if bool(names) == (label is not None):
        refuse("Expected names of examples or --label, but got neither or both.")
    with work():
        from mirrorshot.types import InvalidInputError

        fitted = load_model(model)
        if label is not None and label not in fitted.classes:
            raise InvalidInputError(
                f"Expected a class of the model ({', '.join(fitted.classes[:8])}), but got {label!r}."
            )
        wanted = names or [name for name, own in zip(fitted.names, fitted.labels, strict=True) if own == label]
        n_before = len(fitted.names)
        fitted.remove(wanted)
        fitted.save(output or model)
    _print(fitted, output or model, f"Removed {n_before - len(fitted.names)} examples", as_json)


def _groups(pictures: Sequence[str], label: str | None) -> dict[str, list[str]]:
    """Paths of each class."""
    if label is not None:
        if not label.strip():
            refuse("Expected --label to be the name of a class, but it is empty.")
        return {label: list(pictures)}
    groups: dict[str, list[str]] = {}
    for argument in pictures:
        name, equals, path = argument.partition("=")
        if not equals or not name.strip() or not path:
            refuse(f"Expected CLASS=PATH, or --label for all pictures, but got {argument!r}.")
        groups.setdefault(name, []).append(path)
    return groups


def _size(items: "Items") -> int:
    return len(items.names)


def _print(model: "Model", path: Path, what: str, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"model": str(path), **summary(model)}, indent=2))
    else:
        say(f"{what}; {path} has {len(model.names)} of {len(model.classes)} classes.")

"""`mirrorshot remove`."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from mirrorshot.cli.models import in_words, load_model, summary
from mirrorshot.cli.options import AsJson, EditedFile, ModelFile, examples
from mirrorshot.cli.terminal import prepare_file, refuse, say_result, short_work
from mirrorshot.files.texts import count, few


@examples(
    {
        "mirrorshot remove model.mirrorshot support/owl/IMG_7.jpg": "The example of that name, in any spelling of the "
        "path, or its end; `mirrorshot explain` and `mirrorshot doctor` show names.",
        "mirrorshot remove model.mirrorshot --label owl": "A whole class.",
    }
)
def remove(
    model: ModelFile,
    names: Annotated[list[str] | None, typer.Argument(help="Names of examples.", metavar="NAME")] = None,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Remove all examples of this class.")] = None,
    output: EditedFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove examples from a model."""
    if bool(names) == (label is not None):
        refuse("Expected names of examples or --label, but got neither or both.")
    path = output or model
    prepare_file("--output", path)
    with short_work():
        from mirrorshot.types import InvalidInputError

        fitted = load_model(model)
        if label is not None and label not in fitted.classes:
            raise InvalidInputError(
                f"Expected a class of the model ({', '.join(fitted.classes[:8])}), but got {label!r}."
            )
        n_before = len(fitted.names)
        fitted.remove(
            find_names(names, fitted.names)
            if names
            else [name for name, own in zip(fitted.names, fitted.labels, strict=True) if own == label]
        )
        fitted.save(path)
    removed = count(n_before - len(fitted.names), "examples")
    say_result(summary(fitted, path), f"Removed {removed}; {in_words(fitted, path)}.", as_json=as_json)


def find_names(wanted: Iterable[str], names: Sequence[str]) -> list[str]:
    """Names of examples by any spelling of their paths, or by the end of a path that only one of them has.

    Raises:
        InvalidInputError: none or several examples are meant.

    Example:
        >>> find_names(["./a/../a/0.png", "1.png"], ["a/0.png", "b/0.png", "b/1.png"])
        ['a/0.png', 'b/1.png']
    """
    from mirrorshot.types import InvalidInputError

    found = []
    for name in wanted:
        whole, end = os.path.abspath(name), Path(os.path.normpath(name)).parts
        meant = [own for own in names if own == name] or [own for own in names if os.path.abspath(own) == whole]
        meant = meant or [own for own in names if Path(own).parts[-len(end) :] == end]
        if len(meant) != 1:
            some = f"{len(meant)} that end so: {few(meant)}" if meant else f"only {few(names)}"
            raise InvalidInputError(f"Expected names of examples of the model, but for {name!r} it has {some}.")
        found += meant
    return found

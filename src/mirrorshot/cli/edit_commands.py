"""`mirrorshot add`, `remove` and `export`."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.models import in_words, load_model, read_unlabelled, report_copies, report_damaged, summary
from mirrorshot.cli.options import (
    AsJson,
    Contradictions,
    EditedFile,
    ModelFile,
    Reading,
    SkipCorrupt,
    examples,
    output_option,
)
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import prepare_file, refuse, say_result, short_work
from mirrorshot.files.texts import count, few

if TYPE_CHECKING:
    from mirrorshot.tool import Items


@examples(
    {
        "mirrorshot add model.mirrorshot owl=photos/owls/ wren=wren.jpg": "More examples of old or new classes.",
        "mirrorshot add model.mirrorshot IMG_1.jpg IMG_2.jpg --label owl": "Several images of one class.",
        "mirrorshot add texts.mirrorshot more.csv": "A table with a column of labels.",
    }
)
def add(
    model: ModelFile,
    pictures: Annotated[
        list[str],
        typer.Argument(help="CLASS=PATH, a table with labels, or images and folders with --label.", metavar="IMAGES"),
    ],
    given: Reading,
    label: Annotated[str | None, typer.Option("--label", "-l", help="Class of all the images.")] = None,
    output: EditedFile = None,
    skip_corrupt: SkipCorrupt = False,
    allow_contradictions: Contradictions = False,
) -> None:
    """Add examples to a model, also of new classes. Nothing is trained again."""
    groups, path = _groups(pictures, label), output or model
    prepare_file("--output", path, inputs=[file for files in groups.values() for file in files])
    with short_work():
        from mirrorshot.tool import encode_items
        from mirrorshot.tool.copies import copies_in_model
        from mirrorshot.tool.encoding import check_damaged

        fitted = load_model(model, given)
        n_before = len(fitted.names)
        batches = {name: _labelled(read_unlabelled(paths, given, fitted), name) for name, paths in groups.items()}
        with progress_bar(quiet=given.quiet) as stage:
            for name, items in batches.items():
                found = encode_items(fitted.encoder, items, thumbnails=True, progress=stage(f"Adding {name}".rstrip()))
                check_damaged(found, skip_corrupt)
                report_damaged(found)
                fitted.add(found, found.items.labels or [])
        copies = copies_in_model(fitted, n_before)
        names, labels, quiet = fitted.names, fitted.labels, given.quiet
        report_copies(copies, names, labels, fitted, allow_contradictions=allow_contradictions, quiet=quiet)
        fitted.save(path)
    added = count(len(fitted.names) - n_before, "examples")
    say_result(summary(fitted, path), f"Added {added}; {in_words(fitted, path)}.", as_json=given.as_json)


def _groups(images: Sequence[str], label: str | None) -> dict[str, list[str]]:
    """Group paths by class; the class of a labelled table is an empty string."""
    if label is not None:
        if not label.strip():
            refuse("Expected --label to be the name of a class, but it is empty.")
        return {label: list(images)}
    groups: dict[str, list[str]] = {}
    for argument in images:
        name, equals, path = argument.partition("=")
        if not equals and os.path.isfile(argument):
            name, path = "", argument
        elif not equals or not name.strip() or not path:
            refuse(f"Expected CLASS=PATH, a table with labels, or --label for all images, but got {argument!r}.")
        groups.setdefault(name, []).append(path)
    return groups


def _labelled(items: "Items", name: str) -> "Items":
    """Return items with the class `name` or, if it is empty, with the labels of their table."""
    from mirrorshot.types import DataError

    if not name and items.labels is None:
        raise DataError(
            f"Expected a class for {items.names[0]}: CLASS=PATH, --label, or a table with a column of labels, which "
            "--label-column names."
        )
    if name and items.labels is not None and set(items.labels) != {name}:
        raise DataError(
            f"Expected a table without labels, because its items are to be {name!r}, but it has labels of its own: "
            f"{items.labels[0]!r} and others. Leave the class out to use these."
        )
    return items._replace(labels=[name] * len(items.names)) if name else items


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
    """Find names of examples by any spelling of their path, or by an ending of the path that is unique.

    Raises:
        InvalidInputError: a name matches no example, or several.

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


@examples(
    {
        "mirrorshot export model.mirrorshot -o head.onnx": "The classifier for onnxruntime: embeddings in; "
        "probabilities, latent mean and variance out.",
    }
)
def export(
    model: ModelFile,
    output: Annotated[Path, output_option(help="File to write.")] = Path("head.onnx"),
    as_json: AsJson = False,
) -> None:
    """Write the classifier of a model as ONNX. It takes embeddings; the encoder is not part of the file."""
    prepare_file("--output", output, inputs=(model,))
    with short_work():
        from mirrorshot.classifier.export import export_onnx

        fitted = load_model(model)
        of_table = fitted.encoder.tensors() if fitted.encoder.kind == "embedding" else {}  # mean and scale of columns
        export_onnx(fitted.head, output, **of_table)
    n_features = int(fitted.head.n_features_in_)
    record = {"output": str(output), "n_features": n_features, "classes": fitted.classes}
    text = f"{output}: embeddings (n, {n_features}) -> probabilities of {', '.join(fitted.classes)}"
    say_result(record, text, as_json=as_json)

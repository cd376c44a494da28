"""`mirrorshot add`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.models import in_words, load_model, read_unlabelled, report_copies, report_damaged, summary
from mirrorshot.cli.options import Contradictions, EditedFile, ModelFile, Reading, SkipCorrupt, examples
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import prepare_file, refuse, say_result, short_work
from mirrorshot.files.texts import count

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
        from mirrorshot.tool.copies import copies_of_examples
        from mirrorshot.tool.encoding import check_damaged

        fitted = load_model(model, given)
        n_before = len(fitted.names)
        batches = {name: _labelled(read_unlabelled(paths, given), name) for name, paths in groups.items()}
        with progress_bar(quiet=given.quiet) as stage:
            for name, items in batches.items():
                found = encode_items(fitted.encoder, items, thumbnails=True, progress=stage(f"Adding {name}".rstrip()))
                check_damaged(found, skip_corrupt)
                report_damaged(found)
                labels, copies = found.items.labels or [], copies_of_examples(fitted, found)
                names, quiet = found.items.names, given.quiet
                report_copies(copies, names, labels, fitted, allow_contradictions=allow_contradictions, quiet=quiet)
                fitted.add(found, labels)
        fitted.save(path)
    added = count(len(fitted.names) - n_before, "examples")
    say_result(summary(fitted, path), f"Added {added}; {in_words(fitted, path)}.", as_json=given.as_json)


def _groups(images: Sequence[str], label: str | None) -> dict[str, list[str]]:
    """Sort paths by class; the class of a table with labels of its own is empty."""
    if label is not None:
        if not label.strip():
            refuse("Expected --label to be the name of a class, but it is empty.")
        return {label: list(images)}
    groups: dict[str, list[str]] = {}
    for argument in images:
        name, equals, path = argument.partition("=")
        if Path(argument).is_file() and not equals:
            name, path = "", argument
        elif not equals or not name.strip() or not path:
            refuse(f"Expected CLASS=PATH, a table with labels, or --label for all images, but got {argument!r}.")
        groups.setdefault(name, []).append(path)
    return groups


def _labelled(items: "Items", name: str) -> "Items":
    """Items with the class that the user named, or else with those of their table."""
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

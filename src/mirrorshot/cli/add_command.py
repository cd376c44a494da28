"""`mirrorshot add`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from mirrorshot.cli.models import load_model, report_copies, summary
from mirrorshot.cli.options import (
    AsJson,
    Contradictions,
    Download,
    EditedFile,
    ModelFile,
    Quiet,
    SkipCorrupt,
    TextColumn,
    Trust,
    examples,
)
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import refuse, say, say_json, short_work

ADD_EXAMPLES = examples(
    {
        "mirrorshot add model.mirrorshot owl=photos/owls/ wren=wren.jpg": "More examples of old or new classes.",
        "mirrorshot add model.mirrorshot IMG_1.jpg IMG_2.jpg --label owl": "Several images of one class.",
    }
)


def add(
    model: ModelFile,
    pictures: Annotated[
        list[str], typer.Argument(help="CLASS=PATH, or images and folders with --label.", metavar="IMAGES")
    ],
    label: Annotated[str | None, typer.Option("--label", "-l", help="Class of all the images.")] = None,
    output: EditedFile = None,
    download: Download = False,
    trust_encoder: Trust = False,
    text_column: TextColumn = None,
    skip_corrupt: SkipCorrupt = False,
    allow_contradictions: Contradictions = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Add examples to a model, also of new classes. Nothing is trained again."""
    groups, path = _groups(pictures, label), output or model
    with short_work():
        from mirrorshot.tool import encode_items, read_unlabelled
        from mirrorshot.tool.copies import copies_of_examples
        from mirrorshot.tool.encoding import check_damaged

        fitted = load_model(model, trust_encoder=trust_encoder, download=download)
        batches = {name: read_unlabelled(paths, text_column=text_column) for name, paths in groups.items()}
        with progress_bar(quiet=quiet) as stage:
            for name, items in batches.items():
                found = encode_items(fitted.encoder, items, thumbnails=True, progress=stage(f"Adding {name}"))
                check_damaged(found, skip_corrupt)
                labels = [name] * len(found.embeddings)
                report_copies(
                    copies_of_examples(fitted, found), found.items.names, labels, fitted,
                    allow_contradictions=allow_contradictions, quiet=quiet,
                )  # fmt: skip
                fitted.add(found, labels)
        fitted.save(path)
    if as_json:
        say_json(summary(fitted, path))
    else:
        n = sum(len(items.names) for items in batches.values())
        say(f"Added {n} examples; {path} has {len(fitted.names)} of {len(fitted.classes)} classes.")


def _groups(images: Sequence[str], label: str | None) -> dict[str, list[str]]:
    """Sort paths by class."""
    if label is not None:
        if not label.strip():
            refuse("Expected --label to be the name of a class, but it is empty.")
        return {label: list(images)}
    groups: dict[str, list[str]] = {}
    for argument in images:
        name, equals, path = argument.partition("=")
        if not equals or not name.strip() or not path:
            refuse(f"Expected CLASS=PATH, or --label for all images, but got {argument!r}.")
        groups.setdefault(name, []).append(path)
    return groups

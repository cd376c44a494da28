"""`mirrorshot suggest`."""

from typing import Annotated

import typer

from mirrorshot.cli.models import end_with_damaged, read_queries
from mirrorshot.cli.options import ModelFile, Reading, examples
from mirrorshot.cli.terminal import say_result, short_work, shown


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
    """List the images to label next: those whose labels would make the predictions for all of them surest."""
    with short_work():
        fitted, found = read_queries(model, pool, given, "Reading")
        names = [shown(name) for name in fitted.suggest(found, k)]
    say_result(names, "\n".join(names), as_json=given.as_json)
    end_with_damaged(found)

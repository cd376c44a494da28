"""`mirrorshot prior`."""

from pathlib import Path
from typing import Annotated

from mirrorshot.cli.models import read_examples
from mirrorshot.cli.options import Encoding, examples, labelled_argument, output_option
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import prepare_file, say_result, short_work


@examples(
    {
        "mirrorshot prior background/ -e efficientnet-lite2 -o photos.prior": "A folder for each of ten classes or "
        "more, with ten images or more each; other classes than those you will classify.",
        "mirrorshot prior embeddings.npz -o mine.prior": "Embeddings X and labels y of an encoder of your own.",
    },
    "Then: [cyan]mirrorshot fit support/ --prior photos.prior[/cyan], or in Python "
    "[cyan]FewShotClassifier(prior=Prior.load('photos.prior'))[/cyan]",
)
def prior(
    background: Annotated[Path, labelled_argument(metavar="BACKGROUND")],
    given: Encoding,
    output: Annotated[Path, output_option(help="File to write.")] = Path("background.prior"),
) -> None:
    """Learn what many labelled images show of an encoder, for classifiers of other classes.

    Images are also encoded blurred and in shades of grey: the prior holds on worse images than its own.
    """
    prepare_file("--output", output, inputs=(background,))
    with short_work():
        from mirrorshot.tool.background import background_prior

        items, chosen = read_examples(background, given)
        with progress_bar(quiet=given.quiet) as stage:
            found = background_prior(items, chosen, learned_on=background.name, progress=stage("Encoding"))
        found.save(output)
    record = {"output": str(output), "encoder": found.encoder, "centre": found.centre, **found.temperature._asdict()}
    say_result(record, f"Prior of {found.encoder}: {output}", as_json=given.as_json)

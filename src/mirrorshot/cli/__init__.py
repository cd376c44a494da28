"""The command `mirrorshot`.

torch, scikit-learn and matplotlib are imported inside the commands, so that `--help` and shell completion
are fast. Results go to stdout, progress and errors to stderr; `mirrorshot --help` lists the exit codes.
"""

from typing import Annotated

import typer

from mirrorshot.cli.demo_command import demo
from mirrorshot.cli.doctor_command import doctor
from mirrorshot.cli.edit_commands import add, export, remove
from mirrorshot.cli.evaluate_command import evaluate
from mirrorshot.cli.fit_command import fit, prior
from mirrorshot.cli.list_command import list_names
from mirrorshot.cli.options import EPILOGS, in_help, unfolded
from mirrorshot.cli.predict_command import explain, predict, suggest
from mirrorshot.cli.report_command import report
from mirrorshot.cli.reproduce_command import reproduce
from mirrorshot.cli.serve_command import serve
from mirrorshot.cli.terminal import Commands
from mirrorshot.cli.train_command import train

__all__ = ["main"]

_EXAMPLES = in_help(
    {
        "mirrorshot fit support/\nmirrorshot predict model.mirrorshot new-images/": "Learn classes from a folder with "
        "a few images for each, and classify others.",
        "mirrorshot evaluate model.mirrorshot test/": "Accuracy and calibration of that model on labelled images.",
        "mirrorshot serve": "The same in the browser, image by image.",
        "mirrorshot demo": "Train two methods and compare them on handwritten digits: one or two minutes, no download.",
        "mirrorshot train --data glyphs --episodes 2000": "Meta-train a Gaussian process by mirror descent.",
        "mirrorshot evaluate runs/glyphs-mirror_gp-1shot": "Accuracy and calibration of that run on classes it has "
        "never seen.",
        "mirrorshot report model.mirrorshot test/": "The same in one HTML file, with the mistakes as images; "
        "also for runs.",
        "mirrorshot reproduce departures": "A table or figure of the paper, beside the published one. Figure 3 needs "
        "pip install gpytorch.",
        "mirrorshot list methods": "Everything that can be chosen by name.",
    },
    "For embeddings you already have, no training is needed: [cyan]from mirrorshot import FewShotClassifier[/cyan]\n\n"
    "[bold]Exit codes[/bold]: 0 done, 1 failed, 2 wrong usage, 3 done, but some images could not be read, the doctor "
    "found errors, or a gate of `mirrorshot report` is not passed, 130 stopped with Ctrl-C.",
)

main = typer.Typer(
    name="mirrorshot",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"mirrorshot {version('mirrorshot')}")
        raise typer.Exit


@main.callback(epilog=_EXAMPLES)
def _mirrorshot(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Few-shot classification with probabilities that mean what they say."""


_PANELS = {  # panels of the help
    "Models": (fit, predict, evaluate, prior, add, remove, suggest, explain, doctor, export, serve),
    "Models and meta-training": (report, list_names),
    "Meta-training": (demo, train, reproduce),
}

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        _name = "list" if _command is list_names else None
        main.command(_name, epilog=EPILOGS[_command], rich_help_panel=_panel)(unfolded(_command))

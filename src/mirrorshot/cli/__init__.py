"""The command `mirrorshot`.

torch, scikit-learn and matplotlib are imported inside the commands, so that `--help` and shell completion
answer at once. Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage,
3 done, but some pictures could not be read, the doctor found errors, or a gate of `mirrorshot report` is not passed,
130 stopped with Ctrl-C.
"""

from typing import Annotated

import typer

from mirrorshot.cli.ask_commands import EXPLAIN_EXAMPLES, EXPORT_EXAMPLES, SUGGEST_EXAMPLES, explain, export, suggest
from mirrorshot.cli.demo_command import DEMO_EXAMPLES, demo
from mirrorshot.cli.doctor_command import DOCTOR_EXAMPLES, doctor
from mirrorshot.cli.edit_commands import ADD_EXAMPLES, REMOVE_EXAMPLES, add, remove
from mirrorshot.cli.evaluate_command import EVALUATE_EXAMPLES, evaluate
from mirrorshot.cli.fit_command import FIT_EXAMPLES, fit
from mirrorshot.cli.list_command import LIST_EXAMPLES, list_names
from mirrorshot.cli.predict_command import PREDICT_EXAMPLES, predict
from mirrorshot.cli.report_command import REPORT_EXAMPLES, report
from mirrorshot.cli.reproduce_command import REPRODUCE_EXAMPLES, reproduce
from mirrorshot.cli.serve_command import SERVE_EXAMPLES, serve
from mirrorshot.cli.terminal import package_version
from mirrorshot.cli.train_command import TRAIN_EXAMPLES, train

__all__ = ["main"]

_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot fit support/[/cyan]
[cyan]mirrorshot predict model.mirrorshot new-pictures/[/cyan]
Learn classes from a folder with a few pictures for each, and classify others.

[cyan]mirrorshot serve[/cyan]
The same in the browser, picture by picture.

[cyan]mirrorshot demo[/cyan]
Train two methods and compare them on handwritten digits: two to three minutes, no download.

[cyan]mirrorshot train --data glyphs --episodes 2000[/cyan]
Meta-train a Gaussian process by mirror descent.

[cyan]mirrorshot evaluate runs/glyphs-mirror_gp-1shot[/cyan]
What it is worth on classes it has never seen.

[cyan]mirrorshot report runs/a runs/b --max-ece 0.05[/cyan]
Everything about some runs in one HTML file, and a gate for scripts.

[cyan]mirrorshot reproduce figure3 --budget smoke[/cyan]
A table or figure of the paper, beside what it printed.

[cyan]mirrorshot list methods[/cyan]
What there is to choose from.

For embeddings you already have, no training is needed: [cyan]from mirrorshot import FewShotClassifier[/cyan]

[bold]Exit codes[/bold]: 0 done, 1 failed, 2 wrong usage, 3 done, but some pictures could not be read, the doctor
found errors, or a gate of `mirrorshot report` is not passed, 130 stopped with Ctrl-C.
"""

_PICTURES, _TRAINING = "Pictures", "Meta-training"  # panels of the help

main = typer.Typer(
    name="mirrorshot",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mirrorshot {package_version()}")
        raise typer.Exit


@main.callback(epilog=_EXAMPLES)
def _mirrorshot(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Few-shot classification with probabilities that mean what they say."""


main.command(epilog=FIT_EXAMPLES, rich_help_panel=_PICTURES)(fit)
main.command(epilog=PREDICT_EXAMPLES, rich_help_panel=_PICTURES)(predict)
main.command(epilog=ADD_EXAMPLES, rich_help_panel=_PICTURES)(add)
main.command(epilog=REMOVE_EXAMPLES, rich_help_panel=_PICTURES)(remove)
main.command(epilog=SUGGEST_EXAMPLES, rich_help_panel=_PICTURES)(suggest)
main.command(epilog=EXPLAIN_EXAMPLES, rich_help_panel=_PICTURES)(explain)
main.command(epilog=DOCTOR_EXAMPLES, rich_help_panel=_PICTURES)(doctor)
main.command(epilog=EXPORT_EXAMPLES, rich_help_panel=_PICTURES)(export)
main.command(epilog=SERVE_EXAMPLES, rich_help_panel=_PICTURES)(serve)
main.command(epilog=DEMO_EXAMPLES, rich_help_panel=_TRAINING)(demo)
main.command(epilog=TRAIN_EXAMPLES, rich_help_panel=_TRAINING)(train)
main.command(epilog=EVALUATE_EXAMPLES, rich_help_panel=_TRAINING)(evaluate)
main.command(epilog=REPORT_EXAMPLES, rich_help_panel=_TRAINING)(report)
main.command(epilog=REPRODUCE_EXAMPLES, rich_help_panel=_TRAINING)(reproduce)
main.command("list", epilog=LIST_EXAMPLES, rich_help_panel=_TRAINING)(list_names)

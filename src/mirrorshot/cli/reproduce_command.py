"""`mirrorshot reproduce`."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli import options
from mirrorshot.cli.completion import complete_budget, complete_target
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import check_folder, errors_as_messages, numbers, refuse, say, say_json, wrong_usage
from mirrorshot.paper import BUDGETS, TARGETS

if TYPE_CHECKING:
    from mirrorshot.paper.program import Reproduction, Request

_TARGETS = "\n".join(
    f"[cyan]{name:<11}[/cyan]{target.what} [dim]({target.cost})[/dim]\n" for name, target in TARGETS.items()
)
_CHOICES = f"""[bold]Targets[/bold], and their cost at the paper's budget

{_TARGETS}
[bold]Budgets[/bold]

[cyan]smoke[/cyan]  the glyphs of the package, hardly trained: minutes on two CPU cores; checks that everything runs.

[cyan]short[/cyan]  a tenth of the paper's training episodes, the paper's test.

[cyan]paper[/cyan]  the paper's episodes: 40,000 to 80,000 a cell; 5 x 600 test tasks.

"""

_what = partial(typer.Option, rich_help_panel="What")
_how = partial(typer.Option, rich_help_panel="How")
_where = partial(typer.Option, rich_help_panel="Where")


@options.examples(
    {
        "mirrorshot reproduce table1 --budget smoke --shots 1": "Every method of table 1 on the glyphs.",
        "mirrorshot reproduce table1 --dataset cub --method mirror_gp,dkt --seeds 1,2,3 --jobs 6": "Six trainings at a "
        "time, each a process of its own; they may share one GPU. Cells that have a result are not run again. A "
        "stopped training is resumed. Machines that share the folders of --results and --runs share the work.",
        "mirrorshot reproduce table1 --dataset cub --method 'ove_gp*' --seconds 500": "All rows of a method; no "
        "further training begins after 500 seconds.",
        "mirrorshot reproduce figure3 --dataset cub --shots 1": "Bound over steps for mirror descent, gradient "
        "descent, GPyTorch's natural gradient and the released formula.",
        "mirrorshot reproduce tables": "docs/results.md and docs/results_details.md from all results in --results.",
    },
    before=_CHOICES,
)
def reproduce(
    target: Annotated[
        str, typer.Argument(help="Table or figure; see below.", metavar="TARGET", autocompletion=complete_target)
    ],
    dataset: Annotated[
        str,
        options.data_option(
            help="Names with commas.", show_default="the paper's; with --budget smoke glyphs", rich_help_panel="What"
        ),
    ] = "",
    method: Annotated[
        str, _what(help="Methods or rows of the table with commas; patterns.", show_default="all rows")
    ] = "",
    shots: Annotated[
        str, _what(help="Labelled items of a class, numbers with commas.", show_default="the paper's")
    ] = "",
    seeds: Annotated[str, _what(help="Seeds of training, with commas.")] = "1",
    budget: Annotated[str, _how(help=f"{', '.join(BUDGETS)}.", autocompletion=complete_budget)] = "paper",
    preset: Annotated[
        str, options.preset_option(help="Settings to begin with: paper or default (ours).", rich_help_panel="How")
    ] = "paper",
    overrides: Annotated[
        list[str] | None,
        options.set_option(help="Another setting; may be repeated. Needs --tag.", rich_help_panel="How"),
    ] = None,
    tag: Annotated[str, _how(help="Ending of the names of results with other settings.")] = "",
    jobs: Annotated[int, _how(help="Trainings at a time, each a process.", min=1)] = 1,
    seconds: Annotated[
        float, _how(help="Begin no further training after this time.", min=0, show_default="no limit")
    ] = float("inf"),
    again: Annotated[bool, _how("--again", help="Also cells that have a result; their runs begin anew.")] = False,
    train_only: Annotated[
        bool, _how("--train-only", help="Do not test yet; the same command without this does, on any machine.")
    ] = False,
    results: Annotated[Path, _where(help="Folder of results.", metavar="FOLDER")] = Path("results"),
    runs: Annotated[Path, _where(help="Folder of runs.", metavar="FOLDER")] = Path("runs"),
    output: Annotated[
        Path | None,
        _where(
            help="Folder of tables and figures, for tables the page.",
            metavar="PATH",
            show_default="reproduction; docs/results.md",
        ),
    ] = None,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper: run the cells that have no result yet, then compare.

    Writes Markdown, CSV and JSON, figures as SVG and PNG, and a result with its provenance for every training.
    """
    if target not in TARGETS:
        refuse(f"Expected TARGET to be one of {', '.join(TARGETS)}, but got {target!r}.")
    check_folder("--results", results)
    is_page = target == "tables"
    place = output or Path("docs/results.md" if is_page else "reproduction")
    check_folder("--runs", runs)
    check_folder("--output", place.parent if is_page else place)
    given = numbers("--shots", shots, least=1) if shots else (), numbers("--seeds", seeds)
    with errors_as_messages():
        from mirrorshot.paper.cell_run import Places
        from mirrorshot.paper.program import Request, completed

        request = Request(
            target, _words(dataset), _words(method), *given, preset, budget, tuple(overrides or ()), tag,
            Places(results, runs), place, jobs, seconds, again, train_only,
        )  # fmt: skip
        with wrong_usage():
            completed(request)
        try:
            found = _run(request, quiet, as_json)
        except KeyboardInterrupt:
            say("Stopped. The same command resumes it.", err=True)
            raise typer.Exit(130) from None
    _print(found, as_json)
    if found.failures:
        say(f"Error: {found.failures}", err=True)
        raise typer.Exit(1)


def _run(request: "Request", quiet: bool, as_json: bool) -> "Reproduction":
    from mirrorshot.files.freed_memory import keep_freed_memory
    from mirrorshot.paper.program import reproduce as work

    keep_freed_memory()

    def tell(line: str) -> None:
        if not quiet:
            say(line, err=as_json)

    if not sys.stderr.isatty():
        return work(request, say=tell)
    with progress_bar(quiet=quiet) as stage:
        return work(request, say=tell, progress=stage)


def _print(found: "Reproduction", as_json: bool) -> None:
    from mirrorshot.paper import tables

    if as_json:
        sheets = [tables.as_json(sheet) for sheet in found.sheets]
        cells = [{"name": o.cell.name, "status": o.status, "detail": o.detail} for o in found.outcomes]
        say_json({"tables": sheets, "cells": cells, "files": [str(path) for path in found.files]})
        return
    for sheet in found.sheets:
        say(tables.markdown(sheet))
    for path in found.files:
        say(f"written: {path}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))

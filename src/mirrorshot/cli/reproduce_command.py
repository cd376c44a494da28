"""`mirrorshot reproduce`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli.names import complete_budget, complete_data, complete_preset, complete_setting, complete_target
from mirrorshot.cli.terminal import check_folder, errors_as_messages, progress_bar, refuse, wrong_usage
from mirrorshot.paper import BUDGETS, TARGETS

if TYPE_CHECKING:
    from mirrorshot.paper.program import Reproduction, Request

_LIST = "\n".join(
    f"[cyan]{name:<11}[/cyan]{target.what} [dim]({target.cost})[/dim]\n" for name, target in TARGETS.items()
)

REPRODUCE_EXAMPLES = f"""[bold]Targets[/bold], and what they cost at the paper's budget

{_LIST}
[bold]Budgets[/bold]

[cyan]smoke[/cyan]  the glyphs of the package, hardly trained: minutes on two CPU cores; says whether everything runs.

[cyan]short[/cyan]  a tenth of the paper's training episodes, the paper's test.

[cyan]paper[/cyan]  the paper's episodes: 40,000 to 80,000 a cell; 5 x 600 test tasks.

[bold]Examples[/bold]

[cyan]mirrorshot reproduce table1 --budget smoke --shots 1[/cyan]
Every method of table 1 on the glyphs.

[cyan]mirrorshot reproduce table1 --dataset cub --method mirror_gp,dkt --seeds 1,2,3 --jobs 6[/cyan]
Six trainings at a time, each a process of its own; they may share one GPU. Cells that have a result are not run again.
A stopped training is resumed. Machines that share the folders of --results and --runs share the work.

[cyan]mirrorshot reproduce table1 --dataset cub --method 'ove_gp*' --seconds 500[/cyan]
All rows of a method; no further training begins after 500 seconds.

[cyan]mirrorshot reproduce figure3 --dataset cub --shots 1[/cyan]
Bound over steps for mirror descent, gradient descent, GPyTorch's natural gradient and the released formula.

[cyan]mirrorshot reproduce tables[/cyan]
docs/results.md and docs/results_details.md from all results in --results.
"""

_WHAT, _HOW, _WHERE = "What", "How", "Where"  # panels of the help


def reproduce(
    target: Annotated[str, typer.Argument(help="What to reproduce; see below.", autocompletion=complete_target)],
    dataset: Annotated[
        str, typer.Option(help="Names with commas.", autocompletion=complete_data, rich_help_panel=_WHAT,
                          show_default="the paper's; with --budget smoke glyphs")
    ] = "",
    method: Annotated[
        str, typer.Option(help="Methods or rows of the table with commas; patterns.", rich_help_panel=_WHAT,
                          show_default="all rows")
    ] = "",
    shots: Annotated[
        str, typer.Option(help="Labelled items of a class, numbers with commas.", rich_help_panel=_WHAT,
                          show_default="the paper's")
    ] = "",
    seeds: Annotated[str, typer.Option(help="Seeds of training, with commas.", rich_help_panel=_WHAT)] = "1",
    budget: Annotated[
        str, typer.Option(help=f"{', '.join(BUDGETS)}.", autocompletion=complete_budget, rich_help_panel=_HOW)
    ] = "paper",
    preset: Annotated[
        str, typer.Option(help="Settings to begin with: paper or default (ours).", autocompletion=complete_preset,
                          rich_help_panel=_HOW)
    ] = "paper",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another setting; may be repeated. Needs --tag.", metavar="NAME=VALUE",
                     autocompletion=complete_setting, rich_help_panel=_HOW),
    ] = None,
    tag: Annotated[str, typer.Option(help="Ending of the names of results with other settings.",
                                     rich_help_panel=_HOW)] = "",
    jobs: Annotated[int, typer.Option(help="Trainings at a time, each a process.", min=1, rich_help_panel=_HOW)] = 1,
    seconds: Annotated[
        float, typer.Option(help="Begin no further training after this time.", min=0, rich_help_panel=_HOW,
                            show_default="no limit")
    ] = float("inf"),
    again: Annotated[
        bool, typer.Option("--again", help="Also what has a result; its run begins anew.", rich_help_panel=_HOW)
    ] = False,
    train_only: Annotated[
        bool,
        typer.Option("--train-only", help="No tests yet: those are for the same command without this, on any machine.",
                     rich_help_panel=_HOW),
    ] = False,
    results: Annotated[Path, typer.Option(help="Folder of results.", metavar="FOLDER", rich_help_panel=_WHERE)] = Path(
        "results"
    ),
    runs: Annotated[Path, typer.Option(help="Folder of runs.", metavar="FOLDER", rich_help_panel=_WHERE)] = Path(
        "runs"
    ),
    output: Annotated[
        Path | None,
        typer.Option(help="Folder of tables and figures, for tables the page.", metavar="PATH", rich_help_panel=_WHERE,
                     show_default="reproduction; docs/results.md"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=_WHERE)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=_WHERE)
    ] = False,
) -> None:  # fmt: skip
    """Reproduce a table or figure of the paper: run what has no result yet, then compare.

    Writes Markdown, CSV and JSON, figures as SVG and PNG, and a result with its provenance for every training.
    """
    if target not in TARGETS:
        refuse(f"Expected TARGET to be one of {', '.join(TARGETS)}, but got {target!r}.")
    check_folder("--results", results)
    if target == "tables":
        _refuse_options_of_others(
            {"--dataset": dataset, "--method": method, "--shots": shots, "--set": overrides, "--tag": tag,
             "--again": again, "--train-only": train_only, "--json": as_json}
        )  # fmt: skip
        _page(results, output or Path("docs/results.md"))
        return
    check_folder("--runs", runs)
    check_folder("--output", output or Path("reproduction"))
    numbers = {"--shots": _numbers("--shots", shots, 1), "--seeds": _numbers("--seeds", seeds, 0)}
    with errors_as_messages():
        from mirrorshot.paper.program import Request, completed
        from mirrorshot.paper.runner import Places

        request = Request(
            target, _words(dataset), _words(method), numbers["--shots"], numbers["--seeds"], preset, budget,
            tuple(overrides or ()), tag, Places(results, runs), output or Path("reproduction"), jobs, seconds, again,
            train_only,
        )  # fmt: skip
        with wrong_usage():
            completed(request)
        try:
            found = _run(request, quiet, as_json)
        except KeyboardInterrupt:
            typer.echo("Stopped. The same command resumes it.", err=True)
            raise typer.Exit(130) from None
    _print(found, as_json)
    if found.failures:
        typer.echo(f"Error: {found.failures}", err=True)
        raise typer.Exit(1)


def _run(request: "Request", quiet: bool, as_json: bool) -> "Reproduction":
    import sys

    from mirrorshot.paper.program import reproduce as work

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=as_json)
            (sys.stderr if as_json else sys.stdout).flush()

    if not sys.stderr.isatty():
        return work(request, say=say)
    with progress_bar(quiet=quiet) as stage:
        return work(request, say=say, progress=stage)


def _print(found: "Reproduction", as_json: bool) -> None:
    from mirrorshot.paper import tables

    if as_json:
        sheets = [tables.as_json(sheet) for sheet in found.sheets]
        cells = [{"name": o.cell.name, "status": o.status, "detail": o.detail} for o in found.outcomes]
        record = {"tables": sheets, "cells": cells, "files": [str(path) for path in found.files]}
        typer.echo(json.dumps(record, indent=2, allow_nan=False))
        return
    for sheet in found.sheets:
        typer.echo(tables.markdown(sheet))
    for path in found.files:
        typer.echo(f"written: {path}")


def _refuse_options_of_others(given: dict[str, object]) -> None:
    wrong = next((name for name, value in given.items() if value), None)
    if wrong is not None:
        refuse(f"Expected tables without {wrong}, since it makes the page of all results that there are, but got it.")


def _page(results: Path, page: Path) -> None:
    check_folder("--output", page.parent)
    with errors_as_messages():
        from mirrorshot.paper.page import write_results

        for path in write_results(results, page):
            typer.echo(f"written: {path}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    try:
        numbers = [int(word) for word in _words(text)]
    except ValueError:
        refuse(f"Expected {option} to be numbers with commas, for instance 1,5, but got {text!r}.")
    if option == "--seeds" and not numbers:
        refuse(f"Expected {option} to be numbers with commas, for instance 1,2,3, but got {text!r}.")
    if any(number < least for number in numbers):
        refuse(f"Expected {option} to be at least {least}, but got {text!r}.")
    return tuple(numbers)

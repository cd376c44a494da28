"""The command `mirrorshot`.

torch, scikit-learn and matplotlib are imported inside the commands, so that `--help` and shell completion
answer at once. Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mirrorshot.types import MirrorshotError

if TYPE_CHECKING:
    import matplotlib.figure
    import rich.table

    import mirrorshot.demo

_OUTPUT = Path("demo-output")

main = typer.Typer(
    name="mirrorshot",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mirrorshot {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib.metadata import version

    return version("mirrorshot")


@main.callback()
def _mirrorshot(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Few-shot classification with probabilities that mean what they say.

    [bold]Examples[/bold]

    [cyan]mirrorshot demo[/cyan]
    Compare with scikit-learn on handwritten digits; under a minute, no download.

    [cyan]mirrorshot demo --shots 2 --json[/cyan]
    The same at two examples per class, as JSON.

    [cyan]python -c "from mirrorshot import FewShotClassifier; help(FewShotClassifier)"[/cyan]
    How to classify your own embeddings.
    """


@main.command()
def demo(
    episodes: Annotated[int, typer.Option(help="Episodes for each number of examples.")] = 40,
    shots: Annotated[
        list[int] | None,
        typer.Option(help="Examples per class; may be given several times.", show_default="1, 5"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the episodes.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.", readable=False)] = _OUTPUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Classify handwritten digits from a few examples, and compare with scikit-learn.

    Five digits at a time, 15 pictures of each to classify, every method on the same episodes.
    Writes OUTPUT/reliability.png and OUTPUT/demo.json.

    [bold]Example[/bold]

    [cyan]mirrorshot demo --episodes 100 --shots 1 --shots 5 --shots 20[/cyan]
    """
    n_shots = list(dict.fromkeys(shots or [1, 5]))
    _check_options(episodes, n_shots, seed, output)
    # The matrices are tiny: more threads would only wait for one another, in every method.
    # numpy and torch read this when they are imported, which is below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _errors_as_messages():
        from mirrorshot.demo import run_demo

        with _progress_bar(quiet) as progress:
            rows = run_demo(n_episodes=episodes, n_shots=n_shots, seed=seed, progress=progress)
        document = _write_results(rows, seed, output)
    if as_json:
        typer.echo(document, nl=False)
    else:
        _print_tables(rows, output)


def _check_options(episodes: int, n_shots: Sequence[int], seed: int, output: Path) -> None:
    """Refuse what cannot work before anything slow begins."""
    if episodes < 1:
        _refuse(f"Expected --episodes to be at least 1, but got {episodes}.")
    if min(n_shots) < 1:
        _refuse(f"Expected --shots to be at least 1, but got {min(n_shots)}.")
    if seed < 0:
        _refuse(f"Expected --seed not to be negative, but got {seed}.")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _refuse(f"Expected --output to be a folder that can be written, but got {output}: {error.strerror}.")
    if not os.access(output, os.W_OK | os.X_OK):
        _refuse(f"Expected --output to be a folder that can be written, but got {output}: no permission.")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(2)


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    """Show an expected failure as one line; anything else is a bug and keeps its traceback."""
    try:
        yield
    except (MirrorshotError, OSError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def _progress_bar(quiet: bool) -> Iterator[Any]:
    """A `Progress` callback that draws on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("loading", total=None)
        yield lambda done, total, label: bar.update(task, completed=done, total=total, description=label)


def _write_results(rows: Sequence["mirrorshot.demo.DemoRow"], seed: int, output: Path) -> str:
    """Write the picture and the numbers; return the numbers as JSON."""
    from mirrorshot.demo import N_QUERY, N_WAY, as_records
    from mirrorshot.plotting import save_figure

    save_figure(_picture(rows), output / "reliability.png")
    setting = {"version": _version(), "seed": seed, "n_way": N_WAY, "n_query": N_QUERY}
    document = json.dumps({**setting, "rows": as_records(rows)}, indent=2, allow_nan=False) + "\n"
    (output / "demo.json").write_text(document, encoding="utf-8")
    return document


def _picture(rows: Sequence["mirrorshot.demo.DemoRow"]) -> "matplotlib.figure.Figure":
    """Reliability of mirrorshot beside logistic regression as scikit-learn sets it; one row per number of examples."""
    from mirrorshot.demo import logistic_name
    from mirrorshot.plotting import ReliabilityDisplay, reliability_figure

    displays: dict[int, list[ReliabilityDisplay]] = {}
    for row in rows:
        if row.method in ("mirrorshot", logistic_name(1)) and row.scores is not None:
            name = f"{row.method}\n{_examples(row.n_shot)}"
            displays.setdefault(row.n_shot, []).append(ReliabilityDisplay(row.scores.bins, name=name))
    return reliability_figure(list(displays.values()))


def _print_tables(rows: Sequence["mirrorshot.demo.DemoRow"], output: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    n_shots = list(dict.fromkeys(row.n_shot for row in rows))
    for n_shot in n_shots:
        console.print(_table([row for row in rows if row.n_shot == n_shot]))
    console.print(_legend(rows, n_shots), markup=False)
    typer.echo(f"\nReliability diagram: {output / 'reliability.png'}\nNumbers: {output / 'demo.json'}")


def _legend(rows: Sequence["mirrorshot.demo.DemoRow"], n_shots: Sequence[int]) -> str:
    from mirrorshot.demo import best_regularisation

    best = ", ".join(f"C={best_regularisation(rows, n)} at {_examples(n)}" for n in n_shots)
    return (
        "* best of its column. n: episodes. NLL: nats per query. ECE: 15 bins over the queries of all episodes. "
        "ms: median time to fit and predict one episode.\n\n"
        f"Which C suits LogisticRegression (by NLL: {best}) is known only by looking at the labels of the test "
        "queries. mirrorshot chose its parameters by itself, from the examples it was given."
    )


def _table(rows: Sequence["mirrorshot.demo.DemoRow"]) -> "rich.table.Table":
    """The methods at one number of examples."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from mirrorshot.demo import N_WAY

    title = f"Handwritten digits, {N_WAY} classes, {_examples(rows[0].n_shot)}"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold")
    for name in ("n", *_COLUMNS):
        table.add_column(name, justify="right")
    best = {name: _best(rows, name) for name in _COLUMNS}
    for row in rows:
        cells = [_cell(row, name, best[name]) for name in _COLUMNS]
        note = f"\n  [dim]{row.note}[/dim]" if row.note else ""
        table.add_row(row.method + note, str(row.n_episodes), *cells)
    return table


# heading: (field of Scores, format, whether more is better)
_COLUMNS = {
    "accuracy": ("accuracy", ".1%", True),
    "NLL": ("nll", ".3f", False),
    "ECE": ("ece", ".3f", False),
    "ms": ("milliseconds", ".1f", False),
}


def _best(rows: Sequence["mirrorshot.demo.DemoRow"], column: str) -> str:
    """The best value as it is printed: who shows the same digits shares the first place."""
    field, style, more_is_better = _COLUMNS[column]
    values = [getattr(row.scores, field) for row in rows if row.scores is not None]
    return format(max(values) if more_is_better else min(values), style)


def _cell(row: "mirrorshot.demo.DemoRow", column: str, best: str) -> str:
    if row.scores is None:
        return "- "
    field, style, _ = _COLUMNS[column]
    text = format(getattr(row.scores, field), style)
    return f"[bold green]{text}*[/bold green]" if text == best else f"{text} "


def _examples(n_shot: int) -> str:
    return f"{n_shot} example{'s' if n_shot > 1 else ''} per class"

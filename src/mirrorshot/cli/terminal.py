"""What all commands share: errors as one line, progress on stderr, tables on stdout."""

import os
import shlex
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from mirrorshot.files.texts import harmless
from mirrorshot.types import InvalidInputError, MirrorshotError

if TYPE_CHECKING:
    import rich.console
    import rich.table

    from mirrorshot.views import Table

Progress = Callable[[int, int, str], None]
"""Called with how much is done, how much there is, and what it is."""

_QUIET_SECONDS = 30.0  # between two lines where stderr is no terminal


def package_version() -> str:
    """Version of the package."""
    from importlib.metadata import version

    return version("mirrorshot")


def say(text: str, *, err: bool = False) -> None:
    """A line of text on stdout or stderr. Names of strangers in it cannot steer the terminal."""
    typer.echo(harmless(text), err=err)


def make_console(**options: Any) -> "rich.console.Console":
    """A console for tables, on which names of strangers cannot steer the terminal either."""
    from mirrorshot.cli.console import HarmlessConsole

    return HarmlessConsole(highlight=False, **options)


def is_first_process() -> bool:
    """Whether this process is alone or the first of those that `torchrun` started: only that one prints."""
    return os.environ.get("RANK", "0") == "0"


def quoted(path: Path) -> str:
    """A path as a word of a command line to copy, for the shell of this system."""
    return subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))


def refuse(message: str) -> NoReturn:
    """Wrong usage: one line, and exit code 2."""
    _complain(message)
    raise typer.Exit(2)


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Wrong settings within the block are wrong usage."""
    try:
        yield
    except InvalidInputError as error:
        refuse(str(error))


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Show an expected failure as one line; anything else is a bug and keeps its traceback. Warnings are lines too."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except (MirrorshotError, OSError) as error:
            _complain(str(error))
            raise typer.Exit(1) from error


def _complain(message: str) -> None:
    if is_first_process():
        say(f"Error: {_one_line(message)}", err=True)
    else:  # of a process whose failure may be its own
        say(f"Error in process {os.environ['RANK']}: {_one_line(message)}", err=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    if is_first_process():
        say(f"Warning: {_one_line(str(message))}", err=True)


def _one_line(message: str) -> str:
    return " ".join(line.strip() for line in message.splitlines())


def check_folder(option: str, path: Path) -> None:
    """Refuse a folder that cannot be made or written, before anything slow begins."""
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        refuse(f"Expected {option} to be a folder that can be written, but got {path}: {nearest} is no folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        refuse(f"Expected {option} to be a folder that can be written, but got {path}: no permission.")


def check_page(option: str, path: Path) -> None:
    """Refuse a name that is none of a page, or a folder that cannot be written, before anything slow begins."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        refuse(f"Expected {option} to be a file that ends in .html, but got {str(path)!r}.")
    check_folder(option, path.parent)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[str], Progress]]:
    """Draws on stderr what goes on, a bar for each stage: calling what it yields begins one.

    Where stderr is no terminal, for instance in a log file, there is a plain line every half minute instead.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not is_first_process():
        yield lambda stage: _say_nothing
    elif not console.is_terminal:
        yield _Lines
    else:
        with _rich_bar(console) as bar:
            yield lambda stage: _stage_of_bar(bar, stage)


def _say_nothing(done: int, total: int, label: str) -> None:
    return


def _rich_bar(console: Any) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.fields[stage]}", style="bold", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]left"),
        Remaining(),
        TextColumn("{task.description}", markup=False),
    )
    return Progress(*columns, console=console, transient=True, speed_estimate_period=120)


def _stage_of_bar(bar: Any, stage: str) -> Progress:
    for task in bar.task_ids:
        bar.remove_task(task)
    task = bar.add_task("", total=None, stage=harmless(stage, keep=""))
    return lambda done, total, label: bar.update(
        task, completed=done, total=total, description=harmless(label, keep="")
    )


class _Lines:
    """Progress as plain lines, not too many of them."""

    def __init__(self, stage: str) -> None:
        self.stage, self.said = stage, time.monotonic()

    def __call__(self, done: int, total: int, label: str) -> None:
        now = time.monotonic()
        if now - self.said >= _QUIET_SECONDS:
            self.said = now
            say(f"{self.stage}: {done:,} of {total:,}  {label}", err=True)


def print_tables(tables: "Sequence[Table]") -> None:
    """Tables of the report in the terminal, each with its protocol, unless it is that of the table before."""
    from rich.padding import Padding

    console = make_console()
    shown: dict[str, str] = {}
    for table in tables:
        console.print(_as_rich(table))
        if table.protocol != shown:
            facts = ", ".join(f"{name} {value}" for name, value in table.protocol.items())
            console.print(Padding(f"Protocol: {facts}.\n", (0, 0, 0, 1)), style="dim", markup=False)
            shown = dict(table.protocol)
    marked = {table.note for table in tables if table.best}
    for note in dict.fromkeys(table.note for table in tables if table.note):
        legend = "*: best of its column. " if note in marked else ""
        console.print(Padding(f"{legend}{note}\n", (0, 0, 0, 1)), style="dim", markup=False)


def print_text(text: str) -> None:
    """Paragraphs, wrapped between words, and an empty line."""
    from rich.padding import Padding

    make_console().print(Padding(text, (0, 0, 1, 1)), markup=False)


def _as_rich(table: "Table") -> "rich.table.Table":
    drawn = plain_table(table.caption, table.columns, numbers=range(1, len(table.columns)))
    above = ""
    for i, (name, *cells) in enumerate(table.rows):
        # the second row of a method has only what is new
        label = f"  {name[len(above) + 2 :]}" if above and name.startswith(f"{above}, ") else name
        drawn.add_row(label, *(_mark(cell, (i, c) in table.best) for c, cell in enumerate(cells, start=1)))
        above = name
    return drawn


def plain_table(title: str, columns: Sequence[str], *, numbers: Sequence[int] = ()) -> "rich.table.Table":
    """An empty table; columns of `numbers` are flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for c, name in enumerate(columns):
        table.add_column(name, justify="right" if c in numbers else "left", overflow="fold")
    return table


def _mark(cell: str, is_best: bool) -> str:
    from rich.markup import escape

    return f"[bold green]{escape(cell)}*[/bold green]" if is_best else f"{escape(cell)} "

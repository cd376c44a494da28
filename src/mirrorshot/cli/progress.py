"""Progress on stderr: a bar on a terminal, a line every half minute elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mirrorshot.cli.terminal import is_first_process, say
from mirrorshot.files.texts import harmless

if TYPE_CHECKING:
    from mirrorshot.data.decoding import Progress

_QUIET_SECONDS = 30.0  # between two lines where stderr is no terminal


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator["Callable[[str], Progress]"]:
    """Show progress while the block runs; yield a function that begins a stage with its own bar."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not is_first_process():
        yield lambda stage: lambda done, total, label: None
    elif not console.is_terminal:
        yield _Lines
    else:
        with _rich_bar(console) as bar:
            yield lambda stage: _stage_of_bar(bar, stage)


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


def _stage_of_bar(bar: Any, stage: str) -> "Progress":
    for task in bar.task_ids:
        bar.remove_task(task)
    task = bar.add_task("", total=None, stage=harmless(stage, keep=""))
    return lambda done, total, label: bar.update(
        task, completed=done, total=total, description=harmless(label, keep="")
    )


class _Lines:
    """Progress as plain lines, at most one every `_QUIET_SECONDS`."""

    def __init__(self, stage: str) -> None:
        self.stage, self.said = stage, time.monotonic()

    def __call__(self, done: int, total: int, label: str) -> None:
        now = time.monotonic()
        if now - self.said >= _QUIET_SECONDS:
            self.said = now
            say(f"{self.stage}: {done:,} of {total:,}  {label}", err=True)

"""Training and testing of cells: one after the other, or several processes at a time on one machine or GPU."""

import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from joblib import Parallel, delayed

from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.data.decoding import Progress
from mirrorshot.paper.cell_run import Places, Say, TenSeconds, cell_process, check_run, run_cell
from mirrorshot.paper.cells import Cell, has_result
from mirrorshot.types import InvalidInputError, MirrorshotError

Status = Literal["done", "trained", "has a result", "no time left", "failed"]


class Outcome(NamedTuple):
    """Status of a cell after a command."""

    cell: Cell
    status: Status
    detail: str = ""


def plan(cells: Sequence[Cell], places: Places, *, again: bool = False) -> list[Cell]:
    """The cells that have no result yet.

    Raises `InvalidInputError` for an invalid setting, and for a cell that has a result or a run with other settings.
    """
    found, refused = [], list[tuple[str, str]]()
    for cell in cells:
        try:
            if again or not has_result(cell, places.results):
                found.append(cell)
                if not again:
                    check_run(cell, places.runs / cell.name)
        except InvalidInputError as error:
            refused.append((cell.name, str(error)))
    if refused:
        others = f" Other cells with such a result or run: {', '.join(name for name, _ in refused[1:])}."
        raise InvalidInputError(refused[0][1] + others * (len(refused) > 1))
    return found


def run_cells(
    cells: Sequence[Cell],
    places: Places,
    *,
    say: Say,
    n_jobs: int = 1,
    seconds: float = float("inf"),
    again: bool = False,
    train_only: bool = False,
    progress: Callable[[str], Progress] | None = None,
) -> list[Outcome]:
    """Run the cells that have no result; with `again` also the others, whose runs begin anew.

    Of several jobs each is a process of its own, so that a crash or a full memory costs one cell only. They are started
    by joblib: `with joblib.parallel_config("dask"):` around the call starts them on other machines. No cell begins
    after `seconds`. `train_only` leaves the tests to a later call. `progress` makes a progress bar for a cell that runs
    in this process; without it `say` gets a line every ten seconds.
    """
    started, waiting = time.perf_counter(), plan(cells, places, again=again)
    outcomes = [Outcome(cell, "has a result") for cell in cells if cell not in waiting]
    data: dict[str, Dataset] = {}

    def one(cell: Cell) -> Outcome:
        elapsed = time.perf_counter() - started
        if elapsed > seconds:
            say(f"{cell.name}: no time left")
            return Outcome(cell, "no time left")
        try:
            if not again and has_result(cell, places.results):  # of another machine, by now
                say(f"{cell.name}: has a result")
                return Outcome(cell, "has a result")
            say(f"{cell.name}: begins after {elapsed:.0f} s")
            if n_jobs > 1:
                _in_process(cell, places, n_jobs, say=say, train_only=train_only, again=again)
            else:
                if cell.data not in data:
                    data.clear()  # one at a time: they may be large
                    data[cell.data] = load_dataset(cell.data)
                bar = progress(cell.name) if progress else TenSeconds(say, cell.name)
                run_cell(cell, places, data[cell.data], progress=bar, say=say, train_only=train_only, again=again)
        except Exception as error:
            detail = str(error) if isinstance(error, MirrorshotError) else f"{type(error).__name__}: {error}"
            say(f"{cell.name}: failed: {detail}")
            return Outcome(cell, "failed", detail)
        return Outcome(cell, "trained" if train_only else "done")

    if n_jobs == 1:
        return outcomes + [one(cell) for cell in waiting]
    return outcomes + list(Parallel(n_jobs=n_jobs, prefer="threads")(delayed(one)(cell) for cell in waiting))


class CellError(MirrorshotError, RuntimeError):
    """A cell failed in a process of its own; the message is the last line of that process."""


def _in_process(cell: Cell, places: Places, n_jobs: int, *, say: Say, train_only: bool, again: bool) -> None:
    """Run a cell in a process of its own, and pass on what it says; raises `CellError` if it fails."""
    last = ""
    with cell_process(cell, places, n_jobs, train_only=train_only, again=again) as process:
        for line in map(str.rstrip, process.stdout or ()):
            say(line)
            last = line or last
    if process.returncode < 0:
        raise CellError(f"Ended by signal {-process.returncode}; if that was 9, perhaps for want of memory.")
    if process.returncode:
        raise CellError(last or f"Ended with exit code {process.returncode}.")

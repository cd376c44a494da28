"""Training and testing of cells, in sequence or in several processes, and estimates of their time."""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from joblib import Parallel, delayed

from mirrorshot.data.benchmarks import DATASETS, Dataset, load_dataset
from mirrorshot.data.decoding import Progress
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.cell_run import Places, Say, TenSeconds, cell_process, check_run, run_cell, stop_processes
from mirrorshot.paper.cells import Cell, Result, has_result
from mirrorshot.types import InvalidInputError, MirrorshotError

Status = Literal["done", "trained", "has a result", "no time left", "failed"]


class Outcome(NamedTuple):
    """Status of a cell after a command."""

    cell: Cell
    status: Status
    detail: str = ""


def plan(cells: Sequence[Cell], places: Places, *, again: bool = False) -> list[Cell]:
    """Return the cells that have no result yet.

    Raises `InvalidInputError` for invalid settings, and for existing results or runs with other settings.
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
    """Run the cells that have no result; with `again`, run all cells from the beginning.

    With several jobs, each cell is a process of its own, so that a crash or a lack of memory costs only one cell.
    joblib starts them: `with joblib.parallel_config("dask"):` around the call starts them on other machines. No cell
    begins after `seconds`. `train_only` leaves the tests to a later call. `progress` makes a progress bar for a cell in
    this process; without it, `say` gets a line every ten seconds.
    """
    started, waiting = time.perf_counter(), plan(cells, places, again=again)
    outcomes = [Outcome(cell, "has a result") for cell in cells if cell not in waiting]
    data: dict[str, Dataset] = {}
    processes: list[subprocess.Popen[str]] = []
    is_stopped = False

    def one(cell: Cell) -> Outcome:
        elapsed = time.perf_counter() - started
        if is_stopped or elapsed > seconds:
            say(f"{cell.name}: no time left")
            return Outcome(cell, "no time left")
        try:
            if not again and has_result(cell, places.results):  # another machine may have finished it
                say(f"{cell.name}: has a result")
                return Outcome(cell, "has a result")
            say(f"{cell.name}: begins after {elapsed:.0f} s")
            if n_jobs > 1:
                processes.append(cell_process(cell, places, n_jobs, train_only=train_only, again=again))
                _follow(processes[-1], say)
            else:
                if cell.data not in data:
                    data.clear()  # keep one data set only: they may be large
                    data[cell.data] = load_dataset(cell.data)
                bar = progress(cell.name) if progress else TenSeconds(say, cell.name)
                run_cell(cell, places, data[cell.data], progress=bar, say=say, train_only=train_only, again=again)
        except Exception as error:
            if is_stopped:
                return Outcome(cell, "no time left")
            detail = str(error) if isinstance(error, MirrorshotError) else f"{type(error).__name__}: {error}"
            say(f"{cell.name}: failed: {detail}")
            return Outcome(cell, "failed", detail)
        return Outcome(cell, "trained" if train_only else "done")

    if n_jobs == 1:
        return outcomes + [one(cell) for cell in waiting]
    try:
        return outcomes + list(Parallel(n_jobs=n_jobs, prefer="threads")(delayed(one)(cell) for cell in waiting))
    finally:  # after an interrupt: only a terminal sends it to the processes, too
        is_stopped = True
        stop_processes(processes)


class CellError(MirrorshotError, RuntimeError):
    """A cell failed in its own process; the message is the last line of its output."""


def _follow(process: "subprocess.Popen[str]", say: Say) -> None:
    """Forward the output of a cell's process until it ends; raise `CellError` if it fails."""
    last = ""
    with process:
        for line in map(str.rstrip, process.stdout or ()):
            say(line)
            last = line or last
    if process.returncode < 0:
        raise CellError(f"Ended by signal {-process.returncode}; if that was 9, perhaps for want of memory.")
    if process.returncode:
        raise CellError(last or f"Ended with exit code {process.returncode}.")


class Estimate(NamedTuple):
    """Seconds of training and test, and the device of the measurement; None and "" if nothing was measured.

    `is_own` is false if the times are those of other methods.
    """

    seconds: float | None
    device: str = ""
    is_own: bool = True


def estimate(cell: Cell, results: Sequence[Result], device: str) -> Estimate:
    """Estimate the time of a cell from the most similar results: of its row, else of its method, else of any method.

    Results of the same kind of device, GPU or CPU, come first. Results with another network or kind of data are not
    used, nor those of a resumed training, whose time is that of its last session.
    """
    config, kind = cell.config(), _kind(cell)
    similar = [r for r in results if _kind(r.cell) == kind and r.record["config"].get("backbone") == config.backbone]
    for is_cpu in (_is_cpu(device), not _is_cpu(device)):
        group = [r for r in similar if _has_time(r) and _is_cpu(r.record["device"]) == is_cpu]
        trained = _first(cell, group)
        if trained:
            rates = [r.record["training_time_s"] / r.record["config"]["n_episodes"] for r in trained]
            seconds = statistics.median(rates) * config.n_episodes + _testing(cell, group)
            is_own = trained[0].record["config"]["method"] == config.method
            return Estimate(seconds, trained[0].record["device"], is_own)
    return Estimate(None)


def _testing(cell: Cell, results: Sequence[Result]) -> float:
    """Return seconds of the test, scaled to its number of tasks; 0 if no test ran on the same kind of device."""
    tested = [r for r in results if "testing_time_s" in r.record and r.record.get("tested_with", {}).get("device")]
    tested = [r for r in tested if _is_cpu(r.record["tested_with"]["device"]) == _is_cpu(r.record["device"])]
    rates = [r.record["testing_time_s"] / n for r in _first(cell, tested) if (n := _n_tasks(r))]
    budget = BUDGETS[cell.budget]
    return statistics.median(rates) * budget.n_tasks * len(budget.seeds) if rates else 0.0


def _n_tasks(result: Result) -> int:
    protocol = result.evaluation["protocol"]
    n_tasks: int = protocol.get("n_tasks", 0) * len(protocol.get("seeds", ()))
    return n_tasks


def _first(cell: Cell, results: Sequence[Result]) -> list[Result]:

    def groups() -> Iterator[list[Result]]:
        same_row = [r for r in results if r.cell.row == cell.row]
        yield [r for r in same_row if (Path(r.cell.data).stem, r.cell.n_shot) == (Path(cell.data).stem, cell.n_shot)]
        yield same_row
        yield [r for r in results if r.record["config"]["method"] == cell.config().method]
        yield list(results)

    return next((group for group in groups() if group), [])


def _has_time(result: Result) -> bool:
    record = result.record
    return (
        {"training_time_s", "device"} <= set(record)
        and not record.get("is_resumed")
        and record["config"].get("n_episodes", 0) > 0
    )


def _kind(cell: Cell) -> tuple[str, bool]:
    """Return the kind of data, and whether this is a smoke test, whose time is mostly validation."""
    kind = DATASETS[cell.data].kind if cell.data in DATASETS else Path(cell.data).stem
    return kind, cell.budget == "smoke"


def _is_cpu(device: str) -> bool:
    return device.startswith("CPU")


def in_words(seconds: float) -> str:
    """Format a time in seconds, minutes or hours.

    Example:
        >>> in_words(40), in_words(1000), in_words(20_000)
        ('40 s', '17 min', '5.6 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def announcement(cells: Sequence[Cell], results: Sequence[Result], device: str, n_jobs: int = 1) -> list[str]:
    """Return lines with the estimated time of each cell and of all, and the device of the measurement."""
    found = {cell: estimate(cell, results, device) for cell in cells}
    sums: dict[str, list[float]] = {}
    for known in found.values():
        if known.seconds is not None:
            sums.setdefault(known.device, []).append(known.seconds)
    parts = [f"{len(times)} of them about {in_words(sum(times))} on {name}" for name, times in sums.items()]
    if n_unknown := sum(known.seconds is None for known in found.values()):
        parts.append(f"{n_unknown} of them were never measured")
    shared = f" {n_jobs} at a time share the device, and may save less than it seems." if n_jobs > 1 else ""
    total = f"{len(cells)} cells to run, one after the other: {'; '.join(parts)}.{shared} This device: {device}."
    return [*(f"{cell.name}: {_words(known)}" for cell, known in found.items()), total]


def _words(known: Estimate) -> str:
    if known.seconds is None:
        return "not measured"
    how = "about" if known.is_own else "by the times of other methods"
    return f"{how} {in_words(known.seconds)} on {known.device}"

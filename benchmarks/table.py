r"""Run the missing cells of table 1 by priority, within a time budget, and resume on any machine.

    python benchmarks/table.py                                    # lists what is missing, with estimates; runs nothing
    export MIRRORSHOT_DATA=FOLDER
    python benchmarks/table.py --run --jobs 6 --keep $OUT         # nine minutes on a GPU; repeat until nothing is left
    python benchmarks/table.py --fetch FOLDER                     # unpack the archives of $OUT to results/ and runs/
    mirrorshot reproduce tables                                   # write the pages

The table has 17 rows x 6 cells with the preset `default`, three seeds for MD-BFSC and for the rivals of `--repeated`,
and MD-BFSC with the preset `paper`, three seeds. A cell is missing if it has no result, or a result with other settings
(shortened, or of an earlier preset), which is replaced. Order: MD-BFSC, its further seeds, cells without any result,
the rivals with their seeds, cells with a shortened result, the preset `paper`; in each group the quickest first.

Several cells share a GPU, by CUDA MPS if available. At the end of the budget, running cells are stopped; the next call
resumes them from their last checkpoint. `--keep` is for a lent machine: results are archived as soon as a cell is
finished, and checkpoints of unfinished runs every minute, in at most six further archives of up to 15 MiB.
"""

import argparse
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import _lent
from _common import RESULTS, table
from mirrorshot.paper.cell_run import Places, cell_process, check_run, stop_processes
from mirrorshot.paper.cells import Cell, Result, has_result, read_results
from mirrorshot.paper.published import DATA, ROWS
from mirrorshot.paper.runner import estimate, in_words
from mirrorshot.types import InvalidInputError

REPEATED = ("dkt", "ove_gp_pl", "ove_gp", "baseline_pp", "relationnet")
SEEDS = (1, 2, 3)
_KEEP_EVERY = 60.0  # seconds


class Planned(NamedTuple):
    """A missing cell, its estimated seconds (None: never measured) and their device, and why it is missing."""

    cell: Cell
    seconds: float | None
    device: str
    reason: str


def wanted_cells(repeated: Iterable[str], results: Sequence[Result]) -> list[list[Cell]]:
    """Return the cells of the whole table in groups by priority."""
    columns = [(data, n_shot) for data in DATA for n_shot in (1, 5)]
    shown = {r.cell[:3] for r in results if r.cell.budget == "paper"}

    def cells(rows: Iterable[str], *seeds: int, preset: str = "default") -> list[Cell]:
        return [Cell(row, *column, preset, seed=seed) for seed in seeds for row in rows for column in columns]

    groups = [
        cells(["mirror_gp"], 1),
        cells(["mirror_gp"], *SEEDS[1:]),
        [cell for cell in cells(ROWS, 1) if cell[:3] not in shown],
        cells(repeated, *SEEDS),
        cells(ROWS, 1),
        cells(["mirror_gp"], *SEEDS, preset="paper"),
    ]
    seen: set[Cell] = set()
    for i, group in enumerate(groups):
        groups[i] = [cell for cell in group if cell not in seen]
        seen.update(group)
    return groups


def missing(groups: Iterable[Sequence[Cell]], folder: Path) -> list[Planned]:
    """Return the cells without a valid result, sorted in each group by seed and time."""
    results, found = read_results(folder), []
    for group in groups:
        part = []
        for cell in group:
            try:
                reason = "" if has_result(cell, folder) else "no result"
            except InvalidInputError as error:
                reason = str(error).partition("but got ")[2].partition(". Give --tag")[0]
            if reason:
                known = estimate(cell, results, "a GPU")
                part.append(Planned(cell, known.seconds, known.device, reason))
        found += sorted(part, key=lambda p: (p.cell.seed, float("inf") if p.seconds is None else p.seconds))
    return found


def run(
    plan: Sequence[Planned],
    start: Callable[[Cell], subprocess.Popen[str]],
    jobs: int,
    seconds: float,
    keep: Callable[[], None] = lambda: None,
) -> list[str]:
    """Run `jobs` processes at a time until the budget is spent or nothing is left; then stop running processes.

    `keep` is called after every cell, every minute and at the end. Returns the names of failed cells.
    """
    deadline, waiting, kept = time.monotonic() + seconds, list(plan), time.monotonic()
    running: dict[str, subprocess.Popen[str]] = {}
    failed: list[str] = []
    try:
        while (waiting or running) and time.monotonic() < deadline:
            ended = [name for name, process in running.items() if process.poll() is not None]
            for name in ended:
                code = running.pop(name).returncode
                failed += [name] * (code != 0)
                print(f"{name}: {'done' if code == 0 else f'failed, exit code {code}'}", flush=True)
            if ended or time.monotonic() - kept > _KEEP_EVERY:
                keep()
                kept = time.monotonic()
            while waiting and len(running) < jobs:
                cell = waiting.pop(0).cell
                running[cell.name] = start(cell)
                print(f"{cell.name}: begins", flush=True)
            time.sleep(0.2)
    finally:
        stop_processes(list(running.values()))
        for name in running:
            print(f"{name}: stopped; the next call continues it", flush=True)
        keep()
    print(f"{len(waiting) + len(running)} of {len(plan)} cells are left.")
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}")
    return failed


def starter(places: Places, jobs: int) -> Callable[[Cell], subprocess.Popen[str]]:
    """Return a function that starts a process for a cell; it resumes the run unless that has other settings."""

    def start(cell: Cell) -> subprocess.Popen[str]:
        return cell_process(cell, places, jobs, train_only=False, again=not is_current(cell, places), stdout=None)

    return start


def is_current(cell: Cell, places: Places) -> bool:
    """Return whether the run of a cell, if there is one, has the settings of the cell."""
    try:
        check_run(cell, places.runs / cell.name)
    except InvalidInputError:
        return False
    return True


def keep_all(folder: Path, plan: Sequence[Planned], places: Places) -> None:
    """Archive the results of the planned cells, and the runs of cells without a result."""
    done = [planned.cell for planned in plan if _is_done(planned.cell, places.results)]
    runs = [places.runs / p.cell.name for p in plan if p.cell not in done and is_current(p.cell, places)]
    begun = [run for run in runs if (run / "config.json").exists()]
    left_out = _lent.keep(folder, [places.results / f"{cell.name}.json" for cell in done], begun)
    if left_out:
        print(f"too large to be kept: {', '.join(left_out)}", flush=True)


def _is_done(cell: Cell, results: Path) -> bool:
    try:
        return has_result(cell, results)
    except InvalidInputError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the next cells; without it they are only listed")
    parser.add_argument("--jobs", type=int, default=6, help="cells at a time on one GPU")
    parser.add_argument("--budget-minutes", type=float, default=9.0)
    parser.add_argument("--repeated", default=",".join(REPEATED), help="rivals with three seeds")
    parser.add_argument("--only", default="", help="part of the names of the cells to run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="archives of results and of unfinished runs")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="unpack such archives, and run nothing")
    options = parser.parse_args()
    repeated = [row for row in options.repeated.split(",") if row]
    if unknown := set(repeated) - set(ROWS):
        parser.error(f"expected --repeated to be rows among {', '.join(ROWS)}, but got {', '.join(sorted(unknown))}")
    if options.fetch:
        names = _lent.fetch(options.fetch, options.results, options.runs)
        print("\n".join(names) or f"No archives in {options.fetch}.")
        return
    groups = wanted_cells(repeated, read_results(options.results))
    plan = [p for p in missing(groups, options.results) if options.only in p.cell.name]
    rows = [[p.cell.name, "?" if p.seconds is None else f"{p.seconds:.0f}", p.device, p.reason] for p in plan]
    print(table(["cell", "seconds", "measured on", "why"], rows))
    print(f"{len(plan)} cells, about {in_words(sum(p.seconds or 0.0 for p in plan))} one after the other.")
    if not options.run:
        return
    places = Places(options.results, options.runs)
    keep = partial(keep_all, options.keep, plan, places) if options.keep else lambda: None
    with _lent.multi_process_service() as is_shared:
        print(f"CUDA MPS: {'yes' if is_shared else 'no'}", flush=True)
        failed = run(plan, starter(places, options.jobs), options.jobs, 60 * options.budget_minutes, keep)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

r"""Run the missing cells of table 1, the next ones within a time budget, and resume anywhere.

    python benchmarks/table.py                                   # lists what is missing, with estimates; runs nothing
    MIRRORSHOT_DATA=FOLDER python benchmarks/table.py --run --jobs 6 --budget-minutes 9

All 17 rows x 6 cells with the preset `default`, three seeds for MD-BFSC and for the rivals of `--repeated`, and
MD-BFSC with the preset `paper`, three seeds. A cell is missing if it has no result, or one with other settings
(shortened, or of an earlier preset), which is replaced. Estimates come from the wall times in `results/`. At the end of
the budget the cells that run are stopped; the next call continues them from their last checkpoint, if `--runs` is kept.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from _common import RESULTS, table
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.paper.cells import Cell, Result, has_result, read_results
from mirrorshot.paper.published import DATA, ROWS
from mirrorshot.types import InvalidInputError

REPEATED = ("dkt", "ove_gp_pl", "ove_gp", "baseline_pp", "relationnet")
SEEDS = (1, 2, 3)
_UNKNOWN_TEST = 40.0  # seconds of a test that was never made on a GPU
_GRACE = 10.0  # seconds that a stopped process has to end


class Planned(NamedTuple):
    """A missing cell, its estimated seconds on a GPU, and why it is missing."""

    cell: Cell
    seconds: float
    reason: str


def wanted_cells(repeated: Iterable[str]) -> list[Cell]:
    """Cells of the whole table: first seeds first, then further seeds, then the preset `paper`."""
    columns = [(data, n_shot) for data in DATA for n_shot in (1, 5)]
    often = ("mirror_gp", *repeated)
    rows = [*often, *(row for row in ROWS if row not in often)]
    first = [Cell(row, *column, preset="default") for row in rows for column in columns]
    more = [Cell(row, *column, preset="default", seed=s) for s in SEEDS[1:] for row in often for column in columns]
    paper = [Cell("mirror_gp", *column, preset="paper", seed=s) for s in SEEDS for column in columns]
    return [*first, *more, *paper]


def missing(cells: Sequence[Cell], folder: Path) -> list[Planned]:
    """The cells without a valid result."""
    results, found = read_results(folder), []
    for cell in cells:
        try:
            reason = "" if has_result(cell, folder) else "no result"
        except InvalidInputError as error:
            reason = str(error).partition("but got ")[2].partition(". Give --tag")[0]
        if reason:
            found.append(Planned(cell, estimate(cell, results), reason))
    return found


def estimate(cell: Cell, results: Sequence[Result]) -> float:
    """Seconds of training and test, from the most similar results that were made on a GPU."""
    config, kind = cell.config(), DATASETS[cell.data].kind
    on_gpu = [r for r in results if "CPU" not in r.record["device"] and DATASETS[r.cell.data].kind == kind]
    rates = _first(
        [r.record["training_time_s"] / r.record["config"]["n_episodes"] for r in group]
        for group in (
            [r for r in on_gpu if (r.cell.row, r.cell.data, r.cell.n_shot) == (cell.row, cell.data, cell.n_shot)],
            [r for r in on_gpu if r.cell.row == cell.row],
            [r for r in on_gpu if r.record["config"]["method"] == config.method],
            on_gpu,
        )
    )
    tests = [
        r.record["testing_time_s"]
        for r in results
        if r.cell.row == cell.row and "CPU" not in r.record.get("tested_with", {}).get("device", "CPU")
    ]
    return statistics.median(rates) * config.n_episodes + (statistics.median(tests) if tests else _UNKNOWN_TEST)


def _first(groups: Iterable[list[float]]) -> list[float]:
    """The first group that has members; a hundredth of a second an episode if none has."""
    return next((group for group in groups if group), [0.01])


def run(plan: Sequence[Planned], start: Callable[[Cell], subprocess.Popen[str]], jobs: int, seconds: float) -> None:
    """Keep so many processes running until the budget is spent or nothing is left, then stop those that run."""
    deadline, waiting = time.monotonic() + seconds, list(plan)
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        while (waiting or running) and time.monotonic() < deadline:
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code = running.pop(name).returncode
                print(f"{name}: {'done' if code == 0 else f'failed, exit code {code}'}", flush=True)
            while waiting and len(running) < jobs:
                cell = waiting.pop(0).cell
                running[cell.name] = start(cell)
                print(f"{cell.name}: begins", flush=True)
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
        for name, process in running.items():
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            print(f"{name}: stopped; the next call continues it", flush=True)
    print(f"{len(waiting) + len(running)} of {len(plan)} cells are left.")


def starter(results: Path, runs: Path, jobs: int) -> Callable[[Cell], subprocess.Popen[str]]:
    """Start a cell as a process of its own, which resumes its run if there is one."""

    def start(cell: Cell) -> subprocess.Popen[str]:
        task = {"cell": cell, "places": [str(results), str(runs)], "train_only": False, "again": False}
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        environment = {"OMP_NUM_THREADS": threads, "PYTHONSAFEPATH": "1", **os.environ}
        command = [sys.executable, "-m", "mirrorshot.paper.runner", json.dumps(task)]
        return subprocess.Popen(command, env=environment, text=True)

    return start


def main() -> None:
    """List the missing cells; with --run, run the next ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the next cells; without it they are only listed")
    parser.add_argument("--jobs", type=int, default=6, help="cells at a time on one GPU")
    parser.add_argument("--budget-minutes", type=float, default=9.0)
    parser.add_argument("--repeated", default=",".join(REPEATED), help="rivals with three seeds")
    parser.add_argument("--only", default="", help="part of the names of the cells to run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    repeated = [row for row in options.repeated.split(",") if row]
    if unknown := set(repeated) - set(ROWS):
        parser.error(f"expected --repeated to be rows among {', '.join(ROWS)}, but got {', '.join(sorted(unknown))}")
    plan = [p for p in missing(wanted_cells(repeated), options.results) if options.only in p.cell.name]
    print(table(["cell", "seconds", "why"], [[p.cell.name, f"{p.seconds:.0f}", p.reason] for p in plan]))
    total = sum(p.seconds for p in plan)
    print(f"{len(plan)} cells, about {total / 3600:.1f} GPU hours one after the other.")
    if options.run:
        run(plan, starter(options.results, options.runs, options.jobs), options.jobs, 60 * options.budget_minutes)


if __name__ == "__main__":
    main()

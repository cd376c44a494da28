"""Training and testing of cells: one after the other, or several processes at a time on one machine or GPU.

`python -m mirrorshot.paper.runner TASK` runs one cell in a process of its own.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from joblib import Parallel, delayed

from mirrorshot.data import EpisodeSampler
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.data.decoding import Progress
from mirrorshot.files.lock import RunError, remove_run
from mirrorshot.methods import method_options
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.cells import Cell, commit, device_name, different_settings, has_result, read_result, save_result
from mirrorshot.paper.released import imitation
from mirrorshot.training import train
from mirrorshot.training.config import Config
from mirrorshot.training.folder import read_config, read_log
from mirrorshot.training.runs import evaluate_run, load_run
from mirrorshot.types import DataError, InvalidInputError, MirrorshotError

Say = Callable[[str], None]
Status = Literal["done", "trained", "has a result", "no time left", "failed"]
N_QUERY = 15
"""Items of each class to classify in a test task."""
_TRAINED = "training.json"  # in the folder of a run that is trained: where, when, how long


class Places(NamedTuple):
    """Folders of results and of runs. Machines that share both share the work."""

    results: Path
    runs: Path


class Outcome(NamedTuple):
    """Status of a cell after a command."""

    cell: Cell
    status: Status
    detail: str = ""


def plan(cells: Sequence[Cell], places: Places, *, again: bool = False) -> list[Cell]:
    """The cells that have no result yet.

    Raises `InvalidInputError` for an invalid setting, and for a cell that has a result or a run with other settings.
    """
    waiting = [cell for cell in cells if again or not has_result(cell, places.results)]
    for cell in waiting:
        config, folder = cell.config(), places.runs / cell.name
        is_begun = (folder / "config.json").exists() and not again
        if is_begun and (differences := different_settings(config, read_config(folder))):
            raise InvalidInputError(
                f"Expected the run in {folder} to have the settings asked for, but got {'; '.join(differences)}. "
                "Remove it, or give --again to begin it anew."
            )
    return waiting


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
        say(f"{cell.name}: begins after {elapsed:.0f} s")
        if n_jobs > 1:
            return _in_process(cell, places, n_jobs, train_only=train_only, again=again)
        try:
            if cell.data not in data:
                data.clear()  # one at a time: they may be large
                data[cell.data] = load_dataset(cell.data)
            bar = progress(cell.name) if progress else TenSeconds(say, cell.name)
            run_cell(cell, places, data[cell.data], progress=bar, say=say, train_only=train_only, again=again)
        except MirrorshotError as error:
            say(f"{cell.name}: failed: {error}")
            return Outcome(cell, "failed", str(error))
        return Outcome(cell, "trained" if train_only else "done")

    if n_jobs == 1:
        return outcomes + [one(cell) for cell in waiting]
    return outcomes + list(Parallel(n_jobs=n_jobs, prefer="threads")(delayed(one)(cell) for cell in waiting))


def _in_process(cell: Cell, places: Places, n_jobs: int, *, train_only: bool, again: bool) -> Outcome:
    folders = [str(folder) for folder in places]
    task = json.dumps({"cell": cell, "places": folders, "train_only": train_only, "again": again})
    threads = str(max(1, (os.cpu_count() or 1) // n_jobs))
    environment = {"OMP_NUM_THREADS": threads, "PYTHONSAFEPATH": "1", **os.environ}
    command = [sys.executable, "-m", "mirrorshot.paper.runner", task]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return Outcome(cell, "trained" if train_only else "done")
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return Outcome(cell, "failed", lines[-1])


def run_cell(
    cell: Cell, places: Places, dataset: Dataset, *, progress: Progress, say: Say, train_only: bool, again: bool
) -> None:
    """Train a cell or resume its run, test it, write the result; raises `MirrorshotError` if that is impossible."""
    config, folder = cell.config(), places.runs / cell.name
    if dataset.test is not None:  # invalid test tasks are refused before training
        EpisodeSampler(dataset.test, config.n_way, config.n_shot, N_QUERY, seed=1)
    if again and folder.exists():
        remove_run(folder)
    with imitation(config):
        trained = _trained(cell, folder, dataset, progress, say)
        if not train_only:
            _test(cell, places, dataset, trained, progress, say)


def _trained(cell: Cell, folder: Path, dataset: Dataset, progress: Progress, say: Say) -> dict[str, Any]:
    """Train unless that is done; return the record of the training."""
    if (folder / _TRAINED).exists():
        return _read_training(folder / _TRAINED)
    if torch.cuda.is_available():
        torch.compiler.reset()  # or functions that have met many networks are no longer compiled
    started, is_resumed = time.perf_counter(), (folder / "config.json").exists()
    result = train(cell.config(), folder, resume=is_resumed, dataset=dataset, progress=progress)
    seconds = time.perf_counter() - started
    say(f"{cell.name}: trained in {seconds:.1f} s, {1e3 * result.seconds / result.n_episodes:.3f} ms an episode")
    found = {"training_time_s": round(seconds, 1), "is_resumed": is_resumed, "best_validation": result.best}
    save_result(folder / _TRAINED, found, command=cell.command(), seed=cell.seed, started=started)
    return _read_training(folder / _TRAINED)


def _read_training(path: Path) -> dict[str, Any]:
    trained = read_result(path)
    if not {"commit", "device", "wall_time_s", "training_time_s"} <= set(trained):
        raise DataError(f"Expected {path} to say how the run was trained, but it does not. Run it with --again.")
    return trained


def _test(cell: Cell, places: Places, dataset: Dataset, trained: dict[str, Any], progress: Progress, say: Say) -> None:
    started, budget, folder = time.perf_counter(), BUDGETS[cell.budget], places.runs / cell.name
    run = load_run(folder, dataset, device="cuda" if torch.cuda.is_available() else "cpu")
    found = evaluate_run(
        run,
        dataset,
        n_query=N_QUERY,
        n_tasks=budget.n_tasks,
        seeds=budget.seeds,
        n_validation_tasks=budget.n_tasks,
        two_temperatures=cell.n_shot > 1 and cell.budget != "smoke",  # table 2 is of 5 shots; the search takes a minute
        progress=progress,
    )
    log, path, seconds = read_log(folder), places.results / f"{cell.name}.json", time.perf_counter() - started
    record = {
        **trained,  # commit and device are those of the training
        "wall_time_s": round(trained["wall_time_s"] + seconds, 1),
        "testing_time_s": round(seconds, 1),
        "tested_with": {"commit": commit(), "device": device_name()},
        "config": _whole(cell.config()),
        "evaluation": found.record(),
        # one text for each seed: a line for each task would make the file long
        "task_accuracy": [" ".join(f"{value:.4f}" for value in row) for row in found.task_accuracy.tolist()],
        "log": log[:: max(1, len(log) // 60)],
    }
    save_result(path, record, command=cell.command(), seed=cell.seed, started=started)
    say(f"{cell.name}: accuracy {100 * found.accuracy:.2f} ± {100 * found.accuracy_sd:.2f}, written: {path}")


def _whole(config: Config) -> dict[str, Any]:
    """The settings with all options of the method, so that they outlast a change of the defaults."""
    return {**config.to_dict(), "method_options": {**method_options(config.method), **config.method_options}}


class TenSeconds:
    """Progress of `name` as a line every ten seconds, passed to `say`."""

    def __init__(self, say: Say, name: str) -> None:
        self.say, self.name, self.last = say, name, time.perf_counter()

    def __call__(self, done: int, total: int, label: str) -> None:
        """Report progress, if ten seconds have passed."""
        if time.perf_counter() - self.last > 10:
            self.last = time.perf_counter()
            self.say(f"  {self.name}: {done}/{total} {label}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the cell that `_in_process` has described; exit code 1 and one line on stderr if it fails."""
    task = json.loads(sys.argv[1])
    cell, places = Cell._make(task["cell"]), Places._make(map(Path, task["places"]))
    cell, bar = cell._replace(changes=tuple(cell.changes)), TenSeconds(_say, cell.name)
    options = {"train_only": task["train_only"], "again": task["again"]}
    try:
        run_cell(cell, places, load_dataset(cell.data), progress=bar, say=_say, **options)
    except MirrorshotError as error:
        hint = " If another machine runs this cell, nothing is lost." if isinstance(error, RunError) else ""
        sys.stderr.write(" ".join(f"{error}{hint}".split()) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

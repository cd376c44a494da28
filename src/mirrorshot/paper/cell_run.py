"""Training and testing of one cell, in this process or, with `python -m mirrorshot.paper.cell_run TASK`, in another."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mirrorshot.data import EpisodeSampler
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.data.decoding import Progress
from mirrorshot.files.freed_memory import keep_freed_memory
from mirrorshot.files.lock import RunError, locked, remove_run
from mirrorshot.methods import method_options
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.cells import Cell, commit, device_name, different_settings, read_result, save_result
from mirrorshot.paper.released_cdkt import imitation
from mirrorshot.training import train
from mirrorshot.training.config import Config
from mirrorshot.training.folder import read_config, read_log
from mirrorshot.training.runs import evaluate_run, load_run
from mirrorshot.types import DataError, InvalidInputError, MirrorshotError

Say = Callable[[str], None]
N_QUERY = 15
"""Queries of each class in a test task."""
_GRACE = 10.0  # seconds before a terminated process is killed
_TRAINED = "training.json"  # record of a finished training, in the folder of the run


class Places(NamedTuple):
    """Folders of results and of runs. Machines that share both folders share the work."""

    results: Path
    runs: Path


def check_run(cell: Cell, folder: Path) -> None:
    """Refuse an existing run of a cell, begun or trained, if it has other settings than the cell."""
    if not (folder / "config.json").exists():
        return
    remedy = "Remove the run, or give --again to begin it anew."
    try:
        differences = different_settings(cell.config(), read_config(folder))
    except RunError as error:
        raise InvalidInputError(f"{error} {remedy}") from error
    if differences:
        raise InvalidInputError(
            f"Expected the run in {folder} to have the settings asked for, but got {'; '.join(differences)}. {remedy}"
        )


def run_cell(
    cell: Cell,
    places: Places,
    dataset: Dataset,
    *,
    progress: Progress,
    say: Say,
    train_only: bool,
    again: bool,
    n_jobs: int = 1,
) -> None:
    """Train a cell or resume its run, test it, and write the result. `n_jobs` is only recorded.

    Raises:
        MirrorshotError: the cell cannot be run.
    """
    config, folder = cell.config(), places.runs / cell.name
    if not again:
        check_run(cell, folder)
    if dataset.test is not None:  # refuse invalid test tasks before training
        EpisodeSampler(dataset.test, config.n_way, config.n_shot, N_QUERY, seed=1)
    if again and folder.exists():
        remove_run(folder)
    with imitation(config):
        trained = _trained(cell, folder, dataset, progress, say, n_jobs)
        if not train_only:
            with locked(folder):  # otherwise another machine could test the trained run at the same time
                _test(cell, places, dataset, trained, progress, say)


def _trained(cell: Cell, folder: Path, dataset: Dataset, progress: Progress, say: Say, n_jobs: int) -> dict[str, Any]:
    if (folder / _TRAINED).exists():
        return _read_training(folder / _TRAINED)
    if torch.cuda.is_available():
        torch.compiler.reset()  # after many networks, functions would exceed the limit of recompilations
    started, is_resumed = time.perf_counter(), (folder / "config.json").exists()
    result = train(cell.config(), folder, resume=is_resumed, dataset=dataset, progress=progress)
    seconds = time.perf_counter() - started
    say(f"{cell.name}: trained in {seconds:.1f} s, {1e3 * result.seconds / result.n_episodes:.3f} ms an episode")
    times = {"training_time_s": round(seconds, 1), "is_resumed": is_resumed, "jobs": n_jobs}
    found = {**times, "best_validation": result.best}
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
        two_temperatures=cell.n_shot > 1 and cell.budget != "smoke",  # table 2 has 5 shots; the search takes a minute
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
        # one string per seed keeps the file short
        "task_accuracy": [" ".join(f"{value:.4f}" for value in row) for row in found.task_accuracy.tolist()],
        "log": log[:: max(1, len(log) // 60)],
    }
    save_result(path, record, command=cell.command(), seed=cell.seed, started=started)
    say(f"{cell.name}: accuracy {100 * found.accuracy:.2f} ± {100 * found.accuracy_sd:.2f}, written: {path}")


def _whole(config: Config) -> dict[str, Any]:
    """Return the settings with all options of the method, so that later changes of defaults do not matter."""
    return {**config.to_dict(), "method_options": {**method_options(config.method), **config.method_options}}


class TenSeconds:
    """Progress callback that passes a line to `say` every ten seconds."""

    def __init__(self, say: Say, name: str) -> None:
        self.say, self.name, self.last = say, name, time.perf_counter()

    def __call__(self, done: int, total: int, label: str) -> None:
        """Report progress if ten seconds have passed."""
        if time.perf_counter() - self.last > 10:
            self.last = time.perf_counter()
            self.say(f"  {self.name}: {done}/{total} {label}")


def cell_process(
    cell: Cell, places: Places, n_jobs: int, *, train_only: bool, again: bool, stdout: int | None = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a process for a cell, one of `n_jobs` that share the cores; its stdout and stderr go to `stdout`."""
    folders = [str(folder) for folder in places]
    task = json.dumps({"cell": cell, "places": folders, "train_only": train_only, "again": again, "n_jobs": n_jobs})
    threads = str(max(1, (os.cpu_count() or 1) // n_jobs))
    environment = {"OMP_NUM_THREADS": threads, "PYTHONSAFEPATH": "1", **os.environ}
    command = [sys.executable, "-m", "mirrorshot.paper.cell_run", task]
    return subprocess.Popen(command, env=environment, stdout=stdout, stderr=subprocess.STDOUT, text=True)


def stop_processes(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Terminate running processes of cells and wait for them; their runs can be resumed."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the cell described by `cell_process`; if it fails, print one line on stderr and return 1."""
    keep_freed_memory()
    task = json.loads(sys.argv[1])
    cell, places = Cell._make(task["cell"]), Places._make(map(Path, task["places"]))
    cell, bar = cell._replace(changes=tuple(cell.changes)), TenSeconds(_say, cell.name)
    options = {name: task[name] for name in ("train_only", "again", "n_jobs")}
    try:
        run_cell(cell, places, load_dataset(cell.data), progress=bar, say=_say, **options)
    except MirrorshotError as error:
        hint = " If another machine runs this cell, nothing is lost." if isinstance(error, RunError) else ""
        sys.stderr.write(" ".join(f"{error}{hint}".split()) + "\n")
        return 1
    except KeyboardInterrupt:  # the parent process prints how to resume
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

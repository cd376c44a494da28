"""Train methods on benchmark data sets and test them by the paper's protocol.

    python benchmarks/accuracy.py --data cub --n-shot 1 --preset paper
    python benchmarks/accuracy.py --data omniglot_to_emnist --n-shot 1,5 --method protonet,dkt --seconds 500

Every combination of the lists is a cell with a result of its own; a cell that has one is left out unless --again.
Prints accuracy with both spreads and calibration raw and after one temperature, and how long training took.
"""

import argparse
import itertools
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from _common import RESULTS, save
from mirrorshot.checkpoint import read_log
from mirrorshot.config import Config, parse_override
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.presets import preset_settings
from mirrorshot.runs import evaluate_run, load_run
from mirrorshot.training import train


class Cell(NamedTuple):
    """One number of a table."""

    data: str
    n_shot: int
    method: str
    preset: str

    def name(self, tag: str) -> str:
        """Name of the result."""
        method = "" if self.method == "mirror_gp" else f"_{self.method}"
        return f"accuracy_{self.data}_{self.n_shot}shot{method}_{self.preset}{tag}"

    def config(self, changes: Sequence[str]) -> Config:
        """Its settings."""
        settings = preset_settings(self.preset, self.data, self.n_shot, self.method)
        config = Config(data=self.data, n_shot=self.n_shot).replace(**settings)
        for text in changes:
            config = config.replace(**parse_override(text))
        return config


def run_cell(cell: Cell, config: Config, dataset: Dataset, name: str) -> None:
    """Train, test, print and save."""
    started, folder = time.perf_counter(), Path("runs") / name
    shutil.rmtree(folder, ignore_errors=True)
    result = train(config, folder, dataset=dataset, progress=Reporter())
    training_time = time.perf_counter() - started
    print(f"trained in {training_time:.1f} s, {1e3 * result.seconds / result.n_episodes:.3f} ms an episode", flush=True)
    begun = time.perf_counter()
    run = load_run(folder, dataset, device="cuda" if torch.cuda.is_available() else "cpu")
    record = evaluate_run(run, dataset).record()
    testing_time = time.perf_counter() - begun
    print(name, record, flush=True)
    log = read_log(folder)
    save(
        name,
        {
            "config": config.to_dict(),
            "training_time_s": round(training_time, 1),
            "testing_time_s": round(testing_time, 1),
            "best_validation": result.best,
            "evaluation": record,
            "log": log[:: max(1, len(log) // 60)],
        },
        seed=config.seed,
        started=started,
    )


class Reporter:
    """Prints a line of progress every ten seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, done: int, total: int, label: str) -> None:
        """Print, if it is time."""
        if time.perf_counter() - self.last > 10:
            self.last = time.perf_counter()
            print(f"  {done}/{total} {label}", flush=True)


def main() -> None:
    """Run the cells one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="names with commas")
    parser.add_argument("--n-shot", default="1", help="numbers with commas")
    parser.add_argument("--method", default="mirror_gp", help="names with commas")
    parser.add_argument("--preset", default="paper", help="names with commas")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting to change")
    parser.add_argument("--tag", default="", help="ending of the names of the results")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further cell after this time")
    parser.add_argument("--again", action="store_true", help="also cells that have a result")
    options = parser.parse_args()
    started = time.perf_counter()
    lists = (options.data, options.n_shot, options.method, options.preset)
    data: dict[str, Dataset] = {}
    for name, n_shot, method, preset in itertools.product(*(text.split(",") for text in lists)):
        cell = Cell(name, int(n_shot), method, preset)
        result = cell.name(options.tag)
        if (RESULTS / f"{result}.json").exists() and not options.again:
            print(f"{result}: has a result")
            continue
        if time.perf_counter() - started > options.seconds:
            print(f"{result}: no time left")
            continue
        data[name] = data.get(name) or load_dataset(name)
        print(f"{result}: begins after {time.perf_counter() - started:.0f} s", flush=True)
        run_cell(cell, cell.config(options.set), data[name], result)


if __name__ == "__main__":
    main()

"""Accuracy of every method before and after a short training on glyphs, with one budget for all.

    python benchmarks/methods_cpu.py [--methods protonet,dkt] [--episodes 400]

5-way 1-shot accuracy on validation characters before and after training, and on handwritten digits. Every method
trains on the same number of episodes (pre-trained methods: steps of 85 images, the size of an episode). Results are
saved after each method; methods in the file are skipped unless named.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from _common import RESULTS, save, table
from mirrorshot.data import load_glyphs
from mirrorshot.data.augment import CHARACTER_MEAN, CHARACTER_STD
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.methods import METHODS
from mirrorshot.training import build_method, train
from mirrorshot.training.build import resolve_options
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings
from mirrorshot.training.runs import Run, evaluate_run, load_run

NAME = "methods_cpu"
SEED = 1


def settings(method: str, episodes: int) -> Config:
    """Return the common budget with the preset of the method."""
    preset = preset_settings("default", "glyphs", 1, method)
    budget = {
        "n_episodes": episodes, "validate_every": max(1, episodes // 4), "n_validation_tasks": 40, "n_tune_tasks": 20,
        "batch_size": 85, "ema": 0.0, "seed": SEED, "method": method,
    }  # fmt: skip
    steps = preset.get("tasks_per_step", 1)
    budget["validate_every"] -= budget["validate_every"] % steps
    return Config(data="glyphs", n_query=16).replace(**preset).replace(**budget)


def accuracy(run: Run, dataset: Dataset, tasks: int) -> float:
    """Return the 5-way 1-shot accuracy on the test classes of a data set."""
    return evaluate_run(run, dataset, n_tasks=tasks, seeds=(1, 2), n_query=15).accuracy


def measure(method: str, dataset: Dataset, episodes: int, tasks: int) -> dict[str, Any]:
    """Train one method; return accuracies before and after."""
    config = resolve_options(settings(method, episodes), dataset)
    folder = Path("runs") / NAME / method
    shutil.rmtree(folder, ignore_errors=True)
    characters = dataset._replace(test=dataset.val, val=None)
    untrained = Run(config, build_method(config, dataset).eval().requires_grad_(False), {}, torch.device("cpu"))
    before = accuracy(untrained, characters, tasks)
    started = time.perf_counter()
    train(config, folder, dataset=dataset)
    seconds = time.perf_counter() - started
    run = load_run(folder, dataset)
    after = accuracy(run, characters, tasks)
    digits = evaluate_run(run, dataset._replace(val=None), n_tasks=tasks, seeds=(1, 2), n_query=15)
    return {
        "method": method, "options": config.method_options, "untrained": before, "trained": after,
        "gain": after - before, "digits": digits.accuracy, "digits_interval_95": digits.accuracy_interval,
        "digits_nll": digits.raw.nll, "digits_ece": digits.raw.ece, "training_s": round(seconds, 1),
    }  # fmt: skip


def known_rows() -> list[dict[str, Any]]:
    """Return the rows of an earlier run."""
    path = RESULTS / f"{NAME}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="", help="names with commas; default: those without a result")
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--tasks", type=int, default=100, help="test tasks for each of two seeds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = known_rows()
    names = (
        options.methods.split(",") if options.methods else [m for m in METHODS if m not in {r["method"] for r in rows}]
    )
    train_set, val = load_glyphs("train", n_per_class=21), load_glyphs("val", n_per_class=21)
    dataset = Dataset("glyphs", train_set, val, load_glyphs("test"), 28, 1, False, CHARACTER_MEAN, CHARACTER_STD)
    for name in names:
        row = measure(name, dataset, options.episodes, options.tasks)
        print(row, flush=True)
        rows = [r for r in known_rows() if r["method"] != name] + [row]
        rows.sort(key=lambda r: list(METHODS).index(r["method"]))
        save(NAME, {"episodes": options.episodes, "test_tasks": 2 * options.tasks, "rows": rows}, seed=SEED)
    header = ["method", "untrained", "trained", "gain", "digits", "NLL", "ECE", "training, s"]
    keys = ["untrained", "trained", "gain", "digits"]
    print(
        table(
            header,
            [
                [r["method"], *(f"{100 * r[k]:.1f}" for k in keys), f"{r['digits_nll']:.3f}", f"{r['digits_ece']:.3f}",
                 f"{r['training_s']:.0f}"]
                for r in rows
            ],
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""Predictive temperature fitted to training tasks without augmentation, or augmented as in training.

    python benchmarks/tuning_tasks.py runs/accuracy_cub_1shot_default

The temperature of a trained run is fitted both ways; reported is the calibration of the raw probabilities of *new*
classes. No validation class is used.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from _common import save, table
from mirrorshot.data.benchmarks import load_dataset
from mirrorshot.training.build import build_preprocess, training_sampler
from mirrorshot.training.folder import read_config
from mirrorshot.training.runs import evaluate_run, load_run
from mirrorshot.training.stream import NumberedTasks

FIRST_TASK = 10**7  # far beyond the numbers of training tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tasks", type=int, default=100)
    options = parser.parse_args()
    rows = []
    for folder in options.runs:
        rows += compare(folder, options.tasks)
        save("tuning_tasks", {"n_tasks": options.tasks, "rows": rows}, seed=1)
    header = ["run", "fitted to", "temperature", "ECE, raw", "MCE, raw", "NLL, raw", "NLL at the best one"]
    keys = ["ece", "mce", "nll", "best_nll"]
    print(table(header, [[r["run"], r["fitted_to"], *(f"{r[k]:.3f}" for k in ["temperature", *keys])] for r in rows]))


def compare(folder: Path, n_tasks: int) -> list[dict[str, Any]]:
    """Return both temperatures of a run, and the calibration on its test classes."""
    dataset = load_dataset(read_config(folder)["data"])
    run, rows = load_run(folder, dataset), []
    assert dataset.train is not None
    sampler = training_sampler(run.config, dataset.train)
    preprocess = build_preprocess(dataset, augment=True, crop_area=run.config.crop_area)
    for name in ("plain", "augmented"):
        tasks = NumberedTasks(sampler, preprocess, augment=name == "augmented")
        with torch.no_grad():
            run.method.tune(*tasks.tasks(range(FIRST_TASK, FIRST_TASK + n_tasks)))
        found = evaluate_run(run, dataset)
        assert found.calibrated is not None
        temperature = float(run.method.get_buffer("log_temperature").exp())
        raw = {key: getattr(found.raw, key) for key in ("ece", "mce", "nll")}
        rows.append({"run": folder.name, "fitted_to": name, "temperature": temperature, **raw,
                     "best_nll": found.calibrated.nll})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()

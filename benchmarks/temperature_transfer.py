"""Whether a temperature fitted on validation classes suits the test classes: calibration of a run at both.

    MIRRORSHOT_DATA=FOLDER python benchmarks/temperature_transfer.py runs/accuracy_omniglot_to_emnist_5shot_default

Where the two sets of classes are not equally hard, the calibration error at the first is one of the split, and no
temperature that is fitted without the test classes removes it. "Full bins": of 15, those with 100 predictions at least.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from _common import save, table
from mirrorshot.checkpoint import read_config
from mirrorshot.data import EpisodeSampler, load_dataset
from mirrorshot.evaluation.predictions import Predictions, predict_tasks
from mirrorshot.metrics import (
    accuracy,
    apply_temperature,
    calibration_bins,
    expected_calibration_error,
    fit_temperature,
    maximum_calibration_error,
)
from mirrorshot.runs import load_run
from mirrorshot.training import build_preprocess

FULL, N_QUERY, AT_ONCE = 100, 15, 20


def calibration(found: Predictions, temperature: float) -> dict[str, float]:
    """ECE, MCE and MCE of full bins at a temperature."""
    bins = calibration_bins(apply_temperature(found.log_prob, temperature).exp(), found.y)
    return {
        "temperature": temperature,
        "ece": float(expected_calibration_error(bins)),
        "mce": float(maximum_calibration_error(bins)),
        "mce_full_bins": float(maximum_calibration_error(bins, FULL)),
        "fewest_in_a_bin": int(bins.counts[bins.counts > 0].min()),
    }


def measure(folder: Path, n_tasks: int) -> dict[str, Any]:
    """Accuracy of both sets of classes, and the calibration of the test classes at both temperatures."""
    config = read_config(folder)
    dataset = load_dataset(config["data"])
    method, prepare = load_run(folder, dataset, device="cpu").method, build_preprocess(dataset)
    found = {}
    for name, source in (("val", dataset.val), ("test", dataset.test)):
        assert source is not None
        sampler = EpisodeSampler(source, config["n_way"], config["n_shot"], N_QUERY, seed=1)
        found[name] = predict_tasks(method, sampler, range(n_tasks), prepare=prepare, batch_size=AT_ONCE)
    return {
        "run": folder.name,
        "n_tasks": n_tasks,
        "accuracy": {name: float(accuracy(part.log_prob.exp(), part.y).mean()) for name, part in found.items()},
        "at": {
            name: calibration(found["test"], fit_temperature(part.log_prob, part.y)) for name, part in found.items()
        },
    }


def main() -> None:
    """Measure each run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tasks", type=int, default=600)
    options = parser.parse_args()
    started = time.perf_counter()
    rows = [measure(folder, options.tasks) for folder in options.runs]
    save("temperature_transfer", {"rows": rows}, seed=1, started=started)
    shown = [
        [row["run"], name, *(f"{value:.4g}" for value in row["at"][name].values())]
        for row in rows
        for name in ("val", "test")
    ]
    print(table(["run", "fitted to", "temperature", "ECE", "MCE", "MCE, full bins", "fewest in a bin"], shown))
    print({row["run"]: row["accuracy"] for row in rows})


if __name__ == "__main__":
    main()

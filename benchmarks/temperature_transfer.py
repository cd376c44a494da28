"""Whether a temperature fitted on validation classes suits the test classes: calibration of a run at both.

    MIRRORSHOT_DATA=FOLDER python benchmarks/temperature_transfer.py runs/accuracy_omniglot_to_emnist_5shot_default

Where the two sets of classes are not equally hard, the calibration error at the first is one of the split, and no
temperature that is fitted without the test classes removes it. "Full bins": of 15, those with 100 predictions at least.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from _common import save, table
from mirrorshot.checkpoint import read_config
from mirrorshot.data import ClassSource, EpisodeSampler, load_dataset
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.methods import FewShotMethod
from mirrorshot.metrics import fit_temperature
from mirrorshot.runs import load_run
from mirrorshot.training import build_preprocess
from mirrorshot.training.stream import NumberedTasks

N_BINS, FULL, N_QUERY, AT_ONCE = 15, 100, 15, 20


@torch.no_grad()
def predictions(
    method: FewShotMethod, dataset: Dataset, source: ClassSource, n_shot: int, n_tasks: int
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and labels of the queries of so many tasks."""
    tasks = NumberedTasks(EpisodeSampler(source, 5, n_shot, N_QUERY, seed=1), build_preprocess(dataset))
    parts = [tasks.tasks(range(i, i + AT_ONCE)) for i in range(0, n_tasks, AT_ONCE)]
    return torch.cat([method.predict(part) for part, _ in parts]), torch.cat([y for _, y in parts])


def calibration(log_prob: Tensor, y: Tensor, temperature: float) -> dict[str, float]:
    """ECE, MCE and MCE of full bins at a temperature."""
    confidence, label = torch.log_softmax(log_prob / temperature, -1).exp().double().flatten(0, 1).max(-1)
    right = (label == y.flatten()).double()
    place = (N_BINS * confidence).long().clamp(max=N_BINS - 1)
    count, gap = torch.bincount(place, minlength=N_BINS), torch.bincount(place, right - confidence, N_BINS).abs()
    mean_gap = gap / count.clamp(min=1)
    return {
        "temperature": temperature,
        "ece": float(gap.sum() / len(right)),
        "mce": float(mean_gap.max()),
        "mce_full_bins": float(mean_gap[count >= FULL].max()),
        "fewest_in_a_bin": int(count[count > 0].min()),
    }


def measure(folder: Path, n_tasks: int) -> dict[str, Any]:
    """Accuracy of both sets of classes, and the calibration of the test classes at both temperatures."""
    config = read_config(folder)
    dataset = load_dataset(config["data"])
    method = load_run(folder, dataset, device="cpu").method.eval()
    assert dataset.val is not None
    val, test = (predictions(method, dataset, part, config["n_shot"], n_tasks) for part in (dataset.val, dataset.test))
    fitted = {name: fit_temperature(*part, torch.ones(part[1].shape)) for name, part in (("val", val), ("test", test))}
    accuracy = {name: float((p.argmax(-1) == y).double().mean()) for name, (p, y) in (("val", val), ("test", test))}
    at = {name: calibration(*test, float(temperature)) for name, temperature in fitted.items()}
    return {"run": folder.name, "n_tasks": n_tasks, "accuracy": accuracy, "at": at}


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

"""What a setting of the features outside training is worth: trained runs, tested without and with it in pairs.

    python benchmarks/views.py adapt_norm runs/accuracy_omniglot_to_emnist_1shot_default
    python benchmarks/views.py average_flips runs/accuracy_cub_1shot_default runs/accuracy_cub_5shot_default

Runs for instance of `mirrorshot reproduce table1 --dataset cub --preset default --method mirror_gp`. A temperature rule
of a run was fitted to features as in training; the numbers at one temperature do not depend on it.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from _common import save, table
from mirrorshot.training.evaluation.results import Z_95
from mirrorshot.training.folder import read_config
from mirrorshot.training.runs import evaluate_run, load_run, load_test_data


def main() -> None:
    """Test each run both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=("average_flips", "adapt_norm"))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    started, rows = time.perf_counter(), []
    for folder in options.runs:
        rows.append(compare(folder, options.setting, options.device))
        print(rows[-1], flush=True)
        save(options.setting, {"rows": rows}, seed=1, started=started)
    header = ["run", "without, %", "with, %", "difference in pairs", "NLL", "ECE at one temperature"]
    print(table(header, [shown(row) for row in rows]))


def compare(folder: Path, setting: str, device: str) -> dict[str, Any]:
    """Both tests of one run, on the same tasks."""
    dataset = load_test_data(read_config(folder)["data"])
    views = ({setting: on} for on in (False, True))
    one, two = (evaluate_run(load_run(folder, dataset, device=device, views=view), dataset) for view in views)
    difference = 100 * (two.task_accuracy - one.task_accuracy)
    row: dict[str, Any] = {"run": folder.name, "n_tasks": difference.numel()}
    for name, found in (("without", one), ("with", two)):
        assert found.calibrated is not None
        row[name] = {
            "accuracy": 100 * found.accuracy,
            "accuracy_sd": 100 * found.accuracy_sd,
            **{f"{key}_raw": getattr(found.raw, key) for key in ("nll", "ece", "mce")},
            **{f"{key}_one_temperature": getattr(found.calibrated, key) for key in ("nll", "ece", "mce")},
        }
    half = Z_95 * float(difference.std()) / difference.numel() ** 0.5
    return row | {"difference": float(difference.mean()), "difference_interval_95": half}


def shown(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    pair = [row["without"], row["with"]]
    accuracy = [f"{p['accuracy']:.2f} ± {p['accuracy_sd']:.2f}" for p in pair]
    nll, ece = (" -> ".join(f"{p[f'{key}_one_temperature']:.3f}" for p in pair) for key in ("nll", "ece"))
    return [row["run"], *accuracy, f"{row['difference']:+.2f} ± {row['difference_interval_95']:.2f}", nll, ece]


if __name__ == "__main__":
    main()

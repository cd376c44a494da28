"""Effect of averaging the features of an image and its mirror image: paired tests of trained runs.

    python benchmarks/average_flips.py runs/accuracy_cub_1shot_default runs/accuracy_cub_5shot_default

Runs of photographs, for instance of `mirrorshot reproduce table1 --dataset cub --preset default --method mirror_gp`.
"""

import argparse
from pathlib import Path
from typing import Any

from _common import save, table
from mirrorshot.training.evaluation.results import Z_95
from mirrorshot.training.folder import read_config
from mirrorshot.training.runs import evaluate_run, load_run, load_test_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rows = []
    for folder in options.runs:
        rows.append(compare(folder, options.device))
        print(rows[-1], flush=True)
        save("average_flips", {"rows": rows}, seed=1)
    header = ["run", "one view, %", "averaged, %", "difference in pairs", "NLL", "ECE at one temperature"]
    print(table(header, [shown(row) for row in rows]))


def compare(folder: Path, device: str) -> dict[str, Any]:
    """Test a run with one view and with two, on the same tasks."""
    dataset = load_test_data(read_config(folder)["data"])
    one, two = (
        evaluate_run(load_run(folder, dataset, device=device, average_flips=flips), dataset) for flips in (False, True)
    )
    difference = 100 * (two.task_accuracy - one.task_accuracy)
    row: dict[str, Any] = {"run": folder.name, "n_tasks": difference.numel()}
    for name, found in (("one_view", one), ("averaged", two)):
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
    pair = [row["one_view"], row["averaged"]]
    accuracy = [f"{p['accuracy']:.2f} ± {p['accuracy_sd']:.2f}" for p in pair]
    nll, ece = (" -> ".join(f"{p[f'{key}_one_temperature']:.3f}" for p in pair) for key in ("nll", "ece"))
    return [row["run"], *accuracy, f"{row['difference']:+.2f} ± {row['difference_interval_95']:.2f}", nll, ece]


if __name__ == "__main__":
    main()

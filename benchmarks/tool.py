"""Time of the commands `mirrorshot fit` and `mirrorshot predict` as new processes, including imports.

Images are handwritten digits of scikit-learn, 64 x 64: 5 classes of 5 examples and 100 images to classify, with the
encoder `glyphs`. Other programs slow the machine down, so the fastest and the median of some repetitions are reported,
with the load of the machine and the times of processes that only import torch and scikit-learn. Also reported: the time
of `mirrorshot --help`, the share of known and unknown images called "none of these", and the size of the model.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from _common import save, table


def write_pictures(root: Path, seed: int) -> None:
    """Write support and query of digits 0 to 4, and images of the other digits."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(y == digit))[:25]
        for k, row in enumerate(rows):
            part = "strange" if digit >= 5 else "support" if k < 5 else "query"
            folder = root / part / f"digit {digit}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = (255 - X[row].reshape(8, 8) * (255 / 16)).astype(np.uint8)
            Image.fromarray(pixels).resize((64, 64), Image.Resampling.BICUBIC).save(folder / f"{row}.png")


def timed(*words: object) -> tuple[float, float, str]:
    """Return wall-clock and processor seconds of a mirrorshot command, and its output."""
    return timed_python("-m", "mirrorshot", *map(str, words))


def timed_imports() -> tuple[float, float]:
    """Return the same for a program that only imports torch and scikit-learn."""
    return timed_python("-c", "import torch, sklearn.base")[:2]


def timed_python(*words: str) -> tuple[float, float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_pictures(root, seed=1)
        model = root / "model.mirrorshot"
        rows = []
        for _ in range(repeats):
            fit, fit_cpu, _ = timed("fit", root / "support", "-o", model)
            predict, predict_cpu, answers = timed("predict", model, root / "query", "--json")
            imports, imports_cpu = np.sum([timed_imports() for _ in range(2)], axis=0)
            rows.append(
                {
                    "fit_s": fit,
                    "predict_s": predict,
                    "total_s": fit + predict,
                    "cpu_s": fit_cpu + predict_cpu,
                    "imports_s": float(imports),
                    "imports_cpu_s": float(imports_cpu),
                    "load": os.getloadavg()[0],
                }
            )
        help_s = [timed("--help")[0] for _ in range(repeats)]
        known = json.loads(answers)
        strange = json.loads(timed("predict", model, root / "strange", "--json")[2])
        size = model.stat().st_size
    print(table(list(rows[0]), [[f"{value:.2f}" for value in row.values()] for row in rows]))
    result = {
        "n_cores": os.cpu_count(),
        "rows": rows,
        "total_s_fastest": min(row["total_s"] for row in rows),
        "imports_s_fastest": min(row["imports_s"] for row in rows),
        "cpu_s_fastest": min(row["cpu_s"] for row in rows),
        "imports_cpu_s_fastest": min(row["imports_cpu_s"] for row in rows),
        "total_s_median": statistics.median(row["total_s"] for row in rows),
        "help_s_fastest": min(help_s),
        "model_bytes": size,
        "accuracy": float(np.mean([answer["label"] in answer["name"] for answer in known])),
        "none_of_these": {
            "known": float(np.mean([answer["is_novel"] for answer in known])),
            "strange": float(np.mean([answer["is_novel"] for answer in strange])),
        },
    }
    print({name: value for name, value in result.items() if name != "rows"})
    save("tool", result, seed=1)


if __name__ == "__main__":
    main()

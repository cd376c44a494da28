"""Adaptation steps at test: validation accuracy of runs of MAML or ABML with more steps than in training.

    MIRRORSHOT_DATA=FOLDER python benchmarks/test_steps.py runs/accuracy_omniglot_to_emnist_1shot_abml_default_16k

Each run classifies validation tasks with 1 and 5 shots and 15 queries per class.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from _common import save, table
from mirrorshot.data import ClassSource, EpisodeSampler, load_dataset
from mirrorshot.methods import FewShotMethod
from mirrorshot.metrics import accuracy
from mirrorshot.training import build_preprocess
from mirrorshot.training.folder import read_config
from mirrorshot.training.runs import load_run
from mirrorshot.training.stream import NumberedTasks

STEPS, SHOTS, SEED, AT_ONCE = (5, 10, 20), (1, 5), 1, 10


@torch.no_grad()
def score(method: FewShotMethod, tasks: NumberedTasks, n_tasks: int) -> dict[str, float]:
    """Return accuracy and NLL of the first tasks."""
    method.seed(SEED)
    parts = [tasks.tasks(range(i, min(i + AT_ONCE, n_tasks))) for i in range(0, n_tasks, AT_ONCE)]
    log_prob, y = torch.cat([method.predict(t) for t, _ in parts]), torch.cat([y for _, y in parts])
    nll = -log_prob.gather(-1, y[..., None]).mean()
    return {"accuracy": float(accuracy(log_prob.exp().flatten(0, 1), y.flatten())), "nll": float(nll)}


def measure(folder: Path, n_tasks: int) -> list[dict[str, Any]]:
    """Measure a run for all shots and numbers of steps."""
    config = read_config(folder)
    dataset = load_dataset(config["data"], splits=("val",))
    method, rows = load_run(folder, dataset).method, []
    assert isinstance(dataset.val, ClassSource)
    for n_shot in SHOTS:
        sampler = EpisodeSampler(dataset.val, config["n_way"], n_shot, 15, seed=SEED)
        tasks = NumberedTasks(sampler, build_preprocess(dataset))
        for n_steps in STEPS:
            method.n_test_steps = n_steps
            row = {"run": folder.name, "shots": n_shot, "steps": n_steps}
            rows.append(row | score(method, tasks, n_tasks))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--tasks", type=int, default=100)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for folder in options.runs:
        rows += measure(folder, options.tasks)
        save("test_steps", {"n_tasks": options.tasks, "rows": rows}, seed=SEED)
    cells = [[str(v) if not isinstance(v, float) else f"{v:.3f}" for v in row.values()] for row in rows]
    print(table(["run", "shots", "steps", "accuracy", "NLL"], cells))


if __name__ == "__main__":
    main()

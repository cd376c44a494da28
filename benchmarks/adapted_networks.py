"""Settings of ABML and MAML, which adapt the network to each task: short trainings, by accuracy of validation tasks.

    MIRRORSHOT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/adapted_networks.py [--episodes 400]

Omniglot -> EMNIST, 1 shot, a constant rate, one training each; accuracy and NLL of 100 validation tasks at the end.
Written to results/adapted_networks.json.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from _common import save, table
from mirrorshot.config import Config
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.presets import preset_settings
from mirrorshot.training import train

DATA, SEED = "omniglot_to_emnist", 1
ADAM, MUON = {"optimizer": "adam", "lr": 1e-3}, {"optimizer": "muon", "lr": 2e-3}
ONE, FOUR = {"tasks_per_step": 1}, {"tasks_per_step": 4}


class Trial(NamedTuple):
    """A training to make."""

    name: str
    method: str
    settings: dict[str, Any]
    options: dict[str, Any]


def abml(name: str, settings: dict[str, Any], log_sigma: float, kl_weight: float, n_test_steps: int = 5) -> Trial:
    """One task and one sampled network a step, five steps of 0.1."""
    options = {"initial_log_sigma": log_sigma, "kl_weight": kl_weight, "n_samples": 1, "n_test_steps": n_test_steps}
    return Trial(name, "abml", settings | ONE, options)


def maml(name: str, settings: dict[str, Any], n_steps: int, step_size: float) -> Trial:
    """Second order."""
    return Trial(name, "maml", settings, {"n_steps": n_steps, "step_size": step_size})


TRIALS = (
    abml("sigma of public code, KL weight 1e-3, Adam", ADAM, -3.5, 1e-3),
    abml("sigma of public code, KL weight 1e-5, Adam", ADAM, -3.5, 1e-5),
    abml("small sigma, KL weight 1e-5, Adam", ADAM, -6.0, 1e-5),
    abml("small sigma, KL weight 1e-5, Muon", MUON, -6.0, 1e-5),
    abml("the same, 10 steps in validation in place of 5", MUON, -6.0, 1e-5, 10),
    maml("1 step of 0.1, 4 tasks a step, Adam", ADAM | FOUR, 1, 0.1),
    maml("5 steps of 0.1, 1 task a step, Muon", MUON | ONE, 5, 0.1),
)


def measure(trial: Trial, episodes: int, dataset: Dataset) -> dict[str, float]:
    """The last validation of a training."""
    config = Config(data=DATA, seed=SEED)
    config = config.replace(**preset_settings("default", DATA, 1, trial.method))
    config = config.replace(**trial.settings, method_options=trial.options, schedule="constant")
    config = config.replace(n_episodes=episodes, validate_every=episodes, n_validation_tasks=100)
    with tempfile.TemporaryDirectory() as folder:
        best = train(config, Path(folder) / "run", dataset=dataset).best
    return {"accuracy": best["val_accuracy"], "nll": best["val_nll"]}


def main() -> None:
    """Make the trainings, and save after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400)
    episodes = parser.parse_args().episodes
    started, dataset = time.perf_counter(), load_dataset(DATA, splits=("train", "val"))
    rows: list[dict[str, Any]] = []
    for trial in TRIALS:
        score = measure(trial, episodes, dataset)
        rows.append({"method": trial.method, "settings": trial.name, **score})
        print(rows[-1], flush=True)
        save("adapted_networks", {"episodes": episodes, "rows": rows}, seed=SEED, started=started)
    cells = [[str(v) if isinstance(v, str) else f"{v:.3f}" for v in row.values()] for row in rows]
    print(table(["method", "settings", "accuracy", "NLL"], cells))


if __name__ == "__main__":
    main()

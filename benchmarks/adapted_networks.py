"""Settings of ABML and MAML, which adapt the network to each task: short trainings, by accuracy of validation tasks.

    MIRRORSHOT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/adapted_networks.py [--episodes 400]

1 shot, a constant rate, one training each; accuracy and NLL of 100 validation tasks at the end. CUB is seen at 32 x 32,
for speed. Written to results/adapted_networks.json.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from _common import save, table
from mirrorshot.config import Config
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.presets import preset_settings
from mirrorshot.training import train

SIDE, SEED, CHARACTERS = 32, 1, "omniglot_to_emnist"
ADAM, MUON = {"optimizer": "adam", "lr": 1e-3}, {"optimizer": "muon", "lr": 2e-3}
ONE, FOUR = {"tasks_per_step": 1}, {"tasks_per_step": 4}


class Trial(NamedTuple):
    """A training to make."""

    name: str
    method: str
    data: str
    settings: dict[str, Any]
    options: dict[str, Any]


def abml(name: str, settings: dict[str, Any], log_sigma: float, kl_weight: float, n_test_steps: int = 5) -> Trial:
    """One task and one sampled network a step, five steps of 0.1."""
    options = {"initial_log_sigma": log_sigma, "kl_weight": kl_weight, "n_samples": 1, "n_test_steps": n_test_steps}
    return Trial(name, "abml", CHARACTERS, settings | ONE, options)


def maml(name: str, data: str, settings: dict[str, Any], n_steps: int, step_size: float) -> Trial:
    """Second order."""
    return Trial(name, "maml", data, settings, {"n_steps": n_steps, "step_size": step_size})


TRIALS = (
    abml("sigma of public code, KL weight 1e-3, Adam", ADAM, -3.5, 1e-3),
    abml("sigma of public code, KL weight 1e-5, Adam", ADAM, -3.5, 1e-5),
    abml("small sigma, KL weight 1e-5, Adam", ADAM, -6.0, 1e-5),
    abml("small sigma, KL weight 1e-5, Muon", MUON, -6.0, 1e-5),
    abml("the same, 10 steps in validation in place of 5", MUON, -6.0, 1e-5, 10),
    maml("1 step of 0.1, 4 tasks a step, Adam", CHARACTERS, ADAM | FOUR, 1, 0.1),
    maml("5 steps of 0.1, 1 task a step, Muon", CHARACTERS, MUON | ONE, 5, 0.1),
    maml("5 steps of 0.01, 4 tasks a step, Adam", "cub", ADAM | FOUR, 5, 0.01),
    maml("5 steps of 0.01, 1 task a step, Muon", "cub", MUON | ONE, 5, 0.01),
    maml("5 steps of 0.1, 1 task a step, Muon", "cub", MUON | ONE, 5, 0.1),
)


def measure(trial: Trial, episodes: int, dataset: Dataset) -> dict[str, float]:
    """The last validation of a training."""
    config = Config(data=trial.data, seed=SEED)
    config = config.replace(**preset_settings("default", trial.data, 1, trial.method))
    config = config.replace(**trial.settings, method_options=trial.options, schedule="constant", average_flips=False)
    config = config.replace(n_episodes=episodes, validate_every=episodes, n_validation_tasks=100)
    with tempfile.TemporaryDirectory() as folder:
        best = train(config, Path(folder) / "run", dataset=dataset).best
    return {"accuracy": best["val_accuracy"], "nll": best["val_nll"]}


def load(name: str) -> Dataset:
    """The data set, photographs for small networks: training crops them to 32 x 32, validation shrinks them."""
    dataset = load_dataset(name, splits=("train", "val"))
    if name == CHARACTERS:
        return dataset
    assert dataset.val is not None
    shrunk = [F.interpolate(part.float(), size=SIDE, mode="area") for part in dataset.val.items.split(200)]
    val = dataset.val._replace(items=torch.cat(shrunk).round().to(torch.uint8))
    return dataset._replace(val=val, image_size=SIDE)


def main() -> None:
    """Make the trainings, and save after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400)
    episodes = parser.parse_args().episodes
    started, datasets = time.perf_counter(), {name: load(name) for name in (CHARACTERS, "cub")}
    rows: list[dict[str, Any]] = []
    for trial in TRIALS:
        score = measure(trial, episodes, datasets[trial.data])
        rows.append({"method": trial.method, "data": trial.data, "settings": trial.name, **score})
        print(rows[-1], flush=True)
        save("adapted_networks", {"episodes": episodes, "rows": rows}, seed=SEED, started=started)
    cells = [[str(v) if isinstance(v, str) else f"{v:.3f}" for v in row.values()] for row in rows]
    print(table(["method", "data", "settings", "accuracy", "NLL"], cells))


if __name__ == "__main__":
    main()

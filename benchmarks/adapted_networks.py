"""Short trainings of ABML and MAML, which adapt the network to each task, with several settings.

    MIRRORSHOT_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/adapted_networks.py

1 shot, a constant rate, one training each; accuracy and NLL of 100 validation tasks at the end. Omniglot -> EMNIST is
trained with 400 tasks; CUB, at 32 x 32 pixels to save time, with 1,000. Written to results/adapted_networks.json.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from _common import save, table
from mirrorshot.data import ClassSource
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.training import train
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings

CHARACTERS, PHOTOGRAPHS, SEED = "omniglot_to_emnist", "cub", 1
EPISODES, SIDE = {CHARACTERS: 400, PHOTOGRAPHS: 1000}, 32
ADAM, MUON = {"optimizer": "adam", "lr": 1e-3}, {"optimizer": "muon", "lr": 2e-3}
ONE, FOUR = {"tasks_per_step": 1}, {"tasks_per_step": 4}


class Trial(NamedTuple):
    """Settings of one training."""

    name: str
    method: str
    data: str
    settings: dict[str, Any]
    options: dict[str, Any]


def abml(name: str, settings: dict[str, Any], log_sigma: float, kl_weight: float, n_test_steps: int = 5) -> Trial:
    """Settings of ABML: one task and one sampled network per step, five inner steps of 0.1."""
    options = {"initial_log_sigma": log_sigma, "kl_weight": kl_weight, "n_samples": 1, "n_test_steps": n_test_steps}
    return Trial(name, "abml", CHARACTERS, settings | ONE, options)


def maml(name: str, data: str, settings: dict[str, Any], n_steps: int, step_size: float) -> Trial:
    """Settings of second-order MAML."""
    return Trial(name, "maml", data, settings, {"n_steps": n_steps, "step_size": step_size})


TRIALS = (
    abml("sigma of public code, KL weight 1e-3, Adam", ADAM, -3.5, 1e-3),
    abml("sigma of public code, KL weight 1e-5, Adam", ADAM, -3.5, 1e-5),
    abml("small sigma, KL weight 1e-5, Adam", ADAM, -6.0, 1e-5),
    abml("small sigma, KL weight 1e-5, Muon", MUON, -6.0, 1e-5),
    abml("the same, 10 steps in validation in place of 5", MUON, -6.0, 1e-5, 10),
    maml("1 step of 0.1, 4 tasks a step, Adam", CHARACTERS, ADAM | FOUR, 1, 0.1),
    maml("5 steps of 0.1, 1 task a step, Muon", CHARACTERS, MUON | ONE, 5, 0.1),
    maml("5 steps of 0.01, 4 tasks a step, Adam", PHOTOGRAPHS, ADAM | FOUR, 5, 0.01),
    maml("5 steps of 0.01, 1 task a step, Adam", PHOTOGRAPHS, ADAM | ONE, 5, 0.01),
    maml("5 steps of 0.01, 4 tasks a step, Muon at 4e-3", PHOTOGRAPHS, MUON | FOUR | {"lr": 4e-3}, 5, 0.01),
    maml("5 steps of 0.01, 1 task a step, Muon", PHOTOGRAPHS, MUON | ONE, 5, 0.01),
)


def measure(trial: Trial, episodes: int, dataset: Dataset) -> dict[str, float]:
    """Return accuracy and NLL of the last validation."""
    config = Config(data=trial.data, seed=SEED)
    config = config.replace(**preset_settings("default", trial.data, 1, trial.method))
    config = config.replace(**trial.settings, method_options=trial.options, schedule="constant")
    config = config.replace(n_episodes=episodes, validate_every=episodes, n_validation_tasks=100)
    with tempfile.TemporaryDirectory() as folder:
        best = train(config, Path(folder) / "run", dataset=dataset).best
    return {"accuracy": best["val_accuracy"], "nll": best["val_nll"]}


def load(data: str) -> Dataset:
    """Load training and validation classes; photographs are made smaller."""
    dataset = load_dataset(data, splits=("train", "val"))
    if data == CHARACTERS:
        return dataset
    assert dataset.train is not None
    assert dataset.val is not None
    stored = round(dataset.train.items.shape[-1] * SIDE / dataset.image_size)
    train_set, val = reduced(dataset.train, stored), reduced(dataset.val, SIDE)
    return dataset._replace(train=train_set, val=val, image_size=SIDE)


def reduced(source: ClassSource, side: int) -> ClassSource:
    parts = [F.interpolate(x.float(), size=side, mode="bilinear", antialias=True) for x in source.items.split(200)]
    return source._replace(items=torch.cat(parts).round().clamp(0, 255).to(torch.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    rows: list[dict[str, Any]] = []
    for data, episodes in EPISODES.items():
        dataset = load(data)
        for trial in TRIALS:
            if trial.data == data:
                score = measure(trial, episodes, dataset)
                rows.append({"data": data, "method": trial.method, "settings": trial.name, **score})
                print(rows[-1], flush=True)
                save("adapted_networks", {"episodes": EPISODES, "rows": rows}, seed=SEED)
    cells = [[str(v) if isinstance(v, str) else f"{v:.3f}" for v in row.values()] for row in rows]
    print(table(["data", "method", "settings", "accuracy", "NLL"], cells))


if __name__ == "__main__":
    main()

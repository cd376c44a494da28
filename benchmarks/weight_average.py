"""EMA of the weights in short trainings: warm-up over all steps so far, or over the last tenth.

    OMP_NUM_THREADS=1 python benchmarks/weight_average.py [--episodes 300]

Glyphs, 1 shot, preset default, one training each; accuracy and NLL of 200 tasks of validation characters at the end.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _common import save, table
from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.training import learner, train
from mirrorshot.training.config import Config
from mirrorshot.training.presets import preset_settings

METHODS = ("mirror_gp", "protonet", "bayesian_maml")
RECENT = {"all steps": 1, "the last tenth": 10}
SEED = 1


def measure(method: str, recent: int, episodes: int, dataset: Dataset) -> dict[str, float]:
    """Return the last validation of a training."""
    config = Config(data="glyphs", seed=SEED).replace(**preset_settings("default", "glyphs", 1, method))
    config = config.replace(n_episodes=episodes, validate_every=episodes, n_validation_tasks=200)
    with patch.object(learner, "_RECENT", recent), tempfile.TemporaryDirectory() as folder:
        best = train(config, Path(folder) / "run", dataset=dataset).best
    return {"accuracy": best["val_accuracy"], "nll": best["val_nll"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=300)
    episodes = parser.parse_args().episodes
    dataset = load_dataset("glyphs")
    rows: list[dict[str, Any]] = []
    for method in METHODS:
        for name, recent in RECENT.items():
            rows.append({"method": method, "average": name, **measure(method, recent, episodes, dataset)})
            print(rows[-1], flush=True)
            save("weight_average", {"episodes": episodes, "rows": rows}, seed=SEED)
    print(table(["method", "average over", "accuracy", "NLL"], [[f"{v}"[:6] for v in row.values()] for row in rows]))


if __name__ == "__main__":
    main()

"""Train a method on a benchmark data set and test it by the paper's protocol.

    python benchmarks/accuracy.py --data cub --n-shot 1 --preset paper

Prints accuracy with both spreads and calibration raw and after one temperature, and how long training took.
"""

import argparse
import shutil
import time
from pathlib import Path

import torch

from _common import save
from mirrorshot.checkpoint import load_checkpoint, load_method_state, read_log
from mirrorshot.config import Config, parse_override
from mirrorshot.data.benchmarks import load_dataset
from mirrorshot.evaluation import evaluate
from mirrorshot.presets import preset_settings
from mirrorshot.training import build_method, build_preprocess, train


def main() -> None:
    """Train, test, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--n-shot", type=int, default=1)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting to change")
    parser.add_argument("--tag", default="", help="ending of the name of the result")
    options = parser.parse_args()
    started = time.perf_counter()
    settings = preset_settings(options.preset, options.data, options.n_shot)
    config = Config(data=options.data, n_shot=options.n_shot).replace(**settings)
    for text in options.set:
        config = config.replace(**parse_override(text))
    name = f"accuracy_{config.data}_{config.n_shot}shot_{options.preset}{options.tag}"
    folder = Path("runs") / name
    shutil.rmtree(folder, ignore_errors=True)
    dataset = load_dataset(config.data)
    loaded = time.perf_counter() - started
    print(f"{name}: data loaded in {loaded:.1f} s", flush=True)
    begun = time.perf_counter()
    result = train(config, folder, dataset=dataset, progress=Reporter())
    training_time = time.perf_counter() - begun
    print(f"trained in {training_time:.1f} s, {1e3 * result.seconds / result.n_episodes:.3f} ms an episode", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    method = build_method(config, dataset)
    load_method_state(method, load_checkpoint(folder / "best.safetensors"), method_name=config.method)
    method = method.to(device).eval()
    prepare = build_preprocess(dataset, augment=False)
    begun = time.perf_counter()
    evaluation = evaluate(
        method, dataset.test.to(device), n_way=config.n_way, n_shot=config.n_shot, prepare=prepare, batch_size=50,
        validation=dataset.val.to(device),
    )  # fmt: skip
    testing_time = time.perf_counter() - begun
    record = evaluation.record()
    print(record)
    log = read_log(folder)
    save(
        name,
        {
            "config": config.to_dict(),
            "data_time_s": round(loaded, 1),
            "training_time_s": round(training_time, 1),
            "testing_time_s": round(testing_time, 1),
            "best_validation": result.best,
            "evaluation": record,
            "log": log[:: max(1, len(log) // 60)],
        },
        seed=config.seed,
        started=started,
    )


class Reporter:
    """Prints a line of progress every ten seconds."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, done: int, total: int, label: str) -> None:
        """Print, if it is time."""
        if time.perf_counter() - self.last > 10:
            self.last = time.perf_counter()
            print(f"  {done}/{total} {label}", flush=True)


if __name__ == "__main__":
    main()

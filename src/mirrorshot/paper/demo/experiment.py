"""Data, training and tests of the demo."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.data import load_glyphs
from mirrorshot.data.augment import CHARACTER_MEAN, CHARACTER_STD
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.files.lock import remove_run
from mirrorshot.gp.threads import threads
from mirrorshot.training import train
from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import Evaluation
from mirrorshot.training.folder import read_log
from mirrorshot.training.runs import Run, evaluate_run, load_run, on_features
from mirrorshot.views import EpisodeDisplay

Stage = Callable[[str], Callable[[int, int, str], None]]
"""Called with the name of a stage; returns the progress callback of that stage."""

METHODS: dict[str, dict[str, Any]] = {"mirror_gp": {"kernel": "rbf"}, "protonet": {}}
"""Methods of the demo and their options; ours is the first."""

N_WAY, N_SHOTS, N_QUERY = 5, (1, 5), 15
SEEDS = (1, 2, 3, 4, 5)
_N_DRAWN = 3  # tasks drawn in the report


class DemoSettings(NamedTuple):
    """Amount of work of the demo."""

    n_episodes: int  # tasks that each method trains on
    n_classes: int | None  # characters to train on; None: all
    n_validations: int  # during training
    n_validation_tasks: int  # tasks of a validation; tuning uses half as many
    n_tasks: int  # test tasks of each seed
    n_temperature_tasks: int  # validation tasks for the temperature
    n_threads: int


FULL = DemoSettings(700, None, 5, 40, 120, 200, 2)
QUICK = DemoSettings(8, 40, 2, 2, 3, 6, 1)


class DemoResult(NamedTuple):
    """Results of the demo on the digits, by number of examples and by method."""

    settings: DemoSettings
    seed: int
    evaluations: dict[int, dict[str, Evaluation]]
    logs: dict[str, list[dict[str, Any]]]
    cards: dict[str, list[EpisodeDisplay]]  # the first test tasks with one example per class
    seconds: dict[str, float]
    n_classes: tuple[int, int]  # training and validation classes


def run_demo(folder: Path, *, settings: DemoSettings = FULL, seed: int = 1, stage: Stage | None = None) -> DemoResult:
    """Train the methods on characters and test them on digits.

    The runs are in `folder/runs`; those of an earlier demo are replaced.
    """
    stage = stage or (lambda name: lambda done, total, label: None)
    seconds: dict[str, float] = {}
    folders = {name: folder / "runs" / name for name in METHODS}
    with threads(settings.n_threads):
        stage("Drawing characters")
        with _timed("characters", seconds):
            dataset = load_characters(settings.n_classes)
        for name, run in folders.items():
            with _timed(f"training {name}", seconds):
                if (run / "config.json").exists():  # of an earlier demo
                    remove_run(run)
                train(demo_config(name, settings, seed), run, dataset=dataset, progress=stage(f"Training {name}"))
        with _timed("testing", seconds):
            runs = {name: load_run(run, dataset) for name, run in folders.items()}
            ready = {name: on_features(run, dataset) for name, run in runs.items()}
            evaluations = {n: _evaluate(ready, n, settings, stage) for n in N_SHOTS}
            shown: dict[str, Any] = {"sizes": (N_WAY, 1, N_QUERY), "seed": SEEDS[0], "n_tasks": _N_DRAWN}
            cards = {name: EpisodeDisplay.of_run(run, dataset, **shown) for name, run in runs.items()}
    assert dataset.train is not None
    assert dataset.val is not None
    logs = {name: read_log(run) for name, run in folders.items()}
    n_classes = (dataset.train.n_classes, dataset.val.n_classes)
    return DemoResult(settings, seed, evaluations, logs, cards, seconds, n_classes)


def load_characters(n_classes: int | None) -> Dataset:
    """Return the glyphs as from `load_dataset`, or fewer of their classes."""
    parts = (
        load_glyphs("train", n_classes=n_classes),
        load_glyphs("val", n_classes=n_classes and max(n_classes // 4, N_WAY)),
        load_glyphs("test"),
    )
    return Dataset("glyphs", *parts, 28, 1, False, CHARACTER_MEAN, CHARACTER_STD)


def demo_config(method: str, settings: DemoSettings, seed: int) -> Config:
    """Return the settings of training, equal for all methods except their options."""
    return Config(
        method=method,
        method_options=METHODS[method],
        n_way=N_WAY,
        n_shot=1,
        n_query=10,
        n_episodes=settings.n_episodes,
        kernel_lr=1e-2,
        ema=0.98,
        validate_every=-(-settings.n_episodes // settings.n_validations),
        n_validation_tasks=settings.n_validation_tasks,
        n_tune_tasks=max(1, settings.n_validation_tasks // 2),
        seed=seed,
        device="cpu",
    )


def _evaluate(
    ready: dict[str, tuple[Run, Dataset]], n_shot: int, settings: DemoSettings, stage: Stage
) -> dict[str, Evaluation]:
    return {
        name: evaluate_run(
            run,
            features,
            n_shot=n_shot,
            n_query=N_QUERY,
            n_tasks=settings.n_tasks,
            seeds=SEEDS,
            n_validation_tasks=settings.n_temperature_tasks,
            progress=stage(f"Testing {name}, {n_shot} per class"),
        )
        for name, (run, features) in ready.items()
    }


@contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 2)

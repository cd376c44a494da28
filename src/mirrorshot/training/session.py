"""Training sessions: `train` begins or resumes a run, in one process or one of several."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from mirrorshot.data.benchmarks import Dataset, load_dataset
from mirrorshot.data.decoding import Progress
from mirrorshot.training.build import check_shares
from mirrorshot.training.config import FREE, Config, from_dict
from mirrorshot.training.folder import RunFolder, read_config
from mirrorshot.training.trainer import Trainer, TrainResult
from mirrorshot.training.world import World, join_world
from mirrorshot.types import InvalidInputError


def train(
    config: Config | None,
    folder: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    dataset: Dataset | None = None,
) -> TrainResult:
    """Meta-train a method and keep the weights with the best validation result.

    `resume` continues the run in that folder, exactly as if it had not stopped. `config` is then None, or differs from
    the run's settings only in `device`, `save_every` and `tensorboard`. Without `dataset`, `config.data` is loaded.
    `progress` is called with the episodes done, the total, and a line of text.

    Raises `NumericalError` if a loss or gradient is not finite; `failed.safetensors` has the state before that step.
    """
    if resume or config is None:
        config = _same_settings(config, from_dict(read_config(folder)), folder)
    with join_world(config.device) as world:
        check_shares(config, world.size)
        with _open_folder(config, folder, resume, world) as run, _fastest_convolutions(world.device):
            trainer = None
            try:
                dataset = dataset or load_dataset(config.data, splits=("train", "val"), progress=progress)
                trainer = Trainer(config, dataset, world, run, progress)
                return trainer.run()
            except Exception as error:
                # some invalid settings are only detected by the first step
                has_begun = trainer is not None and (trainer.best or not isinstance(error, InvalidInputError))
                if run is not None and not resume and not has_begun:
                    run.discard()
                raise


def _same_settings(given: Config | None, own: Config, folder: Path) -> Config:
    if given is None:
        return own
    ours, theirs = given.to_dict(), own.to_dict()
    different = [
        f"{n} ({ours[n]!r}, not {theirs[n]!r})" for n in sorted(ours) if n not in FREE and ours[n] != theirs[n]
    ]
    if different:
        raise InvalidInputError(
            f"Expected the settings of the run in {folder} to resume it, but these differ: {', '.join(different)}. "
            "Leave them out, or begin another run."
        )
    return given


@contextlib.contextmanager
def _open_folder(config: Config, folder: Path, resume: bool, world: World) -> Iterator[RunFolder | None]:
    """Open the folder of the run in the first process; the others write nothing."""
    if not world.is_first:
        yield None
        return
    with RunFolder.resume(folder) if resume else RunFolder.create(folder, config.to_dict()) as run:
        yield run


@contextlib.contextmanager
def _fastest_convolutions(device: torch.device) -> Iterator[None]:
    """Let cuDNN benchmark its algorithms for convolutions."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before

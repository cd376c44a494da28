"""Finished runs: loading of trained methods from run folders, and their evaluation on new classes."""

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from mirrorshot.data import ClassSource
from mirrorshot.data.augment import CHARACTER_MEAN, CHARACTER_STD, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from mirrorshot.data.benchmarks import DATASETS, Dataset, load_dataset
from mirrorshot.files.checkpoint import Checkpoint, CheckpointError, CheckpointNotFoundError, load_checkpoint
from mirrorshot.methods import FewShotMethod
from mirrorshot.methods.calibrated import CalibratedMethod, TaskTemperature
from mirrorshot.training.build import build_method, build_preprocess
from mirrorshot.training.config import Config, from_dict
from mirrorshot.training.evaluation import Evaluation, Progress, evaluate
from mirrorshot.training.folder import read_config
from mirrorshot.types import DataError, InvalidInputError, MirrorshotError

Which = Literal["best", "last"]

_IMAGES_AT_ONCE = {"cpu": 64, "cuda": 2048}
_LARGEST_OPTION = 10_000
# heads and samplers are loops of small operations: on a GPU launches dominate their time, whatever the batch size
_TASKS_AT_ONCE = {"cpu": {"features": 64, "images": 8}, "cuda": {"features": 300, "images": 16}}


class Run(NamedTuple):
    """A trained method in eval mode, with its settings and the metadata of its checkpoint (step, validation).

    `rule` gives the temperatures of its predictions, fitted after training; None: predictions are unchanged.
    """

    config: Config
    method: FewShotMethod
    info: dict[str, Any]
    device: torch.device
    rule: TaskTemperature | None = None

    @property
    def predictor(self) -> FewShotMethod:
        """The method with its temperature rule, if there is one."""
        return self.method if self.rule is None else CalibratedMethod(self.method, self.rule).eval()


def load_run(
    folder: Path,
    dataset: Dataset,
    *,
    checkpoint: Which = "best",
    device: torch.device | str = "cpu",
    average_flips: bool | None = None,
) -> Run:
    """Load the trained method of a run, for items of the same shape as those of `dataset`.

    The checkpoint "best" has the weights with the best validation result. `average_flips` overrides `Config`; None: as
    in training. Raises `RunError` if there is no run, `CheckpointError` if it has no checkpoint yet or was trained on
    items of another shape.
    """
    if checkpoint not in ("best", "last"):
        raise InvalidInputError(f"Expected `checkpoint` to be 'best' or 'last', but got {checkpoint!r}.")
    settings = read_config(folder)
    saved = _load(Path(folder), checkpoint)
    # the last checkpoint may contain running averages of the weights
    average = {f"method.{name[8:]}": t for name, t in saved.tensors.items() if name.startswith("average.")}
    saved = Checkpoint(saved.tensors | average, saved.info)
    # settings in the checkpoint include the options derived from the training data
    config = _read_settings(saved, settings, folder)
    if average_flips is not None:
        config = config.replace(average_flips=average_flips)
    method = _build(config, dataset, folder)
    _check_same_items(saved, method, folder, dataset, config.data)
    load_method_state(method, saved, method_name=config.method)
    if dataset.image_size:  # several times faster, on CPUs too
        method.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rule = _read_rule(saved.info, folder) if checkpoint == "best" else None
    return Run(config, method.eval().requires_grad_(False).to(device), saved.info, torch.device(device), rule)


def load_test_data(data: str, *, skip_corrupt: bool = False, progress: Progress | None = None) -> Dataset:
    """Load the test classes of a data set and, if it has them, the validation classes; see `load_dataset`."""
    is_folder = data not in DATASETS and os.path.isdir(data)
    has_val = not is_folder or any(Path(data).glob("val*"))
    splits = ("val", "test") if has_val else ("test",)
    return load_dataset(data, splits=splits, skip_corrupt=skip_corrupt, progress=progress)


def stand_in(data: str, saved: Checkpoint) -> Dataset:
    """Return an empty data set with the item shape of a run's training data, from its name or the weights."""
    has_network = any(name.startswith("method.backbone.") for name in saved.tensors)
    if data in DATASETS and DATASETS[data].kind == "characters":
        return Dataset(data, None, None, None, 28, 1, False, CHARACTER_MEAN, CHARACTER_STD)
    if not has_network:
        return Dataset(data, None, None, None, 0, 0, False, (), ())
    return Dataset(data, None, None, None, 84, 3, False, IMAGENET_MEAN, IMAGENET_STD)


def evaluate_run(
    run: Run, dataset: Dataset, *, n_way: int | None = None, n_shot: int | None = None, **options: Any
) -> Evaluation:
    """Evaluate a run on the test classes of a data set, with a temperature fitted on its validation classes, if any.

    `n_way` and `n_shot` default to those of training; the other options are those of
    `mirrorshot.training.evaluation.evaluate`: `n_query`, `n_tasks`, `seeds`, `progress` and so on.
    """
    run, dataset = on_features(run, dataset)
    if dataset.test is None:
        raise DataError(f"Expected the test classes of {dataset.name}, but they were not loaded.")
    preprocess = build_preprocess(dataset) or torch.Tensor.float
    return evaluate(
        run.predictor,
        dataset.test,
        n_way=n_way or run.config.n_way,
        n_shot=n_shot or run.config.n_shot,
        prepare=lambda items: preprocess(items.to(run.device)),
        batch_size=_TASKS_AT_ONCE[run.device.type]["images" if dataset.image_size else "features"],
        validation=dataset.val,
        **options,
    )


def on_features(run: Run, dataset: Dataset) -> tuple[Run, Dataset]:
    """Replace images by their features, so that tasks sharing an image compute its features only once.

    Nothing changes for embeddings, and for methods that need more than the features of an image.
    """
    preprocess = build_preprocess(dataset)
    method = run.method.on_features()
    if preprocess is None or method is None:
        return run, dataset
    val, test = (part and embed(run, part, preprocess) for part in (dataset.val, dataset.test))
    return run._replace(method=method), dataset._replace(train=None, val=val, test=test, image_size=0, channels=0)


@torch.no_grad()
def embed(run: Run, source: ClassSource, preprocess: Preprocess) -> ClassSource:
    """Replace images by the features of a run, on its device."""
    chunks = source.to(run.device).items.split(_IMAGES_AT_ONCE[run.device.type])
    features = [run.method.backbone(preprocess(chunk)[None])[0].float() for chunk in chunks]
    return source.to(run.device)._replace(items=torch.cat(features), sizes=None)


def load_method_state(method: nn.Module, checkpoint: Checkpoint, *, method_name: str) -> None:
    """Load the parameters and buffers of a method, the tensors `method.*` of a checkpoint.

    Raises `CheckpointError`, listing the differences, for another method or other shapes.
    """
    saved_name = checkpoint.info.get("method")
    if saved_name != method_name:
        raise CheckpointError(
            f"Expected a checkpoint of the method {method_name!r}, but got one of {saved_name!r}. "
            "Build the method that the checkpoint names, or choose another checkpoint."
        )
    own, prefix = method.state_dict(), "method."
    saved = {name.removeprefix(prefix): t for name, t in checkpoint.tensors.items() if name.startswith(prefix)}
    differences = [
        *(f"{name}: only in the method" for name in own if name not in saved),
        *(f"{name}: only in the checkpoint" for name in saved if name not in own),
        *(
            f"{name}: {tuple(saved[name].shape)} in the checkpoint, {tuple(own[name].shape)} in the method"
            for name in own
            if name in saved and saved[name].shape != own[name].shape
        ),
    ]
    if differences:
        more = f"; and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise CheckpointError(
            f"Expected the tensors of the checkpoint to be those of the method, but {len(differences)} differ: "
            f"{'; '.join(differences[:4])}{more}. Build the method with the configuration that is in the checkpoint."
        )
    method.load_state_dict(saved)


def _load(folder: Path, checkpoint: Which) -> Checkpoint:
    try:
        return load_checkpoint(folder / f"{checkpoint}.safetensors")
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(
            f"Expected the run in {folder} to have a checkpoint, but it has none yet. Wait for its first one, or "
            f"resume the run: mirrorshot train --resume {folder}"
        ) from error


def _read_settings(saved: Checkpoint, settings: dict[str, Any], folder: Path) -> Config:
    """Read the settings of a checkpoint; refuse sizes far beyond its tensors before allocating memory."""
    given = saved.info.get("config", settings)
    if not isinstance(given, dict):
        raise CheckpointError(f"Expected the run in {folder} to have a table of settings, but got {str(given)[:60]!r}.")
    config = from_dict(given)
    largest = max([_LARGEST_OPTION, *(size for tensor in saved.tensors.values() for size in tensor.shape)])
    for value in _integers(config.method_options):
        if abs(value) > largest:
            raise CheckpointError(
                f"Expected the method options of the run in {folder} to be at most {largest}, but got {value}."
            )
    return config


def _read_rule(info: Mapping[str, Any], folder: Path) -> TaskTemperature | None:
    given = info.get("temperature_rule")
    if given is None:
        return None
    names = TaskTemperature._fields
    numbers = list(given.values()) if isinstance(given, dict) and set(given) == set(names) else [None]
    if not all(isinstance(number, float | int) and math.isfinite(number) for number in numbers):
        raise CheckpointError(
            f"Expected the temperature rule of the run in {folder} to have finite numbers {', '.join(names)}, but got "
            f"{str(given)[:80]}."
        )
    return TaskTemperature(**given)


def _integers(content: Any) -> Iterator[int]:
    if isinstance(content, int):
        yield content
    elif isinstance(content, (dict, list)):
        for child in content.values() if isinstance(content, dict) else content:
            yield from _integers(child)


def _build(config: Config, dataset: Dataset, folder: Path) -> FewShotMethod:
    try:
        return build_method(config, dataset)
    except MirrorshotError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"Expected the run in {folder} to have settings of a method, but got: {type(error).__name__}: {error}."
        ) from error


def _check_same_items(saved: Checkpoint, method: FewShotMethod, folder: Path, dataset: Dataset, data: str) -> None:
    """Compare the networks first, so the message is about the data instead of tensors."""
    prefix = "method.backbone."
    trained = {name[len(prefix) :]: t.shape for name, t in saved.tensors.items() if name.startswith(prefix)}
    if trained != {name: tensor.shape for name, tensor in method.backbone.state_dict().items()}:
        kind = f"images with {dataset.channels} channels" if dataset.image_size else "embeddings"
        raise CheckpointError(
            f"Expected data like those that the run in {folder} was trained on ({data}), but "
            f"{dataset.name} has {kind}, which its network does not take."
        )

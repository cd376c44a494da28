"""Construction of the parts of a run from its settings: method, preprocessing, samplers, stream."""

import zlib
from typing import Any

import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.augment import CROP_AREA, Preprocess
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.methods import METHODS, FewShotMethod, PretrainedMethod, make_method, method_options
from mirrorshot.networks.backbones import Backbone, ImageBackbone, make_backbone
from mirrorshot.networks.blocks import hold_subtracted_biases
from mirrorshot.training.config import Config
from mirrorshot.training.stream import ItemStream, Stream, TaskStream
from mirrorshot.types import InvalidInputError

_VALIDATION_SEED = 10_007  # the same validation tasks for all seeds of a run
_TRAINING_SIZES = {"n_way": "train_way", "n_shot": "train_shot", "n_query": "train_query"}  # 0: as the first


def build_method(config: Config, dataset: Dataset) -> FewShotMethod:
    """Build the configured method for the items of a data set, with initial weights, on the CPU."""
    backbone = _build_backbone(config, dataset)
    options = dict(config.method_options)
    if config.method in METHODS and "seed" in method_options(config.method):
        # differs from the network's seed, which is the seed of the run
        options.setdefault("seed", zlib.crc32(f"{config.seed} head".encode()))
    method = make_method(config.method, backbone, **options)
    hold_subtracted_biases(method)
    return method


def _build_backbone(config: Config, dataset: Dataset) -> Backbone:
    name = backbone_name(config, dataset)
    options: dict[str, Any] = {"generator": torch.Generator().manual_seed(config.seed), "norm": config.norm}
    if dataset.image_size:
        options["in_channels"] = dataset.channels
        if name.startswith("conv4"):
            options["image_size"] = dataset.image_size
    else:
        source = next(source for source in (dataset.train, dataset.val, dataset.test) if source is not None)
        options["in_features"] = source.items.shape[1]
    if (dataset.image_size == 0) != (name == "identity"):
        raise InvalidInputError(
            f"Expected backbone 'identity' for embeddings and another one for images, but got {name!r} for "
            f"{dataset.name}."
        )
    backbone = make_backbone(name, **options)
    if config.average_flips:
        if not isinstance(backbone, ImageBackbone):
            raise InvalidInputError(f"Expected images for average_flips=true, but {dataset.name} has embeddings.")
        backbone.average_flips = True
    return backbone


def place_method(method: FewShotMethod, config: Config, device: torch.device) -> FewShotMethod:
    """Move a method to a device, with the dtype and memory format in which its network is fastest."""
    method = method.to(device)
    if config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda"):
        method.network_dtype = torch.bfloat16
    if isinstance(method.backbone, ImageBackbone):
        method.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method


def resolve_options(config: Config, dataset: Dataset) -> Config:
    """Fill in the method options that follow from the task and the data."""
    known, given = method_options(config.method), config.method_options
    _check_training_tasks(config, dataset)
    found = {"n_way": config.n_way} | ({} if dataset.train is None else {"n_base_classes": dataset.train.n_classes})
    found = {key: value for key, value in found.items() if key in known}
    for key, value in found.items():
        if given.get(key, value) != value:
            raise InvalidInputError(
                f"Expected method_options.{key} to be {value}, as tasks and data have it, but got {given[key]}. Leave "
                "it out."
            )
    return config.replace(method_options=found) if set(found) - set(given) else config


def _check_training_tasks(config: Config, dataset: Dataset) -> None:
    given = [f"{own}={size}" for own in _TRAINING_SIZES.values() if (size := getattr(config, own))]
    if given and is_pretrained(config):
        raise InvalidInputError(
            f"Expected no size of training tasks for {config.method}, which does not learn from tasks, but got "
            f"{', '.join(given)}. Leave it out."
        )
    options = method_options(config.method) | config.method_options
    if config.train_way not in (0, config.n_way) and "n_way" in options and options.get("per_class_mean", True):
        raise InvalidInputError(
            f"Expected train_way={config.n_way} or 0 for {config.method}, which has an output for each class of a "
            f"task, but got {config.train_way}."
        )
    if dataset.train is not None and config.train_way > dataset.train.n_classes:
        raise InvalidInputError(
            f"Expected train_way to be at most {dataset.train.n_classes}, the number of training classes, but got "
            f"{config.train_way}."
        )


def backbone_name(config: Config, dataset: Dataset) -> str:
    """Return the name of the network; "auto" depends on the items and on whether the method needs feature maps."""
    if config.backbone != "auto":
        return config.backbone
    if not dataset.image_size:
        return "identity"
    name = "conv4s" if dataset.image_size < 64 else "conv4"
    return f"{name}np" if getattr(METHODS.get(config.method), "needs_maps", False) else name


def build_preprocess(
    dataset: Dataset, *, augment: bool = False, crop_area: float = CROP_AREA, distort: float = 0.0
) -> Preprocess | None:
    """Build the preprocessing of stored images; None for embeddings."""
    if not dataset.image_size:
        return None
    return Preprocess(dataset.image_size, dataset.mean, dataset.std, augment, crop_area, distort)


def training_preprocess(config: Config, dataset: Dataset) -> Preprocess | None:
    """Build the preprocessing of training images, with the configured augmentation."""
    if config.distort and not dataset.image_size:
        raise InvalidInputError(f"Expected images for distort={config.distort:g}, but the data are embeddings.")
    augment = dataset.augment if config.augment == "auto" else bool(config.augment)
    return build_preprocess(dataset, augment=augment, crop_area=config.crop_area, distort=config.distort)


def training_sampler(config: Config, source: ClassSource) -> EpisodeSampler:
    """Build the sampler of the training tasks."""
    sizes = {size: getattr(config, own) or getattr(config, size) for size, own in _TRAINING_SIZES.items()}
    return _sampler(config.replace(**sizes), source, config.seed)


def tuning_sampler(config: Config, source: ClassSource) -> EpisodeSampler:
    """Build the sampler of tasks of training classes with the size of validation tasks."""
    return _sampler(config, source, config.seed)


def validation_sampler(config: Config, source: ClassSource) -> EpisodeSampler:
    """Build the sampler of the validation tasks, which are the same for every run."""
    return _sampler(config, source, _VALIDATION_SEED)


def _sampler(config: Config, source: ClassSource, seed: int) -> EpisodeSampler:
    sizes = {size: getattr(config, size) for size in _TRAINING_SIZES}
    return EpisodeSampler(source, **sizes, seed=seed, on_small_class=config.on_small_class)


def is_pretrained(config: Config) -> bool:
    """Return whether the method learns from single items instead of tasks."""
    return config.method in METHODS and issubclass(METHODS[config.method], PretrainedMethod)


def check_shares(config: Config, world_size: int) -> None:
    """Raise if the processes cannot share the steps equally."""
    name = "batch_size" if is_pretrained(config) else "tasks_per_step"
    size = getattr(config, name)
    if size % world_size:
        raise InvalidInputError(f"Expected `{name}` to be a multiple of the {world_size} processes, but got {size}.")


def build_stream(config: Config, dataset: Dataset, sampler: EpisodeSampler, *, rank: int, world_size: int) -> Stream:
    """Build the stream of training data: tasks or, for pre-trained methods, single items of all classes."""
    preprocess = training_preprocess(config, dataset)
    share = {"seed": config.seed, "rank": rank, "world_size": world_size}
    if is_pretrained(config):
        if config.turn_classes:
            raise InvalidInputError(
                f"Expected turn_classes=false for {config.method}, which does not learn from tasks."
            )
        return ItemStream(sampler, preprocess, config.batch_size, **share)
    return TaskStream(sampler, preprocess, config.tasks_per_step, turn_classes=config.turn_classes, **share)

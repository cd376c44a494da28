"""From settings to what they name: data on the device, preprocessing, network, method."""

import zlib
from typing import Any

import torch

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.augment import CROP_AREA, Preprocess
from mirrorshot.data.benchmarks import Dataset
from mirrorshot.methods import METHODS, FewShotMethod, PretrainedMethod, make_method, method_options
from mirrorshot.networks.backbones import ImageBackbone, make_backbone
from mirrorshot.networks.blocks import hold_subtracted_biases
from mirrorshot.training.config import Config
from mirrorshot.training.stream import ItemStream, Stream, TaskStream
from mirrorshot.types import InvalidInputError

_VALIDATION_SEED = 10_007  # tasks of validation do not depend on the seed of a run


def build_method(config: Config, dataset: Dataset) -> FewShotMethod:
    """The method of the settings for items like those of the data set, with fresh weights, on the CPU."""
    name = backbone_name(config, dataset)
    generator = torch.Generator().manual_seed(config.seed)
    options: dict[str, Any] = {"generator": generator, "norm": config.norm}
    if not dataset.image_size:
        options["in_features"] = n_features(dataset)
    elif name.startswith("conv4"):
        options |= {"in_channels": dataset.channels, "image_size": dataset.image_size}
    else:
        options["in_channels"] = dataset.channels
    if (dataset.image_size == 0) != (name == "identity"):
        raise InvalidInputError(
            f"Expected backbone 'identity' for embeddings and another one for pictures, but got {name!r} for "
            f"{dataset.name}."
        )
    backbone = make_backbone(name, **options)
    if config.average_flips:
        if not isinstance(backbone, ImageBackbone):
            raise InvalidInputError(f"Expected pictures for average_flips=true, but {dataset.name} has embeddings.")
        backbone.average_flips = True
    chosen = dict(config.method_options)
    if config.method in METHODS and "seed" in method_options(config.method):
        chosen.setdefault("seed", head_seed(config.seed))
    method = make_method(config.method, backbone, **chosen)
    hold_subtracted_biases(method)
    return method


def head_seed(seed: int) -> int:
    """Seed of the weights that a method draws besides its network, whose seed is that of the run itself.

    Example:
        >>> head_seed(0) != head_seed(1)
        True
    """
    return zlib.crc32(f"{seed} head".encode())


def place_method(method: FewShotMethod, config: Config, device: torch.device) -> FewShotMethod:
    """The method on a device, with the type and the layout of memory in which its network is fastest."""
    method = method.to(device)
    if config.precision == "bfloat16" or (config.precision == "auto" and device.type == "cuda"):
        method.network_dtype = torch.bfloat16
    if isinstance(method.backbone, ImageBackbone):
        method.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method


def resolve_options(config: Config, dataset: Dataset) -> Config:
    """The settings with those options of the method filled in that follow from the task and the data."""
    known = method_options(config.method)
    found: dict[str, Any] = {"n_way": config.n_way}
    if dataset.train is not None:
        found["n_base_classes"] = dataset.train.n_classes
    for key, value in found.items():
        given = config.method_options.get(key, value)
        if key in known and given != value:
            raise InvalidInputError(
                f"Expected method_options.{key} to be {value}, as tasks and data have it, but got {given}. Leave it "
                "out."
            )
    missing = {key: value for key, value in found.items() if key in known and key not in config.method_options}
    return config.replace(method_options=missing) if missing else config


def backbone_name(config: Config, dataset: Dataset) -> str:
    """The network of the settings; "auto" depends on the items, and on whether the method needs maps."""
    if config.backbone != "auto":
        return config.backbone
    if not dataset.image_size:
        return "identity"
    name = "conv4s" if dataset.image_size < 64 else "conv4"
    return f"{name}np" if getattr(METHODS.get(config.method), "needs_maps", False) else name


def n_features(dataset: Dataset) -> int:
    """Length of the embeddings of a data set."""
    source = next(source for source in (dataset.train, dataset.val, dataset.test) if source is not None)
    return source.items.shape[1]


def build_preprocess(dataset: Dataset, *, augment: bool = False, crop_area: float = CROP_AREA) -> Preprocess | None:
    """From stored pictures to what the backbone takes; None for embeddings."""
    if not dataset.image_size:
        return None
    return Preprocess(dataset.image_size, dataset.mean, dataset.std, augment=augment, crop_area=crop_area)


def is_augmented(config: Config, dataset: Dataset) -> bool:
    """Whether training pictures are augmented."""
    return dataset.augment if config.augment == "auto" else bool(config.augment)


def training_sampler(config: Config, source: ClassSource) -> EpisodeSampler:
    """Draws the tasks to train on."""
    return EpisodeSampler(
        source, config.n_way, config.n_shot, config.n_query, seed=config.seed, on_small_class=config.on_small_class
    )


def validation_sampler(config: Config, source: ClassSource) -> EpisodeSampler:
    """Draws the tasks to validate on, the same ones for every run."""
    return EpisodeSampler(
        source,
        config.n_way,
        config.n_shot,
        config.n_query,
        seed=_VALIDATION_SEED,
        on_small_class=config.on_small_class,
    )


def is_pretrained(config: Config) -> bool:
    """Whether the method learns from single items instead of tasks."""
    return config.method in METHODS and issubclass(METHODS[config.method], PretrainedMethod)


def check_shares(config: Config, world_size: int) -> None:
    """Refuse steps that cannot be shared between the processes."""
    name = "batch_size" if is_pretrained(config) else "tasks_per_step"
    size = getattr(config, name)
    if size % world_size:
        raise InvalidInputError(f"Expected `{name}` to be a multiple of the {world_size} processes, but got {size}.")


def build_stream(config: Config, dataset: Dataset, sampler: EpisodeSampler, *, rank: int, world_size: int) -> Stream:
    """What the method learns from: tasks or, for methods that are pre-trained, single items of all classes."""
    preprocess = build_preprocess(dataset, augment=is_augmented(config, dataset), crop_area=config.crop_area)
    if is_pretrained(config):
        return ItemStream(sampler, preprocess, config.batch_size, seed=config.seed, rank=rank, world_size=world_size)
    return TaskStream(sampler, preprocess, config.tasks_per_step, seed=config.seed, rank=rank, world_size=world_size)

"""Typed and validated settings of a training run, stored with every run.

The command line imports this module without torch, so `--help` is fast.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from mirrorshot.types import InvalidInputError

Schedule = Literal["constant", "cosine"]
Precision = Literal["auto", "float32", "bfloat16"]
Norm = Literal["episode", "task"]
Optimizer = Literal["adam", "muon"]

FREE = ("device", "save_every", "tensorboard")
"""Settings that do not affect the result of a run; they may change when it is resumed."""


@dataclass(frozen=True)
class Config:
    """Settings of a training run. Every field can be set in a TOML file and on the command line.

    Attributes:
        method: name of the method.
        method_options: its options, for instance kernel and number of inner steps.
        data: name of a data set, or path of a folder with `train`, `val` and `test`.
        backbone: name of the network; "auto": conv4s for small images, conv4 for others, identity for embeddings.
        n_way, n_shot, n_query: classes of a task, labelled items per class, and query items per class.
        train_way, train_shot, train_query: `n_way`, `n_shot` and `n_query` of training tasks; 0: as for other tasks.
        n_episodes: number of training tasks.
        tasks_per_step: tasks of one optimiser step, over all processes.
        batch_size: images of one optimiser step of pre-trained methods; a step counts as `tasks_per_step` episodes.
        optimizer: "adam", or "muon": Muon for the convolutions of the network, Adam for all other parameters.
        lr, kernel_lr: learning rates of the network and of the kernel.
        schedule: "constant", or "cosine": the learning rates decay to zero along a cosine.
        ema: decay of the running average of the weights that is validated and saved; 0: no average.
        auxiliary_weight: weight of an auxiliary cross-entropy over all training classes, added to the loss of the tasks
            if there is a network to train; 0: none.
        auxiliary_smoothing: label smoothing of the auxiliary loss.
        auxiliary_schedule: "constant", or "cosine": the weight decays to zero along a cosine.
        clip: maximum norm of the gradient; 0: no limit.
        augment: whether training images are augmented; "auto": as the data set says.
        turn_classes: whether the training images of each class of a task are rotated by the same random multiple of 90
            degrees, which makes four times as many classes.
        crop_area: smallest area of a random crop, relative to the image.
        distort: share of the training images that are warped, and of those whose strokes become thicker or thinner;
            for characters.
        average_flips: average the features of each image and its mirror image, except in training.
        norm: statistics of the batch normalisation, over a whole step ("episode") or each task ("task").
        precision: dtype of the network's computations; "auto": bfloat16 on a GPU, float32 on the CPU.
        accelerate: compile the network or its adaptation, and record the step as a CUDA graph; GPU only.
        validate_every: episodes between two validations.
        n_validation_tasks: tasks of a validation, the same every time.
        n_tune_tasks: training tasks on which `tune` fits temperature and starting sites before each validation.
        n_calibration_tasks: tasks of validation classes, and as many with simulated domain shifts, on which the
            temperature rule of the best weights is fitted after training; 0: no rule.
        save_every: minimum seconds between two checkpoints, which are written after a validation.
        on_small_class: "error", or "fewer_queries", if a class has too few items.
        seed: seed of weights, tasks and augmentation.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".
        tensorboard: also write TensorBoard files.
    """

    method: str = "mirror_gp"
    method_options: dict[str, Any] = field(default_factory=dict)
    data: str = "glyphs"
    backbone: str = "auto"
    n_way: int = 5
    n_shot: int = 1
    n_query: int = 16
    train_way: int = 0
    train_shot: int = 0
    train_query: int = 0
    n_episodes: int = 20_000
    tasks_per_step: int = 1
    batch_size: int = 16
    optimizer: Optimizer = "adam"
    lr: float = 1e-3
    kernel_lr: float = 1e-3
    schedule: Schedule = "cosine"
    ema: float = 0.0
    auxiliary_weight: float = 0.0
    auxiliary_smoothing: float = 0.0
    auxiliary_schedule: Schedule = "constant"
    clip: float = 0.0
    augment: bool | Literal["auto"] = "auto"
    turn_classes: bool = False
    crop_area: float = 0.08
    distort: float = 0.0
    average_flips: bool = False
    norm: Norm = "episode"
    precision: Precision = "auto"
    accelerate: bool = True
    validate_every: int = 100
    n_validation_tasks: int = 100
    n_tune_tasks: int = 50
    n_calibration_tasks: int = 0
    save_every: float = 20.0
    on_small_class: Literal["error", "fewer_queries"] = "fewer_queries"
    seed: int = 1
    device: str = "auto"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name, hint in field_types().items():
            value = getattr(self, name)
            if not _fits(value, hint):
                raise InvalidInputError(f"Expected setting `{name}` to be {_describe(hint)}, but got {value!r}.")
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidInputError(f"Expected setting `{name}` to be between {low} and {high}, but got {value}.")
        if self.train_way == 1:
            raise InvalidInputError("Expected setting `train_way` to be 0 or at least 2, but got 1.")
        if self.validate_every % self.tasks_per_step:
            raise InvalidInputError(
                f"Expected `validate_every` to be a multiple of `tasks_per_step`, but got {self.validate_every} and "
                f"{self.tasks_per_step}."
            )
        _check_json(self.method_options)

    @property
    def n_steps(self) -> int:
        """Number of optimiser steps of the run."""
        return math.ceil(self.n_episodes / self.tasks_per_step)

    @property
    def steps_per_validation(self) -> int:
        """Number of optimiser steps between two validations."""
        return self.validate_every // self.tasks_per_step

    def to_dict(self) -> dict[str, Any]:
        """Return all settings, ready for JSON."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Config:
        """Return a copy with some settings changed; `method_options` and nested tables are merged.

        Example:
            >>> Config().replace(n_shot=5, method_options={"n_steps": 2}).method_options
            {'n_steps': 2}
        """
        check_names(changes)
        if "method_options" in changes:
            changes["method_options"] = merged(self.method_options, changes["method_options"])
        return dataclasses.replace(self, **changes)


_BOUNDS: dict[str, tuple[float, float]] = {
    "n_way": (2, 1000), "n_shot": (1, 1000), "n_query": (1, 1000), "train_way": (0, 1000),
    "train_shot": (0, 1000), "train_query": (0, 1000), "n_episodes": (1, 10**9),
    "tasks_per_step": (1, 4096), "batch_size": (1, 65536), "lr": (0.0, 10.0), "kernel_lr": (0.0, 10.0),
    "ema": (0.0, 0.999999), "auxiliary_weight": (0.0, 1e6), "auxiliary_smoothing": (0.0, 0.99),
    "clip": (0.0, 1e9), "crop_area": (0.001, 1.0), "distort": (0.0, 1.0), "validate_every": (1, 10**9),
    "n_validation_tasks": (1, 10**6), "n_tune_tasks": (1, 10**5), "n_calibration_tasks": (0, 10**5),
    "save_every": (0.0, 1e9), "seed": (0, 2**62),
}  # fmt: skip


@functools.cache
def field_types() -> dict[str, Any]:
    """Return the names and types of all settings."""
    hints = typing.get_type_hints(Config)
    return {f.name: hints[f.name] for f in dataclasses.fields(Config)}


def from_dict(settings: Mapping[str, Any]) -> Config:
    """Create settings from a plain dict, the inverse of `Config.to_dict`."""
    check_names(settings)
    return Config(**settings)


def merged(old: Any, new: Any) -> Any:
    """Return `new` merged into `old`, table by table."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}


def _check_json(options: Mapping[str, Any]) -> None:
    try:
        json.dumps(options, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"Expected setting `method_options` to hold only what JSON can, but got {options!r}: {error}."
        ) from error


def check_names(settings: Mapping[str, Any], where: str = "") -> None:
    """Raise for unknown settings; `where` names their file in the message."""
    known = list(field_types())
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean `{close[0]}`?" if close else f" Settings are: {', '.join(known)}."
            option = f" If it is an option of the method: `method_options.{name}`."
            raise InvalidInputError(f"Expected settings that exist, but got `{name}`{where}.{hint}{option}")


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin is dict:
        return isinstance(value, dict)
    if hint is float:
        return (isinstance(value, float) and math.isfinite(value)) or _fits(value, int)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _describe(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in typing.get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return {float: "a finite number", int: "an integer", bool: "true or false", str: "text", dict: "a table"}.get(
        origin or hint, str(hint)
    )

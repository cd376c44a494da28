"""Meta-training and evaluation on one CPU, one GPU or many."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorshot.training.build import build_method, build_preprocess
    from mirrorshot.training.session import train
    from mirrorshot.training.trainer import Trainer, TrainResult

__all__ = ["TrainResult", "Trainer", "build_method", "build_preprocess", "train"]

_HOMES = {
    "TrainResult": "trainer",
    "Trainer": "trainer",
    "build_method": "build",
    "build_preprocess": "build",
    "train": "session",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line reads `config` and `presets` without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mirrorshot.training.{_HOMES[name]}"), name)

"""Meta-training on one CPU, one GPU or many."""

from mirrorshot.training.build import build_method, build_preprocess
from mirrorshot.training.loop import Trainer, TrainResult, train

__all__ = ["TrainResult", "Trainer", "build_method", "build_preprocess", "train"]

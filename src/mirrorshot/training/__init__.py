"""Meta-training on one CPU, one GPU or many."""

from mirrorshot.training.build import build_method, build_preprocess
from mirrorshot.training.session import train
from mirrorshot.training.trainer import Trainer, TrainResult

__all__ = ["TrainResult", "Trainer", "build_method", "build_preprocess", "train"]

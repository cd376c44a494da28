"""Evaluation of trained methods by the paper's protocol, with calibration and paired comparisons."""

from mirrorshot.data.decoding import Progress
from mirrorshot.training.evaluation.calibration import Calibration, calibration_of
from mirrorshot.training.evaluation.predictions import (
    Latents,
    Predictions,
    Prepare,
    predict_latents,
    predict_tasks,
)
from mirrorshot.training.evaluation.protocol import evaluate
from mirrorshot.training.evaluation.results import Evaluation, PairedDifference, Protocol, paired_difference
from mirrorshot.training.evaluation.temperatures import Tempered

__all__ = [
    "evaluate",
    "Evaluation",
    "Protocol",
    "Calibration",
    "calibration_of",
    "Tempered",
    "predict_tasks",
    "Predictions",
    "predict_latents",
    "Latents",
    "Prepare",
    "Progress",
    "paired_difference",
    "PairedDifference",
]

"""What a trained method is worth: the paper's protocol, with calibration, and comparisons in pairs."""

from mirrorshot.evaluation.predictions import Predictions, Prepare, Progress, predict_tasks
from mirrorshot.evaluation.protocol import evaluate
from mirrorshot.evaluation.results import Calibration, Evaluation, PairedDifference, Protocol, paired_difference

__all__ = [
    "evaluate", "Evaluation", "Protocol", "Calibration",
    "predict_tasks", "Predictions", "Prepare", "Progress",
    "paired_difference", "PairedDifference",
]  # fmt: skip

"""Fitted models for people with pictures: read items, fit, predict, edit, save, load."""

from mirrorshot.models.encoding import Encoded, decide, encode_items
from mirrorshot.models.items import Items, read_labelled, read_unlabelled
from mirrorshot.models.model import Model
from mirrorshot.models.prediction import Prediction, Reason

__all__ = [
    "Model", "Prediction", "Reason",
    "Items", "read_labelled", "read_unlabelled",
    "Encoded", "encode_items", "decide",
]  # fmt: skip

"""Fitted models for people with images: read items, fit, predict, edit, save, load."""

from mirrorshot.tool.encoding import Encoded, decide, encode_items
from mirrorshot.tool.items import Items, read_labelled, read_unlabelled
from mirrorshot.tool.model import Model
from mirrorshot.tool.results import Prediction, Reason
from mirrorshot.tool.scores import Scores

__all__ = [
    "Model", "Prediction", "Reason", "Scores",
    "Items", "read_labelled", "read_unlabelled",
    "Encoded", "encode_items", "decide",
]  # fmt: skip

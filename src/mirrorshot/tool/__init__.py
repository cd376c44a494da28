"""Models of images, texts or embeddings: read items, fit, predict, edit, save and load."""

from mirrorshot.tool.choosing import decide
from mirrorshot.tool.encoding import Encoded, encode_items
from mirrorshot.tool.items import Items
from mirrorshot.tool.model import Model
from mirrorshot.tool.reading import read_labelled, read_unlabelled
from mirrorshot.tool.results import Prediction, Reason, Word
from mirrorshot.tool.scores import Scores

__all__ = [
    "Model", "Prediction", "Reason", "Scores", "Word",
    "Items", "read_labelled", "read_unlabelled",
    "Encoded", "encode_items", "decide",
]  # fmt: skip

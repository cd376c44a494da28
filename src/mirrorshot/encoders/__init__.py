"""Encoders, which compute embeddings of images and texts for `FewShotClassifier`."""

from mirrorshot.encoders.base import Embeddings, Encoder, EncoderError, Item, Kind
from mirrorshot.encoders.characters import as_character, is_colour
from mirrorshot.encoders.registry import ENCODERS, Choice, candidates, choose_encoder, make_encoder, restore_encoder

__all__ = [
    "Encoder", "EncoderError", "Embeddings", "Item", "Kind", "ENCODERS", "Choice",
    "make_encoder", "restore_encoder", "choose_encoder", "candidates", "as_character", "is_colour",
]  # fmt: skip

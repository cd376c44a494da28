"""Data sets of classes, and the few-shot episodes drawn from them.

A `ClassSource` holds the items of many classes, an `EpisodeSampler` draws batches of tasks from it, `load_glyphs`
is the data set that needs no download.
"""

from mirrorshot.data.episodes import EpisodeSampler
from mirrorshot.data.glyphs import load_glyphs
from mirrorshot.data.source import ClassSource

__all__ = ["ClassSource", "EpisodeSampler", "load_glyphs"]

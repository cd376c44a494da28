"""Data sets of classes, and the few-shot episodes drawn from them.

A `ClassSource` holds the items of many classes, an `EpisodeSampler` draws batches of tasks from it, and a `Preprocess`
turns images into the input of a backbone. Names are imported on first use, so commands can start without torch.
"""

from typing import TYPE_CHECKING

from mirrorshot.files.lazy import lazy_exports

if TYPE_CHECKING:
    from mirrorshot.data.augment import (
        CHARACTER_MEAN,
        CHARACTER_STD,
        IMAGENET_MEAN,
        IMAGENET_STD,
        Preprocess,
        evaluation_pictures,
    )
    from mirrorshot.data.benchmarks import DATASETS, Dataset, load_dataset
    from mirrorshot.data.embeddings import read_embeddings
    from mirrorshot.data.episodes import EpisodeSampler
    from mirrorshot.data.glyphs import load_glyphs
    from mirrorshot.data.images import read_folder
    from mirrorshot.data.packed import read_packed
    from mirrorshot.data.source import ClassSource

__all__ = [
    "ClassSource",
    "EpisodeSampler",
    "DATASETS",
    "Dataset",
    "load_dataset",
    "load_glyphs",
    "read_embeddings",
    "read_folder",
    "read_packed",
    "Preprocess",
    "evaluation_pictures",
    "CHARACTER_MEAN",
    "CHARACTER_STD",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "augment": "CHARACTER_MEAN CHARACTER_STD IMAGENET_MEAN IMAGENET_STD Preprocess evaluation_pictures",
        "benchmarks": "DATASETS Dataset load_dataset",
        "embeddings": "read_embeddings",
        "episodes": "EpisodeSampler",
        "glyphs": "load_glyphs",
        "images": "read_folder",
        "packed": "read_packed",
        "source": "ClassSource",
    },
)

"""Priors learned from the embeddings of background classes and of degraded copies of their images."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageFilter

from mirrorshot.classifier.prior import Prior
from mirrorshot.classifier.prior_learning import learn_prior
from mirrorshot.data.decoding import Progress
from mirrorshot.encoders import Embeddings, Encoder
from mirrorshot.tool.encoding import encode_items, read_batches
from mirrorshot.tool.items import Items

_BLUR = 1 / 64  # standard deviation, as a fraction of the longer side


def background_prior(
    items: Items, encoder: Encoder, *, learned_on: str = "", progress: Progress | None = None
) -> Prior:
    """Learn the prior of an encoder from labelled items of many classes; `learned_on` describes the data."""
    found = encode_items(encoder, items, progress=progress)
    labels = np.unique(found.items.labels or [], return_inverse=True)[1]
    domains = [(found.embeddings, labels)]
    if items.kind == "picture":
        domains += [(_encode(encoder, found.items, change), labels) for change in (blurred, in_grey)]
    return learn_prior(domains, encoder=encoder.name, learned_on=learned_on[:200])


def _encode(encoder: Encoder, items: Items, change: Callable[[Image.Image], Image.Image]) -> Embeddings:
    batches = read_batches(items.content)
    return np.concatenate(
        [encoder.encode([change(i) for i in batch.values() if isinstance(i, Image.Image)]) for batch in batches]
    )


def blurred(image: Image.Image) -> Image.Image:
    """Return a blurred copy.

    Example:
        >>> blurred(Image.new("L", (64, 64))).size
        (64, 64)
    """
    return image.filter(ImageFilter.GaussianBlur(_BLUR * max(image.size)))


def in_grey(image: Image.Image) -> Image.Image:
    """Return a copy in shades of grey, of the same mode.

    Example:
        >>> in_grey(Image.new("RGB", (1, 1), "red")).getpixel((0, 0))
        (76, 76, 76)
    """
    return image.convert("L").convert(image.mode)

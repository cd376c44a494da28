"""Images of users: decoding in worker processes, embeddings, previews and copies."""

import hashlib
import io
import json
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders import Encoder, choose_encoder, make_encoder
from mirrorshot.files.imaging import ImageError
from mirrorshot.files.imaging.reading import make_preview
from mirrorshot.files.imaging.workers import ClosedError, DecodeWorkers
from mirrorshot.files.texts import harmless
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.records import New
from mirrorshot.serve.settings import Limits
from mirrorshot.tool import Model
from mirrorshot.tool.encoding import thumbnail
from mirrorshot.tool.priors import is_prior_of
from mirrorshot.types import DataError

PREVIEW = 128  # side in pixels
_COPY = 320  # shorter side of copies in pixels
_MAX_NAME = 120
N_WORKERS = 2  # images that are decoded and encoded in parallel; each may need some hundred megabytes


class Encoders:
    """The encoders that users of this server may choose from; with a `model` only its encoder.

    Operators of the server have to trust encoders in `names` that are not part of the package.
    """

    def __init__(self, names: tuple[str, ...] = ("glyphs", "pixels"), model: Model | None = None, *, download: bool):
        made = [model.encoder] if model is not None else [make_encoder(name, download=download) for name in names]
        for encoder in made:
            if encoder.kind != "picture":
                raise DataError(f"Expected a model of images, but got one of {encoder.kind}s. Fit one on images.")
        self._by_identity = {identity(encoder): encoder for encoder in made}
        self._turns = {name: threading.Lock() for name in self._by_identity}  # users' encoders may not be thread-safe
        for name in self._by_identity:
            self.encode(name, Image.new("RGB", (8, 8), "white"))

    @property
    def identities(self) -> dict[str, str]:
        """Identities of the encoders by name."""
        return {encoder.name: key for key, encoder in self._by_identity.items()}

    def get(self, encoder: str) -> Encoder:
        """Return the encoder of an identity, or raise a `RequestError` if the server was started without it."""
        if encoder not in self._by_identity:
            raise RequestError(
                409,
                f"Expected images that were encoded by {', '.join(self.identities)} of this server, but yours "
                f"were by another {name_of(encoder)!r}. Choose the encoder of your images again; labels stay.",
            )
        return self._by_identity[encoder]

    def decide(self, image: Image.Image) -> str:
        """Return the identity of the encoder for a user's first image: `glyphs` for characters, or the first other."""
        if len(self._by_identity) == 1:
            return next(iter(self._by_identity))
        other = next(name for name in self.identities if name != "glyphs")
        return self.identities[choose_encoder([image], other).name]

    def encode(self, encoder: str, image: Image.Image) -> NDArray[Any]:
        """Return the embedding (D,) of an image."""
        known = self.get(encoder)
        with self._turns[encoder]:
            return np.asarray(known.encode([image])[0])


class Received(NamedTuple):
    """An image to store, and the identities of its encoder and of the encoder that suits it best."""

    encoder: str
    new: New
    best: str


def identity(encoder: Encoder) -> str:
    """Return the name and a hash of the settings; embeddings of equal identities are comparable.

    Example:
        >>> identity(make_encoder("pixels"))
        'pixels#9a0d02c3'
    """
    settings = json.dumps(encoder.settings, sort_keys=True).encode()
    return f"{encoder.name}#{hashlib.sha256(settings).hexdigest()[:8]}"


def name_of(encoder: str) -> str:
    """Return the name in an identity."""
    return encoder.partition("#")[0]


def receive(workers: DecodeWorkers, encoders: Encoders, encoder: str | None, content: bytes, name: str) -> Received:
    """Decode, encode and copy an image, or raise a `RequestError`."""
    try:
        image, preview = workers.decode(content)
    except ClosedError as error:
        raise RequestError(503, "Expected the server to run, but it is stopping. Send the image again.") from error
    except ImageError as error:
        raise RequestError(
            422, f"Expected an image that can be read, but got: {error}. Send it as PNG or JPEG."
        ) from error
    best = encoders.decide(image)
    chosen = encoder or best
    new = New(plain_name(name), encoders.encode(chosen, image), preview, make_copy(image))
    return Received(chosen, new, best)


def make_copy(image: Image.Image) -> bytes:
    """Return a small copy for other encoders: images of up to 128 x 128 pixels as PNG, others as JPEG.

    The shorter side has at most 320 pixels, more than networks use, and the longer one at most 640.
    """
    width, height = image.size
    scale = min(1.0, _COPY / min(width, height), 2 * _COPY / max(width, height))
    small = image.resize((max(1, round(scale * width)), max(1, round(scale * height))), Image.Resampling.BICUBIC)
    small.info = {}  # encoders copy it into the file
    file = io.BytesIO()
    if width * height <= PREVIEW**2:
        small.save(file, "PNG")
    else:
        small.save(file, "JPEG", quality=92, subsampling=0)
    return file.getvalue()


def read_previews(previews: list[bytes]) -> NDArray[np.uint8]:
    """Convert previews to the thumbnails of a model."""
    return np.stack([thumbnail(Image.open(io.BytesIO(preview))) for preview in previews])


def plain_name(name: str) -> str:
    r"""Return the last part of a file name as harmless, short text, which is only shown.

    Example:
        >>> plain_name("../../etc/pass\x00wd")
        'pass?wd'
    """
    last = name.replace("\\", "/").rsplit("/", 1)[-1].encode("utf-8", "replace").decode("utf-8")
    shown = "".join(c if c == harmless(c, keep="") else "?" for c in last).strip()
    return shown[:_MAX_NAME] or "image"


def examples_of(model: Model, limits: Limits) -> tuple[str, dict[str, Any], list[tuple[str, New]]]:
    """Return encoder, parameters and labelled examples of a model, for new users."""
    parameters = model.learned.settings._asdict()
    if not isinstance(parameters["kernel"], str):
        raise DataError("Expected a model with a kernel that has a name, but got one that was made by hand.")
    if parameters["prior"] is not None and not is_prior_of(model.encoder, parameters.pop("prior")):
        raise DataError(
            "Expected a model with the prior of its encoder or none, but got one with another. Fit it without --prior."
        )
    if len(model.classes) > limits.classes or len(model.names) > limits.examples:
        raise DataError(
            f"Expected a model of at most {limits.classes} classes and {limits.examples} examples, but got "
            f"{len(model.classes)} and {len(model.names)}. Raise --max-classes or --max-examples."
        )
    thumbnails = model.thumbnails if model.thumbnails is not None else [None] * len(model.names)
    previews = [
        make_preview(Image.new("L", (8, 8), 200) if small is None else Image.fromarray(small), PREVIEW)
        for small in thumbnails
    ]
    new = [New(*parts) for parts in zip(model.names, model.embeddings, previews, strict=True)]
    return identity(model.encoder), parameters, list(zip(model.labels, new, strict=True))

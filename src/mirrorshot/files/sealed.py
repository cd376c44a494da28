"""Checkpoint files for exchange between users, with a kind, a version and a size limit."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mirrorshot.files.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointNotFoundError,
    checkpoint_bytes,
    damaged,
    load_checkpoint,
)
from mirrorshot.files.writing import write_atomically

MAX_SEALED_BYTES = 4 * 2**30
_STAMP = ("format_version", "mirrorshot_version", "checksum")


def save_sealed(path: Path, tensors: Mapping[str, Any], info: Mapping[str, Any], *, kind: str, version: int) -> None:
    """Write a checkpoint of a kind, such as "model", and a version; readers refuse newer versions.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> path = Path(tempfile.mkdtemp()) / "head"
        >>> save_sealed(path, {"x": np.ones(2)}, {"way": 5}, kind="head", version=1)
        >>> load_sealed(path, kind="head", version=1).info["way"]
        5
    """
    write_atomically(path, sealed_bytes(tensors, info, kind=kind, version=version))


def sealed_bytes(tensors: Mapping[str, Any], info: Mapping[str, Any], *, kind: str, version: int) -> bytes:
    """Return the content of a file of `save_sealed`."""
    return checkpoint_bytes(tensors, {**info, "kind": kind, "version": version})


def load_sealed(path: Path, *, kind: str, version: int, max_bytes: int = MAX_SEALED_BYTES) -> Checkpoint:
    """Read a file of a kind, of at most this version and size, as NumPy arrays; check the whole file first.

    Raises:
        CheckpointNotFoundError: the file does not exist.
        CheckpointError: the file is damaged, too large, of another kind, or of a newer version.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointNotFoundError(
            f"Expected a mirrorshot {kind} at {path}, but there is no such file. Check the path."
        )
    if path.is_file() and os.path.getsize(path) > max_bytes:
        raise CheckpointError(
            f"Expected {path} to have at most {max_bytes:,} bytes, but got {os.path.getsize(path):,}. Check the path."
        )
    arrays, info = load_checkpoint(path, as_arrays=True)
    if info.get("kind") != kind:
        found = info.get("kind") or "checkpoint of a run"
        raise CheckpointError(f"Expected {path} to be a mirrorshot {kind}, but got a {str(found)[:40]}.")
    if not isinstance(info.get("version"), int) or info["version"] > version:
        raise CheckpointError(
            f"Expected {path} to have version {version} or older, but got {str(info.get('version'))[:40]}, written by "
            f"mirrorshot {str(info.get('mirrorshot_version'))[:40]}. Update mirrorshot."
        )
    content = {name: value for name, value in info.items() if name not in _STAMP}
    if info["format_version"] == 1 and info.get("checksum") != _checksum(arrays, content):
        raise damaged(path)
    return Checkpoint(arrays, content)


def _checksum(arrays: Mapping[str, NDArray[Any]], content: Mapping[str, Any]) -> str:
    """Checksum of a file of format version 1, which has no seal."""
    found = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(arrays):
        # types have torch's names, because torch wrote these files
        found.update(f"\n{name} torch.{arrays[name].dtype} {arrays[name].shape}\n".encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()

"""Atomic writing of files: readers see the complete old content or the complete new one."""

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from mirrorshot.types import MirrorshotError


class CheckpointWriteError(MirrorshotError, OSError):
    """A file could not be written. An existing file is unchanged."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: write a temporary file beside it, then rename that."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointWriteError(_why_not_written(path, len(data), error)) from error
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, record: Any, *, indent: int = 2) -> None:
    """Write indented JSON atomically; numbers that are not finite raise a ValueError."""
    write_atomically(path, (json.dumps(record, indent=indent, allow_nan=False) + "\n").encode())


def _sync_folder(folder: Path) -> None:
    """Make the rename survive a loss of power, where the system supports it."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _why_not_written(path: Path, n_bytes: int, error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "Make room" if full else "Check that the folder exists and may be written"
    kept = "the file that was there is unchanged" if path.exists() else "no file was left there"
    return (
        f"Expected to write {n_bytes:,} bytes to {path}, but got: {error.strerror or error}; {kept}. "
        f"{hint}, then try again."
    )

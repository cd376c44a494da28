"""Results as files: what was measured, with commit, command, device, versions and wall time."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mirrorshot.checkpoint import write_atomically
from mirrorshot.types import DataError


def save_result(path: Path, result: Mapping[str, Any], *, command: str, seed: int, started: float) -> None:
    """Write a result so that it can be traced; readers see the old file or the new one, never a part.

    Args:
        path: name of the file; its folder is made if need be.
        result: what was found, ready for JSON.
        command: what repeats it.
        seed: seed of every random draw.
        started: `time.perf_counter()` when it began.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "commit": commit(),
        "command": command,
        "device": device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seed": seed,
        "wall_time_s": round(time.perf_counter() - started, 1),
        **result,
    }
    write_atomically(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def read_result(path: Path) -> dict[str, Any]:
    """Read a result.

    Raises:
        DataError: the file is no result.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"Expected {path} to be a result of mirrorshot, but it cannot be read: {error}. Move it away, then run "
            "the command again."
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"Expected {path} to be a result of mirrorshot, but got a {type(record).__name__}.")
    return record


def device_name() -> str:
    """The accelerator, or the number of threads of the processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"


def commit() -> str:
    """The commit of the sources, marked if they have changes; a machine that has only a copy is told it."""
    folder = Path(__file__).parent
    if "MIRRORSHOT_COMMIT" in os.environ:
        return os.environ["MIRRORSHOT_COMMIT"]
    if not _git("ls-files", Path(__file__).name, folder=folder):  # no checkout, but perhaps in somebody else's
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "..", folder=folder)
    return _git("rev-parse", "HEAD", folder=folder) + ("+changes" if changed else "")


def _git(*arguments: str, folder: Path) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder, check=False)
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip()

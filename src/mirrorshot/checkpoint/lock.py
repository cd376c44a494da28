"""The lock of a run folder: two processes never write into one run."""

import json
import os
import socket
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.types import MirrorshotError

LOCK = "run.lock"


class RunError(MirrorshotError, ValueError):
    """A folder cannot serve as that of a run. The message says what to do."""


class RunLock(NamedTuple):
    """A lock that this process holds: a file that names it.

    Design note: a file made with O_EXCL works on every file system, network ones included, and tells people who
    holds it. Rejected: `flock`, which vanishes with its process, but means nothing on some network file systems.

    Attributes:
        path: the lock file.
        text: what this process wrote into it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> lock = RunLock.acquire(folder)
        >>> lock.path.exists(), lock.release(), lock.path.exists()
        (True, None, False)
    """

    path: Path
    text: str

    @classmethod
    def acquire(cls, folder: Path) -> "RunLock":
        """Take the lock of a folder; also that of a process on this host that no longer runs, with a warning.

        Raises:
            RunError: another process holds it.
        """
        lock = cls(Path(folder) / LOCK, json.dumps(_identity()))
        if not lock._create():
            _remove_if_stale(lock.path)
            if not lock._create():
                raise RunError(_held(lock.path, _read(lock.path)))
        return lock

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        if _read(self.path) == self.text:
            self.path.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(self.text)
        return True


def _identity() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": _start_time(os.getpid())}


def _start_time(pid: int) -> str | None:
    """When a process began, in the system's own unit, where it tells; a pid alone may be someone else's by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _remove_if_stale(path: Path) -> None:
    """Remove the lock of a dead process. Moved aside first: of two that find it stale, only one can do that."""
    text = _read(path)
    if not _is_stale(text):
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    if _read(aside) != text:  # someone was faster, and this is their lock
        os.rename(aside, path)
        return
    aside.unlink()
    owner = json.loads(text)
    warnings.warn(f"Took over the lock {path}: process {owner['pid']}, which held it, no longer runs.", stacklevel=4)


def _is_stale(text: str) -> bool:
    try:
        owner = json.loads(text)
        pid, host, started = int(owner["pid"]), owner["host"], owner.get("started")
    except (ValueError, TypeError, KeyError, AttributeError):
        return False  # being written, or not ours
    if host != socket.gethostname():
        return False
    return not _is_alive(pid) or (started is not None and started != _start_time(pid))


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # there, signal 0 would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _held(path: Path, text: str) -> str:
    return (
        f"Expected no other process to write into {path.parent}, but got a lock of {text or 'an unknown process'}. "
        f"Wait for it or choose another folder; if it no longer runs, delete {path}."
    )

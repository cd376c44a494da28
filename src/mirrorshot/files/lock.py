"""Lock of a run folder, which prevents that two processes write into one run."""

import json
import os
import shutil
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import BaseFileLock, FileLock, Timeout

from mirrorshot.types import MirrorshotError

LOCK, OWNER = "run.lock", "run.owner"


class RunError(MirrorshotError, ValueError):
    """The folder cannot be used for a run. The message says what to do."""


class RunLock(NamedTuple):
    """The lock file of a folder, held by this process, and a second file that names the process.

    Design note: on every platform the operating system releases the lock when the process ends, also after a crash.
    Rejected: a file whose existence is the lock, because it outlives its process, and process ids are reused. The name
    of the process is in a second file, because a locked file cannot be read on Windows.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> lock = RunLock.acquire(folder)
        >>> lock.path.exists(), lock.release(), lock.path.exists()
        (True, None, False)
    """

    path: Path
    lock: BaseFileLock

    @classmethod
    def acquire(cls, folder: Path) -> "RunLock":
        """Take the lock of a folder; warn if the last process did not release it.

        Raises:
            RunError: another process holds the lock.
        """
        path = Path(folder) / LOCK
        lock = FileLock(path, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise RunError(
                f"Expected no other process to write into {path.parent}, but it is in use by {_owner(path.parent)}. "
                "Wait for that process, end it, or choose another folder."
            ) from error
        if (path.parent / OWNER).exists():
            warnings.warn(
                f"Took over the lock {path}: {_owner(path.parent)}, which held it, no longer runs.", stacklevel=3
            )
        identity = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        (path.parent / OWNER).write_text(identity, encoding="utf-8")
        return cls(path, lock)

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if not self.lock.is_locked:
            return
        (self.path.parent / OWNER).unlink(missing_ok=True)
        if os.name == "posix":  # before the release: a waiting process notices that the file is gone
            self.path.unlink(missing_ok=True)
        self.lock.release()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder within the block."""
    lock = RunLock.acquire(folder)
    try:
        yield
    finally:
        lock.release()


def remove_run(folder: Path) -> None:
    """Remove the folder of a run, unless another process holds its lock."""
    RunLock.acquire(folder).release()
    shutil.rmtree(folder)


def _owner(folder: Path) -> str:
    try:
        owner = json.loads((folder / OWNER).read_text(encoding="utf-8"))
        return f"process {int(owner['pid'])} on {owner['host']!s:.100}"
    except (OSError, ValueError, TypeError, KeyError):
        return "a process that did not leave its name"

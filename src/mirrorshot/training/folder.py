"""Folder of a run on disk: configuration, log, last and best checkpoint, and a lock."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torch import Tensor

from mirrorshot.files.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from mirrorshot.files.lock import RunError, RunLock
from mirrorshot.files.writing import CheckpointWriteError, write_atomically

CONFIG, LOG = "config.json", "log.jsonl"
Name = Literal["last", "best"]


class RunFolder:
    """Folder of a single training run.

    It contains `config.json`, `log.jsonl` (one record with its step per line), `last.safetensors` and
    `best.safetensors`. Create one with `RunFolder.create` or `RunFolder.resume`, and use it in a `with` statement,
    which releases the lock. `read_config`, `read_log` and `load_checkpoint` read a run without a lock.

    Design note: the checkpoint is the state of a run. Steps after the last checkpoint are computed again, so resuming
    removes their records from the log.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> with RunFolder.create(folder, {"n_way": 5}) as run:
        ...     run.log({"step": 1, "loss": 1.6})
        ...     run.save("last", {"method.weight": torch.zeros(2)}, {"step": 1})
        ...     run.log({"step": 2, "loss": 1.5})
        >>> with RunFolder.resume(folder) as run:
        ...     run.config, run.load("last").info["step"]
        ({'n_way': 5}, 1)
        >>> read_log(folder)
        [{'step': 1, 'loss': 1.6}]
    """

    def __init__(self, path: Path, config: dict[str, Any], lock: RunLock) -> None:
        self.path, self.config, self._lock = path, config, lock
        self._log = open(path / LOG, "a", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> "RunFolder":
        """Create a run in a folder, which is made if necessary. `config` has all settings, as JSON.

        Raises `RunError` if the folder already contains a run, or another process writes to it.
        """
        path = Path(path)
        document = json.dumps(config, indent=2, allow_nan=False) + "\n"
        _make_folder(path)
        lock = RunLock.acquire(path)
        try:
            _check_no_run(path)
            write_atomically(path / CONFIG, document.encode())
            return cls(path, json.loads(document), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def resume(cls, path: Path) -> "RunFolder":
        """Resume a run; log records after its last checkpoint are removed, or all records if there is none.

        Raises `RunError` if the folder contains no run, or another process writes to it.
        """
        path = Path(path)
        config = read_config(path)
        lock = RunLock.acquire(path)
        try:
            for leftover in path.glob(".*.tmp"):  # left by a process killed while writing
                leftover.unlink(missing_ok=True)
            step = _last_step(path)
            kept = [json.dumps(record) + "\n" for record in read_log(path) if record.get("step", 0) <= step]
            write_atomically(path / LOG, "".join(kept).encode())
            return cls(path, config, lock)
        except BaseException:
            lock.release()
            raise

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record with an integer "step" to the log, as JSON; numbers that are not finite become null."""
        if not isinstance(record.get("step"), int):
            raise RunError(f"Expected a record with an integer 'step', but got {dict(record)!r}.")
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        try:
            self._log.write(json.dumps(finite, allow_nan=False) + "\n")
            self._log.flush()
        except OSError as error:
            message = f"Expected to append to {self.path / LOG}, but got: {error.strerror}. Make room, then --resume."
            raise CheckpointWriteError(message) from error

    def save(self, name: Name, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Write the last or the best checkpoint, see `save_checkpoint`; the last one needs a "step" in `info`."""
        if name == "last" and not isinstance(info.get("step"), int):
            raise RunError(f"Expected `info` with an integer 'step', but got the keys {sorted(info)}.")
        save_checkpoint(self.checkpoint_path(name), tensors, info)

    def load(self, name: Name) -> Checkpoint:
        """Read the last or the best checkpoint, see `load_checkpoint`."""
        return load_checkpoint(self.checkpoint_path(name))

    def has(self, name: Name) -> bool:
        """Return whether the last or the best checkpoint exists."""
        return self.checkpoint_path(name).exists()

    def checkpoint_path(self, name: Name) -> Path:
        """Return the path of the last or the best checkpoint."""
        return self.path / f"{name}.safetensors"

    def discard(self) -> None:
        """Delete the files of a run that has not begun, so its folder can be used again."""
        self._log.close()
        for name in (CONFIG, LOG):
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the log and release the lock. Further calls do nothing."""
        with contextlib.suppress(OSError):  # `log` has flushed every record, or raised
            self._log.close()
        self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration of a run; raises `RunError` if the folder contains none."""
    try:
        config = json.loads((Path(path) / CONFIG).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise TypeError(type(config).__name__)
        return config
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(f"Expected a run in {path}, but got no {CONFIG} there. Check the path.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise RunError(f"Expected {Path(path) / CONFIG} to be a JSON object, but got: {error}.") from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the log of a run, which may be in progress: an incomplete last line is ignored.

    Raises `RunError` if another line is damaged.
    """
    file = Path(path) / LOG
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # text after the last line break is incomplete
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise RunError(
                f"Expected line {number} of {file} to be a JSON object, but got {line[:60]!r}. Remove that line."
            ) from error
    return records


def _last_step(path: Path) -> int:
    file = path / "last.safetensors"
    step = load_checkpoint(file).info.get("step") if file.exists() else -1
    if type(step) is not int:
        raise CheckpointError(f"Expected {file} to have the number of its step, but got {str(step)[:40]!r}.")
    return step


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointWriteError(
            f"Expected {path} to be a folder that can be made, but got: {error.strerror}. Choose another folder."
        ) from error


def _check_no_run(path: Path) -> None:
    found = [name for name in (CONFIG, LOG, "last.safetensors", "best.safetensors") if os.path.lexists(path / name)]
    if found:
        raise RunError(
            f"Expected {path} to hold no run, but got one: {', '.join(found)}. "
            "Use --resume to continue it, or choose another folder."
        )

"""Checkpoints: tensors and what is known about them, in one safetensors file that is never half-written.

The file is a plain safetensors file; `info` is JSON in its header, with a seal over the whole file (`seal`). Nothing is
pickled, so loading a checkpoint cannot run code.

Design note: one file, because one rename then makes the new state visible. Rejected: a folder with tensors and JSON
beside one another, where a reader could meet the new one and the old other.
"""

import errno
import json
import os
import secrets
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from mirrorshot.files.regular import NotRegularFileError, open_regular
from mirrorshot.files.seal import BLANK, has_seal, with_seal
from mirrorshot.types import MirrorshotError

FORMAT_VERSION = 2
"""Files of version 1 have no seal."""

_INFO = "mirrorshot"  # the entry of the header that holds `info`
_MAX_BYTES = 64 * 2**30
_MAX_HEADER_BYTES = 64 * 2**20


class CheckpointError(MirrorshotError, ValueError):
    """A file is no checkpoint, is damaged, or does not fit what it is loaded into."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no file of that name."""


class CheckpointWriteError(MirrorshotError, OSError):
    """A file could not be written. What was there before is whole."""


class Checkpoint(NamedTuple):
    """What a checkpoint file holds.

    Attributes:
        tensors: by name, on the CPU.
        info: JSON: `format_version`, `mirrorshot_version`, and what was given to `save_checkpoint`.
    """

    tensors: dict[str, Tensor]
    info: dict[str, Any]


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
    """Write a checkpoint, all or nothing: whatever happens, `path` is the old file or the new one.

    Args:
        path: name of the file, in a folder that exists.
        tensors: any dense ones, on any device, also views of one another; they are saved one by one.
        info: what JSON can hold, with text as keys. Tuples come back as lists.

    Raises:
        CheckpointWriteError: no room or no permission; `path` is as it was.
        CheckpointError: `info` is not JSON.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
        >>> save_checkpoint(path, {"weight": torch.ones(2)}, {"method": "dkt", "step": 100})
        >>> tensors, info = load_checkpoint(path)
        >>> tensors["weight"], info["step"]
        (tensor([1., 1.]), 100)
    """
    stamp = {"seal": BLANK, "format_version": FORMAT_VERSION, "mirrorshot_version": version("mirrorshot")}
    header = {_INFO: _to_json({"seal": "", **info, **stamp})}  # the seal comes first
    # a copy of its own for each: contiguous, and sharing no storage
    plain = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    write_atomically(path, with_seal(safetensors.torch.save(plain, header)))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, wholly checked before anything is made of it.

    A file of mirrorshot 0.1 without a seal is read with a warning: damage to its numbers cannot be seen.

    Raises:
        CheckpointNotFoundError: no such file.
        CheckpointError: not a checkpoint, damaged, or written by a newer mirrorshot.
    """
    data, n_bytes = _read(path, _MAX_BYTES)  # in one go, so that a file replaced meanwhile does not mix with this one
    info = _parse_info(path, data, n_bytes)
    _check_seal(path, data, info, info.pop("seal", None))
    try:
        return Checkpoint(safetensors.torch.load(data), info)
    except (SafetensorError, ValueError, KeyError) as error:
        raise _not_a_checkpoint(path, str(error)) from error


def load_info(path: Path) -> dict[str, Any]:
    """The `info` of a checkpoint, without reading its tensors; the seal, which is over these too, is not checked.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
        >>> save_checkpoint(path, {}, {"step": 7})
        >>> load_info(path)["step"]
        7
    """
    info = _parse_info(path, *_read(path, _MAX_HEADER_BYTES + 8))
    info.pop("seal", None)
    return info


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new one: a file beside it, then a rename.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "config.json"
        >>> write_atomically(path, b"{}")
        >>> path.read_bytes()
        b'{}'
    """
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


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a loss of power, where the system can."""
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


def _to_json(info: Mapping[str, Any]) -> str:
    try:
        return json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"Expected `info` to hold only what JSON can, but got: {error}. Tensors go into `tensors`, NaN is None."
        ) from error


def _read(path: Path, limit: int) -> tuple[bytes, int]:
    """The first bytes of a file, and how many it has."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _MAX_BYTES:
                raise _not_a_checkpoint(path, f"it has {size:,} bytes, more than any checkpoint")
            return file.read(min(size, limit)), size
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFoundError(
            f"Expected a checkpoint at {path}, but got no such file. Check the path; a run writes its first one at its "
            "first validation."
        ) from error
    except IsADirectoryError as error:
        raise _not_a_checkpoint(path, "it is a folder; name the file in it") from error
    except NotRegularFileError as error:
        raise _not_a_checkpoint(path, "it is a pipe, a socket or a device; name a file") from error


def _parse_info(path: Path, data: bytes, n_bytes: int) -> dict[str, Any]:
    """Check the frame of the file: length of the header, header, length of the data."""
    n_header = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= n_header <= _MAX_HEADER_BYTES or data[8:9] != b"{":
        raise _not_a_checkpoint(path, f"its {n_bytes:,} bytes do not begin as one")
    if n_bytes < 8 + n_header:
        raise _truncated(path, n_bytes, 8 + n_header)
    try:
        header = json.loads(data[8 : 8 + n_header])
        metadata = header.pop("__metadata__", {})
        end = 8 + n_header + max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        info = json.loads(metadata[_INFO], parse_constant=_refuse_constant)
        format_version = info["format_version"]
        if type(format_version) is not int or format_version < 1:
            raise ValueError
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise _not_a_checkpoint(path, "its header is not that of one") from error
    if n_bytes < end:
        raise _truncated(path, n_bytes, end)
    if format_version > FORMAT_VERSION:
        raise CheckpointError(
            f"Expected {path} to have format version {FORMAT_VERSION} or older, but got {format_version}, written by "
            f"mirrorshot {info.get('mirrorshot_version')}. Update mirrorshot."
        )
    return dict(info)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_seal(path: Path, data: bytes, info: Mapping[str, Any], seal: object) -> None:
    if info["format_version"] > 1 and not has_seal(data, seal):
        raise damaged(path)
    if info["format_version"] == 1 and "checksum" not in info:  # those with one are read by `load_sealed`
        warnings.warn(
            f"{path} was written before checkpoints had a checksum, so damage to it cannot be seen. It is used as it "
            "is; a run that goes on writes new ones.",
            stacklevel=3,
        )


def damaged(path: Path) -> CheckpointError:
    """The bytes of a file are not those that were written."""
    return CheckpointError(
        f"Expected the content of {path} to fit its checksum, but it does not: the file was damaged or changed. "
        "Copy it again, or make it again."
    )


def _not_a_checkpoint(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"Expected {path} to be a checkpoint of mirrorshot, but got something else: {why}.")


def _truncated(path: Path, n_bytes: int, expected: int) -> CheckpointError:
    return CheckpointError(
        f"Expected {path} to have {expected:,} bytes, but got {n_bytes:,}: it was cut off. Copy it again, or go back "
        "to another checkpoint."
    )

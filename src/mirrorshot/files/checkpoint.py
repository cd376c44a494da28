"""Checkpoints: arrays and information about them, in one safetensors file that is never half-written.

The file is a plain safetensors file; `info` is JSON in its header. Nothing is pickled, so loading a checkpoint cannot
run code. Arrays are those of NumPy, or tensors of torch, which is imported only for these. The seal in the header is a
checksum over all bytes of the file, with zeros in the place of the seal.

Design notes:

- One file, because one rename then makes the new state visible. Rejected: a folder with tensors and JSON side by side,
  of which a reader could meet one new and one old.
- The seal is over bytes and not over content, so that no flipped bit is left out, whatever it means. It finds damage,
  not forgery: anybody who can write the file can seal it. So readers check sizes and shapes too.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from mirrorshot.files.lazy import need
from mirrorshot.files.regular import NotRegularFileError, open_regular
from mirrorshot.files.writing import write_atomically
from mirrorshot.types import MirrorshotError

FORMAT_VERSION = 2
"""Files of version 1 have no seal."""

BLANK = "0" * 64
"""Written in the place of the seal until it is known."""

_INFO = "mirrorshot"  # the entry of the header that holds `info`
_MAX_BYTES = 64 * 2**30
_MAX_HEADER_BYTES = 64 * 2**20


class CheckpointError(MirrorshotError, ValueError):
    """A file is no checkpoint, is damaged, or does not fit the object that it is loaded into."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no such file."""


class Checkpoint(NamedTuple):
    """Arrays by name; `info` of `save_checkpoint` with `format_version` and `mirrorshot_version`."""

    tensors: dict[str, Any]  # NumPy arrays, or torch tensors on the CPU
    info: dict[str, Any]  # JSON


def save_checkpoint(path: Path, tensors: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    """Write a checkpoint, all or nothing: whatever happens, `path` is the old file or the new one.

    Args:
        path: in a folder that exists.
        tensors: NumPy arrays, or dense torch tensors on any device; views of one another are saved one by one.
        info: JSON, with text as keys. Tuples come back as lists.

    Raises:
        CheckpointWriteError: no room or no permission; `path` is as it was.
        CheckpointError: `info` is not JSON.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "last.safetensors"
        >>> save_checkpoint(path, {"weight": np.ones(2)}, {"method": "dkt", "step": 100})
        >>> tensors, info = load_checkpoint(path, as_arrays=True)
        >>> tensors["weight"], info["step"]
        (array([1., 1.]), 100)
    """
    write_atomically(path, checkpoint_bytes(tensors, info))


def checkpoint_bytes(tensors: Mapping[str, Any], info: Mapping[str, Any]) -> bytes:
    """Return the content of a checkpoint, with its seal; see `save_checkpoint`."""
    stamp = {"seal": BLANK, "format_version": FORMAT_VERSION, "mirrorshot_version": version("mirrorshot")}
    return with_seal(_to_bytes(tensors, {_INFO: _to_json({"seal": "", **info, **stamp})}))  # the seal comes first


def _to_bytes(tensors: Mapping[str, Any], header: dict[str, str]) -> bytes:
    if all(isinstance(array, np.ndarray) for array in tensors.values()):
        return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in tensors.items()}, header)
    torch, files = need("torch"), need("safetensors.torch")

    # a copy of its own for each: contiguous, and sharing no storage
    plain = {
        name: torch.as_tensor(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return bytes(files.save(plain, header))


def with_seal(data: bytes) -> bytes:
    """Return a file with its seal in the place of the first `BLANK`."""
    place = data.index(BLANK.encode())
    seal = _digest(data, place)
    return data[:place] + seal.encode() + data[place + len(seal) :]


def load_checkpoint(path: Path, *, as_arrays: bool = False) -> Checkpoint:
    """Read a checkpoint, wholly checked before anything is made of it.

    With `as_arrays` its tensors are NumPy arrays, without torch. A file of mirrorshot 0.1 without a seal is read with a
    warning: damage to its numbers goes unnoticed.

    Raises:
        CheckpointNotFoundError: no such file.
        CheckpointError: not a checkpoint, damaged, or written by a newer mirrorshot.
    """
    data, n_bytes = _read(path, _MAX_BYTES)  # in one go, so that a file replaced meanwhile does not mix with this one
    info = _parse_info(path, data, n_bytes)
    _check_seal(path, data, info, info.pop("seal", None))
    files = safetensors.numpy if as_arrays else need("safetensors.torch")
    try:
        return Checkpoint(files.load(data), info)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _not_a_checkpoint(path, str(error)) from error


def load_info(path: Path) -> dict[str, Any]:
    """Read the `info` of a checkpoint without its tensors; the seal, which is over these too, is not checked."""
    info = _parse_info(path, *_read(path, _MAX_HEADER_BYTES + 8))
    info.pop("seal", None)
    return info


def _to_json(info: Mapping[str, Any]) -> str:
    try:
        return json.dumps(info, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"Expected `info` to be JSON, but got: {error}. Put tensors into `tensors`, and None in the place of NaN."
        ) from error


def _read(path: Path, limit: int) -> tuple[bytes, int]:
    """Return the first bytes of a file, and how many it has."""
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
    except PermissionError as error:
        raise CheckpointError(f"Expected to read {path}, but got: no permission.") from error
    except IsADirectoryError as error:
        raise _not_a_checkpoint(path, "it is a folder; name the file in it") from error
    except NotRegularFileError as error:
        raise _not_a_checkpoint(path, "it is a pipe, a socket or a device; name a file") from error


def _parse_info(path: Path, data: bytes, n_bytes: int) -> dict[str, Any]:
    """Check the length of the header, the header and the length of the data; return `info`."""
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
    if info["format_version"] > 1 and not _has_seal(data, seal):
        raise damaged(path)
    if info["format_version"] == 1 and "checksum" not in info:  # those with one are read by `load_sealed`
        warnings.warn(
            f"{path} was written before checkpoints had a checksum, so damage to it cannot be detected. It is used as "
            "it is; a resumed run writes new ones.",
            stacklevel=3,
        )


def _has_seal(data: bytes, seal: object) -> bool:
    """Whether `seal`, which the header of the file names, is that of its bytes."""
    if not isinstance(seal, str) or len(seal) != len(BLANK) or not seal.isascii():
        return False
    place = data.find(seal.encode())
    return place >= 0 and _digest(data, place) == seal


def _digest(data: bytes, place: int) -> str:
    """Hash the file with `BLANK` at `place`."""
    found = hashlib.sha256(data[:place])
    found.update(BLANK.encode())
    found.update(memoryview(data)[place + len(BLANK) :])
    return found.hexdigest()


def damaged(path: Path) -> CheckpointError:
    """Return the error for a file whose bytes are not those that were written."""
    return CheckpointError(
        f"Expected the content of {path} to fit its checksum, but it does not: the file was damaged or changed. "
        "Copy it again, or make it again."
    )


def _not_a_checkpoint(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"Expected {path} to be a file of mirrorshot, but got something else: {why}.")


def _truncated(path: Path, n_bytes: int, expected: int) -> CheckpointError:
    return CheckpointError(
        f"Expected {path} to have {expected:,} bytes, but got {n_bytes:,}: it was cut off. Copy it again, or use "
        "another one."
    )

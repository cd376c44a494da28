"""Checkpoints: arrays and `info` in one safetensors file, written atomically.

`info` is JSON in the header of the file. Nothing is pickled, so loading a checkpoint cannot run code. Arrays are NumPy
arrays or torch tensors; torch is imported only for the latter. The seal in the header is a SHA-256 checksum of the
file, computed with zeros in place of the seal.

Design notes:

- One file, so that one rename makes the new state visible. Rejected: a folder with separate tensors and JSON, because a
  reader could find one old and one new file.
- The seal covers bytes, not decoded content, so it detects every flipped bit. It detects damage, not forgery: anybody
  who can write the file can seal it. Therefore readers check sizes and shapes, too.
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
"""Placeholder of the seal."""

_INFO = "mirrorshot"  # key of `info` in the header
_MAX_BYTES = 64 * 2**30
_MAX_HEADER_BYTES = 64 * 2**20


class CheckpointError(MirrorshotError, ValueError):
    """The file is not a checkpoint, is damaged, or does not fit the object that it is loaded into."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """The file does not exist."""


class Checkpoint(NamedTuple):
    """Arrays by name, and the saved `info` with `format_version` and `mirrorshot_version`."""

    tensors: dict[str, Any]  # NumPy arrays, or torch tensors on the CPU
    info: dict[str, Any]  # JSON


def save_checkpoint(path: Path, tensors: Mapping[str, Any], info: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically: `path` is always the complete old file or the complete new one.

    Args:
        path: file in an existing folder.
        tensors: NumPy arrays, or dense torch tensors on any device. Tensors that share memory are saved separately.
        info: JSON, with strings as keys. Tuples become lists.

    Raises:
        CheckpointWriteError: no room or no permission; an existing file is unchanged.
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
    """Return the content of a checkpoint file; see `save_checkpoint`."""
    stamp = {"seal": BLANK, "format_version": FORMAT_VERSION, "mirrorshot_version": version("mirrorshot")}
    return with_seal(_to_bytes(tensors, {_INFO: _to_json({"seal": "", **info, **stamp})}))  # the seal comes first


def _to_bytes(tensors: Mapping[str, Any], header: dict[str, str]) -> bytes:
    if all(isinstance(array, np.ndarray) for array in tensors.values()):
        return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in tensors.items()}, header)
    torch, files = need("torch"), need("safetensors.torch")

    # safetensors needs contiguous tensors that share no storage
    plain = {
        name: torch.as_tensor(tensor).detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    return bytes(files.save(plain, header))


def with_seal(data: bytes) -> bytes:
    """Replace the first `BLANK` in the content of a file by its seal."""
    place = data.index(BLANK.encode())
    seal = _digest(data, place)
    return data[:place] + seal.encode() + data[place + len(seal) :]


def load_checkpoint(path: Path, *, as_arrays: bool = False) -> Checkpoint:
    """Read a checkpoint; check the whole file before any tensor is created.

    With `as_arrays`, tensors are NumPy arrays and torch is not imported. A file of mirrorshot 0.1 without a checksum is
    read with a warning, because damage to its numbers cannot be detected.

    Raises:
        CheckpointNotFoundError: the file does not exist.
        CheckpointError: not a checkpoint, damaged, or written by a newer mirrorshot.
    """
    data, n_bytes = _read(path, _MAX_BYTES)  # all at once, because the file may be replaced in the meantime
    info = _parse_info(path, data, n_bytes)
    _check_seal(path, data, info, info.pop("seal", None))
    files = safetensors.numpy if as_arrays else need("safetensors.torch")
    try:
        return Checkpoint(files.load(data), info)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _not_a_checkpoint(path, str(error)) from error


def load_info(path: Path) -> dict[str, Any]:
    """Read the `info` of a checkpoint without its tensors. The seal is not checked."""
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
    """Return the first bytes of a file, and its size."""
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
    if info["format_version"] == 1 and "checksum" not in info:  # `load_sealed` checks the checksum
        warnings.warn(
            f"{path} was written before checkpoints had a checksum, so damage to it cannot be detected. It is used as "
            "it is; a resumed run writes new ones.",
            stacklevel=3,
        )


def _has_seal(data: bytes, seal: object) -> bool:
    """Whether `seal` is in the file and fits its bytes."""
    if not isinstance(seal, str) or len(seal) != len(BLANK) or not seal.isascii():
        return False
    place = data.find(seal.encode())
    return place >= 0 and _digest(data, place) == seal


def _digest(data: bytes, place: int) -> str:
    """Hash the file with `BLANK` in place of the seal."""
    found = hashlib.sha256(data[:place])
    found.update(BLANK.encode())
    found.update(memoryview(data)[place + len(BLANK) :])
    return found.hexdigest()


def damaged(path: Path) -> CheckpointError:
    """Return the error for a file that does not fit its checksum."""
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

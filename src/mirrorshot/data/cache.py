"""Bounded reading of `.npz` archives, and on-disk caches of arrays.

A cache is written under a temporary name and renamed, so readers never see a partial one. A damaged cache is rebuilt; a
folder that cannot be written causes a warning. Reading never executes code from a file.
"""

import os
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.files.regular import open_regular
from mirrorshot.types import DataError

Arrays = Mapping[str, NDArray[Any]]
MAX_BYTES = 2**35
"""Maximum size of one data set in memory, 32 GiB, checked before reading."""

# zipfile raises NotImplementedError for unknown compression methods
_DAMAGE = (OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def cache_folder() -> Path:
    """Return the folder `MIRRORSHOT_CACHE`, or `mirrorshot` in the user's cache folder."""
    chosen = os.environ.get("MIRRORSHOT_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mirrorshot"


def read_npz(path: Path, *, max_bytes: int = MAX_BYTES) -> dict[str, NDArray[Any]]:
    """Read all arrays of an `.npz` file after checking their total size.

    Raises `DataError`: no such file, no archive of arrays, pickled objects, or more than `max_bytes` when unpacked.
    """
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
        if n_bytes > max_bytes:
            raise DataError(f"Expected {path} to unpack to at most {max_bytes} bytes, but it has {n_bytes}.")
        return _load(path)
    except FileNotFoundError:
        raise DataError(f"Expected an .npz file at {path}, but there is none; check the path.") from None
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(
            f"Expected {path} to be an .npz file of plain arrays, but it cannot be read: {error}."
        ) from error


def cached_folder(path: Path, key: str, make: Callable[[], Arrays]) -> dict[str, NDArray[Any]]:
    """Read arrays from a folder of `.npy` files, or compute and store them.

    The arrays are memory-mapped, copy-on-write: pages are read on use and the files never change. `key` identifies the
    content, for instance a hash of the source files. Arrays with another key are replaced, so changing sources do not
    fill the disk.
    """
    try:
        if (path / "key").read_text("utf-8") == key:
            return _map(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except _DAMAGE as error:
        warnings.warn(f"The cache {path} cannot be read ({error}); it is made again.", stacklevel=5)
    made = dict(make())
    try:
        return _write_folder(path, key, made)
    except _DAMAGE as error:
        warnings.warn(f"The arrays cannot be kept in {path} ({error}); set MIRRORSHOT_CACHE.", stacklevel=5)
    return made


def _load(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array, not an archive")
        return {name: file[name] for name in file.files}


def _map(path: Path) -> dict[str, NDArray[Any]]:
    arrays = {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in sorted(path.glob("*.npy"))}
    if not arrays:
        raise ValueError("it has no arrays")
    return arrays


def _write_folder(path: Path, key: str, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Write to a temporary folder and rename it, unless another process has written the same arrays in the meantime."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, suffix=".tmp"))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        (temporary / "key").write_text(key, "utf-8")
        shutil.rmtree(path, ignore_errors=True)
        os.replace(temporary, path)
    except OSError:
        if not (path / "key").is_file() or (path / "key").read_text("utf-8") != key:
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _map(path)

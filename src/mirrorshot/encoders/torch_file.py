"""Arrays of a file of `torch.save`, read without torch and without running what it holds.

Such a file is a pickle, which may name any function. Here the names that a dictionary of tensors needs stand for
functions of this module, and every other name is an error before anything is called.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders.base import EncoderError

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of files before torch 1.6, which these are


class _Storage(NamedTuple):
    """Numbers that one or several tensors share: their key in the file, and their type."""

    key: str
    dtype: str


class _View(NamedTuple):
    """A tensor: a part of a storage. Offset and strides count numbers, not bytes."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _view(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _View:
    if not isinstance(storage, _Storage) or min((offset, *shape, *strides)) < 0:
        raise pickle.UnpicklingError("a tensor is no part of a storage")
    return _View(storage, offset, shape, strides)


_ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _view,
    ("torch", "FloatStorage"): "<f4",
    ("torch", "LongStorage"): "<i8",
}


class _Reader(pickle.Unpickler):
    """Reads dictionaries of tensors and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module[:40]}.{name[:40]}, which is no tensor")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """A storage, which follows in the file."""
        kind, dtype, key, _, _, view = pid
        if kind != "storage" or dtype not in ("<f4", "<i8") or view is not None:
            raise pickle.UnpicklingError("a storage is of an unknown kind")
        return _Storage(str(key), dtype)


def read_torch_file(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays by name.

    Raises:
        EncoderError: the file holds something else than a dictionary of tensors, or is cut off.
    """
    stream = io.BytesIO(content)
    try:
        magic, protocol, _, views, keys = (_Reader(stream).load() for _ in range(5))
        if (magic, protocol) != (_MAGIC, _PROTOCOL) or not isinstance(views, Mapping):
            raise pickle.UnpicklingError("it does not begin as one")
        dtypes = {view.storage.key: view.storage.dtype for view in views.values()}
        storages = {key: _numbers(content, stream, dtypes[key]) for key in keys}
        return {name: _part(storages[view.storage.key], view) for name, view in views.items()}
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise EncoderError(f"Expected a file of tensors, but it cannot be read: {error}.") from error


def _numbers(content: bytes, stream: io.BytesIO, dtype: str) -> NDArray[Any]:
    n = int.from_bytes(stream.read(8), "little")
    start = stream.tell()
    stream.seek(n * np.dtype(dtype).itemsize, io.SEEK_CUR)
    return np.frombuffer(content, dtype, n, start)


def _part(storage: NDArray[Any], view: _View) -> NDArray[Any]:
    size = storage.itemsize
    strides = [size * stride for stride in view.strides]
    return np.ndarray(view.shape, storage.dtype, storage, size * view.offset, strides)  # checks the bounds

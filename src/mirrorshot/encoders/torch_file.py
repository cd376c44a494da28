"""Reader of `torch.save` files that needs no torch and runs no code of the file.

Such a file is a pickle, which may call any function by name. This reader replaces the names that a dictionary of
tensors needs by functions of this module and refuses all others.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.encoders.base import EncoderError

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the format before torch 1.6


class _Storage(NamedTuple):
    """Key and type of numbers that one or several tensors share."""

    key: str
    dtype: str


class _View(NamedTuple):
    """A tensor as part of a storage. Offset and strides count numbers, not bytes."""

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
    """Unpickler of dictionaries of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module[:40]}.{name[:40]}, which is no tensor")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the description of a storage, whose numbers follow in the file."""
        kind, dtype, key, _, _, view = pid
        if kind != "storage" or dtype not in ("<f4", "<i8") or view is not None:
            raise pickle.UnpicklingError("a storage is of an unknown kind")
        return _Storage(str(key), dtype)


def read_torch_file(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays by name; the file has to be a dictionary of tensors in the format before torch 1.6."""
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

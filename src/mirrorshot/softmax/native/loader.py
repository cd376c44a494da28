"""Location, checks and loading of the compiled library."""

import ctypes
import functools
import os
import sys
import warnings
import zlib
from pathlib import Path

ABI_VERSION = 3
"""Must equal `mirrorshot_abi_version` in core.cpp; raise both when an argument changes."""
LIBRARY = Path(__file__).with_name({"win32": "core.dll", "darwin": "core.dylib"}.get(sys.platform, "core.so"))
FUNCTIONS = {"mirrorshot_moments": 3, "mirrorshot_hessian": 4}
"""Names of the functions, with the number of arrays that each writes."""


def checksum_file(library: Path) -> Path:
    """Return the path of the checksum file, which the build writes beside the library."""
    return library.with_name(library.name + ".crc32")


def checksum(content: bytes) -> str:
    """Return the checksum that detects a damaged file; loading one can crash the process on some systems."""
    return f"{zlib.crc32(content):08x} {len(content)}"


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Load the library once; None if `MIRRORSHOT_NATIVE` is 0, or, with a warning, if loading fails."""
    if os.environ.get("MIRRORSHOT_NATIVE") == "0":
        return None
    try:
        return load(LIBRARY)
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"The softmax expectations run on NumPy, about ten times slower than the native core ({error}). "
            "Install a wheel of mirrorshot, or a C++ compiler and mirrorshot again; MIRRORSHOT_NATIVE=0 hides this.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def load(path: Path) -> ctypes.CDLL:
    """Load a library and check its checksum and its interface.

    Raises:
        OSError: the file is missing, damaged or has another interface.
        AttributeError: it lacks a function.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path.name} was not built")
    expected, found = checksum_file(path).read_text("ascii").strip(), checksum(path.read_bytes())
    if found != expected:
        raise OSError(f"expected {path.name} with checksum {expected}, but got {found}")
    loaded = ctypes.CDLL(str(path))
    version = loaded.mirrorshot_abi_version()
    if version != ABI_VERSION:
        raise OSError(f"expected {path.name} with interface {ABI_VERSION}, but got {version}")
    for name, n_outputs in FUNCTIONS.items():
        function = getattr(loaded, name)
        sizes, array = [ctypes.c_int64] * 2, ctypes.c_void_p
        function.argtypes = [ctypes.c_int, array, array, *sizes, array, *[array] * n_outputs]
        function.restype = ctypes.c_int
    loaded.mirrorshot_rounds.argtypes = [ctypes.c_void_p] * 5
    loaded.mirrorshot_rounds.restype = ctypes.c_int
    return loaded

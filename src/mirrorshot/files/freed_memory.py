"""Option of the memory allocator that makes training on the CPU faster."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_NEVER, _LARGEST = -1, 2**30


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next training step; return whether it does.

    By default glibc returns the feature maps of a network to the system after each step, and the system clears their
    pages when they are allocated again. With this option it returns only arrays of 1 GiB or more. Results are equal.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))

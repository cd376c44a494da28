"""Memory that was freed, kept by the process for the arrays of the next training step."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_NEVER, _LARGEST = -1, 2**30


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory, in programs that compute on the CPU; returns whether it does.

    By default it gives maps of a network back to the system after every step, which clears all their pages when they
    are asked for again. Only single arrays of a gigabyte and more still go back. Results stay the same.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))

"""The memory that a fit takes, computed before it starts.

Every class has covariances of its own, so a task of `C` classes and `N` examples works on arrays of `C N^2` numbers,
about a dozen of which live together, and on derivatives of `N C^2`.
"""

import os
from collections.abc import Callable

from mirrorshot.types import InvalidInputError

VARIABLE = "MIRRORSHOT_MAX_MEMORY_GIB"
_ARRAYS = 12  # of C N^2 float64 at the peak of inference
_KEPT = 6  # such arrays of each candidate while candidates are compared
_PAIRS = 9  # arrays of N C^2 float32


def bytes_needed(n_examples: int, n_way: int, n_candidates: int = 1) -> int:
    """About the most bytes that a fit takes, on top of the embeddings.

    Example:
        >>> bytes_needed(100, 5) / 2**20 < 10
        True
        >>> bytes_needed(2000, 2000) / 2**30 > 700
        True
    """
    kept = _KEPT * n_candidates if n_candidates > 1 else 0
    return 8 * n_way * n_examples**2 * (_ARRAYS + kept) + 4 * n_examples * n_way**2 * _PAIRS


def memory_limit() -> float:
    """Bytes that a fit may take: `MIRRORSHOT_MAX_MEMORY_GIB`, or else the memory of the machine."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return _physical_memory()
    try:
        limit = float(given)
    except ValueError:
        limit = 0.0
    if not limit > 0.0:
        raise InvalidInputError(f"Expected {VARIABLE} to be a positive number of GiB, but got {given!r}.")
    return limit * 2**30


def _physical_memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # a system that does not say
        return float("inf")


def check_memory(n_examples: int, n_way: int, n_candidates: int) -> None:
    """Refuse a task that would not fit into memory, and say which sizes would."""
    needed, limit = bytes_needed(n_examples, n_way, n_candidates), memory_limit()
    if needed <= limit:
        return
    most = _largest(lambda n: bytes_needed(n, n_way, n_candidates) <= limit, n_examples)
    classes = _largest(lambda c: bytes_needed(n_examples, c, n_candidates) <= limit, n_way)
    raise InvalidInputError(
        f"Expected a task that fits into {limit / 2**30:.3g} GiB of memory, but {n_examples} examples of {n_way} "
        f"classes need about {needed / 2**30:.3g} GiB. What fits: {most} examples of {n_way} classes, or {n_examples} "
        f"examples of {classes} classes. Use fewer examples or classes, or set {VARIABLE} to allow more."
    )


def _largest(fits: Callable[[int], bool], above: int) -> int:
    """The largest number below `above` that fits, by bisection; 0 if none does."""
    low = 0
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if fits(middle) else (low, middle)
    return low

"""Memory of a fit, or of a choice from a pool, estimated before it starts.

A task of `C` classes and `N` examples with a covariance of rank `R` needs a few arrays of `N^2` numbers, one of `C R^2`
for each kernel that is compared, about 150 of `N C`, and one of `C N^2` up to a limit.
"""

import math
import os
from collections.abc import Callable

from mirrorshot.gp.weight_space import SQUARES_SIZE
from mirrorshot.types import InvalidInputError

VARIABLE = "MIRRORSHOT_MAX_MEMORY_GIB"
_SQUARES = 5  # arrays of N^2, also for a pool of N
_LATENTS = 150  # arrays of N C
_RESPONSE = SQUARES_SIZE  # most numbers of the squared covariances (`gp.weight_space`) and the arrays made from them
_DENSE = 12  # arrays of C N^2 in the safeguarded loop
_PAIRS = 9  # arrays of N C^2 float32 there


def bytes_needed(n_examples: int, n_way: int, rank: int, n_candidates: int = 1) -> int:
    """Estimate the largest number of bytes of a fit, without the embeddings.

    `rank` is the largest rank of the covariance: for linear and cosine kernels the number of features.

    Example:
        >>> bytes_needed(100, 5, 64) / 2**20 < 10
        True
        >>> bytes_needed(5000, 10, 256) / 2**30 < 1.5
        True
    """
    factors = n_way * min(rank, n_examples) ** 2
    response = min(n_way * n_examples**2, _RESPONSE)
    return 8 * (_SQUARES * n_examples**2 + n_candidates * factors + _LATENTS * n_examples * n_way + response)


def fits_dense(n_examples: int, n_way: int) -> bool:
    """Whether memory suffices for the safeguarded loop, which has a covariance matrix for each class."""
    return 8 * n_way * n_examples**2 * _DENSE + 4 * n_examples * n_way**2 * _PAIRS <= memory_limit()


def memory_limit() -> float:
    """Return the bytes that a fit may take: `MIRRORSHOT_MAX_MEMORY_GIB`, by default the memory of the machine."""
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
    except (AttributeError, ValueError, OSError):  # not available on this system
        return float("inf")


def check_memory(n_examples: int, n_way: int, rank: int, n_candidates: int) -> None:
    """Refuse a task that would not fit into memory; the message says which sizes would."""
    needed, limit = bytes_needed(n_examples, n_way, rank, n_candidates), memory_limit()
    if needed <= limit:
        return
    most = _largest(lambda n: bytes_needed(n, n_way, rank, n_candidates) <= limit, n_examples)
    classes = _largest(lambda c: bytes_needed(n_examples, c, rank, n_candidates) <= limit, n_way)
    raise InvalidInputError(
        f"Expected a task that fits into {limit / 2**30:.3g} GiB of memory, but {n_examples} examples of {n_way} "
        f"classes need about {needed / 2**30:.3g} GiB. What fits: {most} examples of {n_way} classes, or {n_examples} "
        f"examples of {classes} classes. Use fewer examples or classes, or set {VARIABLE} to allow more."
    )


def check_pool_memory(size: int) -> None:
    """Refuse a pool with covariances that would not fit into memory; the message says which size would."""
    limit, needed = memory_limit(), 8 * _SQUARES * size**2
    if needed > limit:
        most = math.isqrt(int(limit / (8 * _SQUARES)))
        raise InvalidInputError(
            f"Expected a pool that fits into {limit / 2**30:.3g} GiB of memory, but {size} items need about "
            f"{needed / 2**30:.3g} GiB. Draw at most {most} of them, or set {VARIABLE} to allow more."
        )


def _largest(fits: Callable[[int], bool], above: int) -> int:
    low = 0
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if fits(middle) else (low, middle)
    return low

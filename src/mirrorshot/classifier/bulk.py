"""Predictions of many queries, in chunks of bounded memory and on several cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.types import InvalidInputError


def in_chunks(
    predict: Callable[..., NDArray[Any]], *arrays: NDArray[Any], chunk: int = 2**14, n_jobs: int = 1
) -> NDArray[Any]:
    """Apply a method of a fitted `FewShotClassifier` to chunks of rows, and concatenate the results.

    Memory beyond arrays and result is that of one chunk per job, so `X` may exceed the memory of the machine
    (`numpy.load(path, mmap_mode="r")`). Probabilities equal those of one call to rounding; with models of versions
    before the moderated softmax to about 1e-8, because their quadrature nodes depend on all queries of a call.

    Design note: threads are enough, because the loops of NumPy and the native core release the GIL. Rejected: `n_jobs`
    as a parameter of the estimator, which is part of every model file.

    Args:
        predict: a method that returns one row for each query, such as `few.predict_proba`.
        arrays: its arguments, with a row for each query.
        chunk: number of rows of a call.
        n_jobs: number of threads; -1 for one on each core.

    Example:
        >>> from mirrorshot import FewShotClassifier
        >>> few = FewShotClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
        >>> in_chunks(few.predict, np.tile([[0.1, 0.9]], (5, 1)), chunk=2, n_jobs=2).tolist()
        ['a', 'a', 'a', 'a', 'a']
    """
    n_jobs = (os.cpu_count() or 1) if n_jobs == -1 else n_jobs
    _check(arrays, chunk, n_jobs)
    starts = range(0, len(arrays[0]), chunk)

    def part(start: int) -> NDArray[Any]:
        rows = [array[start : start + chunk] for array in arrays]
        return _one_row_each(predict(*rows), len(rows[0]))

    first = part(0)
    out = np.empty((len(arrays[0]), *first.shape[1:]), dtype=first.dtype)
    out[: len(first)] = first

    def fill(start: int) -> None:
        out[start : start + chunk] = part(start)

    with ThreadPoolExecutor(n_jobs) as pool:
        for _ in pool.map(fill, starts[1:]):
            pass
    return out


def _one_row_each(found: Any, n: int) -> NDArray[Any]:
    if isinstance(found, np.ndarray) and found.shape[:1] == (n,):
        return found
    got = f"shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
    raise InvalidInputError(
        f"Expected `predict` to return an array with a row for each of {n} queries, but got {got}. Of several arrays, "
        "choose one: in_chunks(lambda x: few.uncertainty(x).total, X)."
    )


def _check(arrays: tuple[NDArray[Any], ...], chunk: int, n_jobs: int) -> None:
    if not arrays or len({len(array) for array in arrays}) > 1 or len(arrays[0]) == 0:
        raise InvalidInputError(
            f"Expected arrays with a row for each query, but got arrays of {[len(array) for array in arrays]} rows."
        )
    if chunk < 1 or n_jobs < 1:
        raise InvalidInputError(
            f"Expected `chunk` of at least 1 and `n_jobs` of at least 1, or -1, but got {chunk} and {n_jobs}."
        )

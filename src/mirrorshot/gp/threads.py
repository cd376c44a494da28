"""Context managers for the number of threads of torch and of NumPy's linear algebra.

For arrays of a few thousand elements one thread is faster than several, and much faster on a busy machine.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from threadpoolctl import ThreadpoolController


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Let torch use `n` threads inside the block; the number belongs to the calling Python thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_blas_thread(*, is_small: bool) -> contextlib.AbstractContextManager[Any]:
    """Limit NumPy's and SciPy's linear algebra to one thread inside the block, if the work is small.

    The limit belongs to the process: of several Python threads, the first sets and restores it (`threadpoolctl`).
    """
    return _controller().limit(limits=1) if is_small else contextlib.nullcontext()


@functools.cache
def _controller() -> Any:
    return ThreadpoolController().select(user_api="blas")

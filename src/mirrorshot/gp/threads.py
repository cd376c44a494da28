"""Number of threads of torch and of NumPy's linear algebra.

Arrays of a few thousand elements are computed faster by one thread than shared out among several, and much faster on a
machine whose cores are busy.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from threadpoolctl import ThreadpoolController


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Let torch compute with `n` threads inside the block, then restore the number.

    The number belongs to the calling Python thread, so fits in several threads do not disturb each other.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_blas_thread(*, is_small: bool) -> contextlib.AbstractContextManager[Any]:
    """Let NumPy and SciPy multiply and factorise with a single thread inside the block, if the work is small.

    The number belongs to the process. Of several Python threads the first sets and restores it (`threadpoolctl`).
    """
    return _controller().limit(limits=1) if is_small else contextlib.nullcontext()


@functools.cache
def _controller() -> Any:
    return ThreadpoolController().select(user_api="blas")

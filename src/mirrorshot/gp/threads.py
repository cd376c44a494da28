"""Number of threads of torch.

Tensors of a few thousand elements are computed faster by one thread than shared out among several, and much faster on a
machine whose cores are busy.
"""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    """Let torch compute with `n` threads inside the block, then restore the number.

    The number belongs to the calling Python thread, so classifiers that are fitted in several threads do not disturb
    each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread(is_small: bool = True) -> contextlib.AbstractContextManager[None]:
    """Let torch compute with a single thread inside the block, if the work is small."""
    return threads(1) if is_small else contextlib.nullcontext()

"""One thread for small work.

Tensors of a few thousand elements are computed faster by one thread than shared out among several, and much faster on a
machine whose cores are busy.
"""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread(is_small: bool = True) -> Iterator[None]:
    """Let torch compute with a single thread inside the block, if the work is small; then put its number back.

    The number belongs to the calling Python thread, so classifiers that are fitted in several threads do not disturb
    each other.

    Example:
        >>> import torch
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if is_small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if is_small:
            torch.set_num_threads(before)

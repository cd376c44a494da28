"""Limits on open requests per owner, and on the bytes of their bodies per owner and in total."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.settings import Limits

Reserve = Callable[[int], None]


class Budget:
    """Counts requests until they are answered, and bytes of bodies before they are read.

    Example:
        >>> budget = Budget(Limits(session_bytes=100))
        >>> with budget.request("a", most=1) as reserve:
        ...     reserve(60)
        ...     try:
        ...         reserve(60)
        ...     except RequestError as error:
        ...         print(error.status, error.retry_after)
        429 1
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @property
    def n_bytes(self) -> int:
        """Bytes of the bodies of all open requests."""
        return self._bytes.total()

    @contextmanager
    def request(self, owner: str, most: int) -> Iterator[Reserve]:
        """Count a request of `owner`, one of at most `most`; yield a function that reserves bytes for its body."""
        if self._requests[owner] >= most:
            raise _over(f"at most {most} requests of yours at the same time", f"{most + 1}")
        self._requests[owner] += 1
        reserved = 0

        def reserve(n: int) -> None:
            nonlocal reserved
            self._check_bytes(owner, n)
            self._bytes[owner] += n
            reserved += n

        try:
            yield reserve
        finally:
            self._bytes[owner] -= reserved
            self._requests[owner] -= 1
            if not self._requests[owner]:
                del self._requests[owner], self._bytes[owner]

    def _check_bytes(self, owner: str, n: int) -> None:
        for held, most, whose in (
            (self._bytes[owner], self._limits.session_bytes, "of yours"),
            (self.n_bytes, self._limits.total_bytes, "of all users"),
        ):
            if held + n > most:
                raise _over(f"requests {whose} to have at most {most} bytes at the same time", f"{held + n}")


def _over(expected: str, got: str) -> RequestError:
    message = f"Expected {expected}, but got {got}. Wait for answers, then send it again."
    return RequestError(429, message, retry_after=1)

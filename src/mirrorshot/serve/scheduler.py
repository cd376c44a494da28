"""Fair scheduling of blocking work in threads."""

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


class Scheduler:
    """Threads for blocking work, which waiting owners share in round-robin order.

    An owner has at most half of the threads (at least one), so an owner with much work does not block others. All
    methods but `close` have to be called in the event loop.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(n_threads, name)
        self._free, self._per_owner = n_threads, max(1, n_threads // 2)
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, owner: str, work: Callable[[], _T]) -> _T:
        """Run `work` in a thread when it is the owner's turn; return its result."""
        if self._may_start(owner) and owner not in self._waiting:
            self._take(owner)
        else:
            await self._turn(owner)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._give_back(owner)

    def close(self, seconds: float) -> bool:
        """Drop waiting work; return whether running work ended within `seconds`."""
        ending = threading.Thread(target=self._pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        ending.start()
        ending.join(max(0.0, seconds))
        return not ending.is_alive()

    def _may_start(self, owner: str) -> bool:
        return self._free > 0 and self._running[owner] < self._per_owner

    def _take(self, owner: str) -> None:
        self._free -= 1
        self._running[owner] += 1

    async def _turn(self, owner: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(owner)
            raise

    def _give_back(self, owner: str) -> None:
        self._free += 1
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        while (chosen := next((waiting for waiting in self._waiting if self._may_start(waiting)), None)) is not None:
            self._start_next(chosen)

    def _start_next(self, owner: str) -> None:
        queue = self._waiting.pop(owner)
        turn = queue.popleft()
        if queue:
            self._waiting[owner] = queue  # behind all others
        if not turn.done():
            self._take(owner)
            turn.set_result(None)

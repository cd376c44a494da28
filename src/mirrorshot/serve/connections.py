"""HTTP connections that are closed if their clients are silent or slow."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mirrorshot.serve.settings import Limits


class Connection(H11Protocol):
    """An HTTP connection with time limits, one of a limited number.

    The headers of the next request have to be complete within `idle_seconds`; uvicorn's own timer stops at the first
    byte. The client has to read an answer within `answer_seconds`. Beyond `connections`, the connection that was idle
    longest is closed, or the new one if none is idle. uvicorn discards the rest of a refused body.
    """

    limits: ClassVar[Limits] = Limits()
    _silence: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request of this connection is open."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request; close a connection beyond the limit."""
        super().connection_made(transport)
        self._wait()
        there = [other for other in self.connections if isinstance(other, Connection)]
        there = [other for other in there if not other.transport.is_closing()]
        if len(there) > self.limits.connections:
            idle = [other for other in there if other.is_idle and other is not self]
            min(idle, key=lambda other: other._idle_since, default=self).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when a request is complete."""
        super().data_received(data)
        if not self.is_idle:
            self._stop(self._silence)

    def on_response_complete(self) -> None:
        """Start the timer of the next request."""
        super().on_response_complete()
        if self.is_idle and not self.transport.is_closing():
            self._wait()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read its answer."""
        super().pause_writing()
        self._stop(self._reading)
        self._reading = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer of the client."""
        super().resume_writing()
        self._stop(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        super().connection_lost(exc)
        self._stop(self._silence)
        self._stop(self._reading)

    def _wait(self) -> None:
        self._stop(self._silence)
        self._idle_since = self.loop.time()
        self._silence = self.loop.call_later(self.limits.idle_seconds, self.transport.abort)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def bounded(limits: Limits) -> type[Connection]:
    """Return a class of connections with these limits."""
    return type("BoundedConnection", (Connection,), {"limits": limits})

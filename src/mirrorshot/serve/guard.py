"""What every request passes before anything else looks at it: host, token, origin, size. And headers of every answer.

Plain ASGI, because it has to decide before a body is read.
"""

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.settings import Settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

UPLOADS = ("/api/examples", "/api/pool", "/api/predict")
TOKEN_HEADER = "x-mirrorshot-token"
_READS = ("GET", "HEAD", "OPTIONS")
_OPEN = ("/api/login", "/api/health")  # need no token
_HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_MAX_ADDRESSES = 10_000


class Rate:
    """At most so many events a minute for each address; one that waits gets its turn back little by little.

    Args:
        per_minute: number of events, all of which may come at once.
        clock: seconds that only grow.

    Example:
        >>> rate = Rate(2, clock=lambda: 0.0)
        >>> [rate.allows("a"), rate.allows("a"), rate.allows("a"), rate.allows("b")]
        [True, True, False, True]
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, address: str) -> bool:
        """Whether one more event of that address may happen now; if so it is counted."""
        now = self._clock()
        left, before = self._left.pop(address, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - before) * self._per_minute / 60.0)
        self._left[address] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._left) > _MAX_ADDRESSES:
            self._left.popitem(last=False)
        return left >= 1.0


class Guard:
    """Lets through what may come in, with a body that is complete and small enough.

    Args:
        app: what is guarded.
        settings: of the server.
        cookie: name of the cookie that proves the token.
    """

    def __init__(self, app: App, settings: Settings, cookie: str) -> None:
        self._app, self._settings, self._cookie = app, settings, cookie
        self._uploads = asyncio.Semaphore(settings.limits.uploads_at_once)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            check_host(headers, self._settings)
            if self._settings.token is not None and _needs_token(scope["path"]):
                check_token(headers, self._settings.token, self._cookie)
            if scope["method"] not in _READS:
                check_origin(headers)
            limits = self._settings.limits
            is_upload = scope["path"] in UPLOADS and scope["method"] == "POST"
            limit = limits.upload_bytes if is_upload else limits.json_bytes
            check_length(headers, limit)
            if not is_upload:
                body = await self._body(receive, limit)
                await self._app(scope, _replay(body, receive), send)
                return
            async with self._uploads:
                body = await self._body(receive, limit)
            await self._app(scope, _replay(body, receive), send)
        except RequestError as error:
            closing = {"connection": "close"} if error.status in (408, 413) else {}
            await JSONResponse({"error": str(error)}, error.status, closing)(scope, receive, send)
        except ConnectionResetError:
            return  # the client has gone

    async def _body(self, receive: Receive, limit: int) -> bytes:
        seconds = self._settings.limits.body_seconds
        try:
            return await asyncio.wait_for(_read(receive, limit), seconds)
        except asyncio.TimeoutError as error:
            raise RequestError(
                408, f"Expected the request within {seconds:g} seconds, but it was not all there. Send it again."
            ) from error


async def _read(receive: Receive, limit: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit, f"more than {limit}")
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body which was read already, and then goes on."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            if not any(name.lower() == b"cache-control" for name, _ in message.get("headers", ())):
                own.append((b"cache-control", b"no-store"))
            message["headers"] = [*message.get("headers", ()), *own]
        await send(message)

    return sending


def check_host(headers: Headers, settings: Settings) -> None:
    """Refuse names that are not ours: a page elsewhere could make its name mean this machine."""
    host = headers.get("host", "")
    name = host[: host.rfind(":")] if host.rfind(":") > host.rfind("]") else host
    if settings.allowed_hosts is not None and name.lower() not in settings.allowed_hosts:
        raise RequestError(
            421,
            f"Expected the host to be {', '.join(settings.allowed_hosts)}, but got {name[:80]!r}. Use one of these, or "
            "start the server with --public-host.",
        )


def check_token(headers: Headers, token: str, cookie: str) -> None:
    """Refuse who knows neither the token nor has the cookie that proves it."""
    given = headers.get(TOKEN_HEADER)
    if given is not None and hmac.compare_digest(given.encode(), token.encode()):
        return
    proof = cookies(headers).get(cookie)
    if proof is None or not hmac.compare_digest(proof.encode(), token_proof(token).encode()):
        raise RequestError(
            403,
            "Expected the token of this server, but got none that fits. Open the address that it printed when it "
            f"started, or send the token in the header {TOKEN_HEADER}.",
        )


def token_proof(token: str) -> str:
    """What the cookie holds: it shows that its owner knew the token, and does not tell it."""
    return hmac.new(token.encode(), b"mirrorshot serve", hashlib.sha256).hexdigest()


def check_origin(headers: Headers) -> None:
    """Refuse changes that a page of somebody else asks for in the name of a user."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_foreign = origin is not None and origin.partition("://")[2] != headers.get("host", "")
    if is_foreign or site not in (None, "same-origin", "none"):
        raise RequestError(
            403, f"Expected a request from the page of this server, but got one from {(origin or site or '')[:80]!r}."
        )


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body by its headers, before any of it is read."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(415, "Expected a body that is not compressed, but got one that is. Send it as it is.")
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdigit()):
        raise RequestError(400, f"Expected the length to be a number, but got {length[:40]!r}.")
    if length is not None and int(length[:20]) > limit:
        raise _too_large(limit, length[:20])


def _too_large(limit: int, got: str) -> RequestError:
    return RequestError(413, f"Expected at most {limit} bytes, but got {got}. Make the picture smaller.")


def _needs_token(path: str) -> bool:
    return path.startswith("/api/") and path not in _OPEN


def cookies(headers: Headers) -> dict[str, str]:
    """The cookies of a request; none if they cannot be read."""
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(headers.get("cookie", "")).items()}
    except CookieError:
        return {}

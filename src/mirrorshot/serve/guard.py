"""Checks of every request (host, token, origin, size, session, budget), and headers of every answer.

Plain ASGI middleware, because it decides before the body is read.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from mirrorshot.serve.budget import Budget, Reserve
from mirrorshot.serve.errors import RequestError, database_failed, unknown_session
from mirrorshot.serve.records import Session
from mirrorshot.serve.settings import Limits, Settings
from mirrorshot.serve.tokens import TOKEN_HEADER, Door

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
FindUser = Callable[[Headers], Awaitable[Session | None]]

UPLOADS = ("/api/examples", "/api/pool", "/api/predict")
LABELS = "/api/labels"
_READS = ("GET", "HEAD", "OPTIONS")
_WITH_BODY = ("POST", "PUT", "PATCH")
_OPEN = ("/api/login", "/api/health")  # without a token
_WITHOUT_SESSION = (*_OPEN, "/api/sessions")
_HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Middleware that refuses requests, or passes them on with a complete body.

    `find_user` finds the user by the headers, before the body is read. Routes get the user as `session` in the state of
    the request.
    """

    def __init__(self, app: App, settings: Settings, door: Door, find_user: FindUser) -> None:
        self._app, self._settings, self._door, self._find_user = app, settings, door, find_user
        self._budget = Budget(settings.limits)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except RequestError as error:
            await _refuse(error, scope, receive, send)
        except sqlite3.Error as error:
            await _refuse(database_failed(error), scope, receive, send)
        except asyncio.CancelledError:  # uvicorn cancels open requests when the server stops
            stopping = RequestError(503, "Expected the server to run, but it is being stopped. Send it again later.")
            await _refuse(stopping, scope, receive, send)
        except ConnectionResetError:
            return  # the client closed the connection

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        headers, address, limits = Headers(scope=scope), client_address(scope), self._settings.limits
        limit = self._check(scope, headers, address)
        user = await self._user(scope, headers)
        owner = (f"address {address}", limits.address_requests) if user is None else (user.key, limits.session_requests)
        with self._budget.request(*owner) as reserve:
            if scope["method"] in _WITH_BODY:
                reserve(int(headers.get("content-length", "0")))
                counted = reserve if "transfer-encoding" in headers else (lambda _: None)  # the length is reserved
                receive = _replay(await read_body(receive, limit, limits, counted), receive)
            await self._app(scope, receive, send)

    def _check(self, scope: Any, headers: Headers, address: str) -> int:
        """Refuse a request by its headers; return the limit of the body in bytes."""
        check_host(headers, self._settings)
        needs_token = scope["path"].startswith("/api/") and scope["path"] not in _OPEN
        if needs_token and not self._door.is_open(headers, address):
            raise RequestError(
                403,
                "Expected the token of this server. Open the address that it printed when it started, or send the "
                f"token in the header {TOKEN_HEADER}.",
            )
        if scope["method"] not in _READS:
            check_origin(headers)
        limit = body_limit(scope["path"], scope["method"], self._settings.limits)
        check_length(headers, limit)
        return limit

    async def _user(self, scope: Any, headers: Headers) -> Session | None:
        path, user = scope["path"], None
        if path.startswith("/api/") and path not in _WITHOUT_SESSION:
            user = await self._find_user(headers)
            if user is None and scope["method"] in _WITH_BODY:
                raise unknown_session()
        scope.setdefault("state", {})["session"] = user
        return user


def body_limit(path: str, method: str, limits: Limits) -> int:
    """Return the limit of the body of a request in bytes."""
    if method != "POST":
        return limits.json_bytes
    return limits.upload_bytes if path in UPLOADS else limits.labels_bytes if path == LABELS else limits.json_bytes


async def read_body(receive: Receive, limit: int, limits: Limits, reserve: Reserve) -> bytes:
    """Read a body within the limits of size and time; reserve each part before it is kept."""
    parts, n, began = [], 0, asyncio.get_running_loop().time()
    while True:
        left = began + limits.body_seconds + n / limits.body_rate - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(receive(), left)
        except asyncio.TimeoutError as error:
            raise RequestError(
                408,
                f"Expected the request within {limits.body_seconds:g} seconds and one more for each {limits.body_rate} "
                f"bytes, but got {n} bytes. Send it again.",
            ) from error
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part = message.get("body", b"")
        n += len(part)
        if n > limit:
            raise _too_large(limit, f"more than {limit}")
        reserve(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns a body that was read already."""
    given = [body]

    async def again() -> Message:
        if not given:
            return await receive()
        return {"type": "http.request", "body": given.pop(), "more_body": False}

    return again


async def _refuse(error: RequestError, scope: Any, receive: Receive, send: Send) -> None:
    closing = {"connection": "close"} if error.status in (408, 413) else {}
    await JSONResponse({"error": str(error)}, error.status, error.headers | closing)(scope, receive, send)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending


def check_host(headers: Headers, settings: Settings) -> None:
    """Refuse other host names, against DNS rebinding: another site may let its name resolve to this machine."""
    host = headers.get("host", "")
    name = host[: host.rfind(":")] if host.rfind(":") > host.rfind("]") else host
    if settings.allowed_hosts is not None and name.lower() not in settings.allowed_hosts:
        raise RequestError(
            421,
            f"Expected the host to be {', '.join(settings.allowed_hosts)}, but got {name[:80]!r}. Use one of these, or "
            "start the server with --public-host.",
        )


def check_origin(headers: Headers) -> None:
    """Refuse changes that a page of another site requests (CSRF)."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_foreign = origin is not None and origin.partition("://")[2] != headers.get("host", "")
    if is_foreign or site not in (None, "same-origin", "none"):
        raise RequestError(
            403, f"Expected a request from the page of this server, but got one from {(origin or site or '')[:80]!r}."
        )


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body by its headers."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestError(415, "Expected a body that is not compressed, but got one that is. Send it as it is.")
    length = headers.get("content-length")
    if length is not None and not (length.isascii() and length.isdigit()):
        raise RequestError(400, f"Expected the length to be a number, but got {length[:40]!r}.")
    if length is not None and int(length[:20]) > limit:
        raise _too_large(limit, length[:20])


def _too_large(limit: int, got: str) -> RequestError:
    return RequestError(413, f"Expected at most {limit} bytes, but got {got}. Send less, or a smaller image.")


def client_address(scope: Any) -> str:
    """Return the address of the client, or an empty string."""
    return str(scope["client"][0]) if scope.get("client") else ""

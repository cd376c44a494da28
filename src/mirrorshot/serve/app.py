"""The ASGI application: the guard, routes, pages, and errors as sentences."""

import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from mirrorshot.serve.errors import RequestError, database_failed, disk_failed
from mirrorshot.serve.guard import Guard
from mirrorshot.serve.images import Encoders
from mirrorshot.serve.records import Session
from mirrorshot.serve.requests import Entrance, session_id_of
from mirrorshot.serve.routes import router
from mirrorshot.serve.service import Service
from mirrorshot.serve.settings import Settings
from mirrorshot.serve.tokens import Door, Rate
from mirrorshot.tool import Model
from mirrorshot.types import MirrorshotError

DESCRIPTION = """Build a classifier from a few images per class, and ask it about others.

Begin with `POST /api/sessions`. Its answer holds a session id, a secret: send it with every request as
`Authorization: Bearer ID`; a browser sends the cookie instead. An image is the body of its request, with a content
type `image/png`, `image/jpeg` or `application/octet-stream`. Errors are `{"error": "Expected ..., but got ..."}`.
If the server was started with a token, send that too, in the header `X-Mirrorshot-Token`.
"""
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NO_JSON = "Expected the body to be JSON, but it cannot be read as such."
_ERRORS = (OSError, sqlite3.Error, MirrorshotError, RequestValidationError, HTTPException, Exception)
_PAGES = {"/": "index.html", "/docs": "docs.html"}


def make_app(settings: Settings, encoders: Encoders, model: Model | None = None) -> FastAPI:
    """Create the ASGI application. New users start with the examples of the model."""
    service = Service(settings, encoders, model)
    session_cookie, token_cookie = f"mirrorshot_{service.database.name}", f"mirrorshot_token_{service.database.name}"
    door = Door(settings.token, token_cookie, service.database.secret)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.backups.start()
        service.changes.resume()
        yield
        service.close()

    async def find_user(headers: Headers) -> Session | None:
        session_id = session_id_of(headers, session_cookie)
        return await service.find_session(session_id) if session_id else None

    app = FastAPI(
        title="mirrorshot serve",
        version="1",
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's pages load scripts from other hosts; static/docs.html replaces them
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(_ERRORS, _refuse),
        middleware=[Middleware(Guard, settings=settings, door=door, find_user=find_user)],
    )
    app.state.service = service
    app.state.entrance = Entrance(door, Rate(settings.limits.sessions_per_minute), session_cookie, token_cookie)
    app.include_router(router)
    _add_pages(app)
    return app


def _add_pages(app: FastAPI) -> None:
    """Serve the files of the page from memory, so that no path of a client is looked up on the disk."""
    folder = files("mirrorshot.serve") / "static"
    found = {f"/static/{file.name}": file for file in folder.iterdir() if "." + file.name.rpartition(".")[2] in _TYPES}
    found |= {path: folder / name for path, name in _PAGES.items()}
    for path, file in found.items():
        page = _page(file.read_bytes(), _TYPES["." + file.name.rpartition(".")[2]])
        app.add_route(path, page, methods=["GET"], include_in_schema=False)


def _page(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(_: Request) -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return page


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, OSError):
        error = disk_failed(error)
    elif isinstance(error, sqlite3.Error):
        error = database_failed(error)
    if isinstance(error, RequestError):
        return _problem(error.status, str(error), error.headers)
    if isinstance(error, MirrorshotError):
        return _problem(422, str(error))
    if isinstance(error, RequestValidationError):
        return _problem(422, in_words(error.errors()[0]))
    if isinstance(error, HTTPException):
        return _http_problem(request, error)
    logging.getLogger("mirrorshot.serve").error("%s failed", request.url.path, exc_info=error)
    return _problem(500, "Expected no failure here, but got one. It is in the log of the server; please report it.")


def _http_problem(request: Request, error: HTTPException) -> Response:
    if error.status_code == 400:  # FastAPI cannot parse the body
        return _problem(422, _NO_JSON)
    what = f"{request.method} {request.url.path[:80]}"
    message = {
        404: f"Expected a path of this server, but got {what!r}. See /docs.",
        405: f"Expected a method that this path has, but got {what!r}. See /docs.",
    }.get(error.status_code, f"Expected a request that can be read, but got {error.detail}.")
    return _problem(error.status_code, message, dict(error.headers or {}))


def _problem(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    plain = message.encode("utf-8", "replace").decode("utf-8")
    return JSONResponse({"error": plain}, status, headers)


def in_words(error: Any) -> str:
    """Describe an error of pydantic in a sentence.

    Example:
        >>> in_words({"loc": ("body", "name"), "msg": "Field required", "type": "missing", "input": None})
        'Expected `name` in the body, but it is missing.'
    """
    place, *path = (str(part) for part in error["loc"])
    name = ".".join(path) or place
    if isinstance(error.get("ctx", {}).get("error"), MirrorshotError):
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"Expected `{name}` in the {place}, but it is missing."
    if error["type"] == "json_invalid":
        return _NO_JSON
    got = repr(error.get("input"))
    shown = got if len(got) <= 80 else f"{got[:80]}..."
    return f"Expected `{name}` to be valid ({error['msg'][0].lower()}{error['msg'][1:]}), but got {shown}."

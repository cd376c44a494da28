"""Dependencies of the routes (session, service, bodies by content type) and documentation of errors."""

from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Query, Request, Response
from fastapi import Path as InPath
from starlette.datastructures import Headers

from mirrorshot.serve import forms
from mirrorshot.serve.errors import RequestError, unknown_session
from mirrorshot.serve.records import Session
from mirrorshot.serve.service import Service
from mirrorshot.serve.tokens import Door, Rate, cookies

_YEAR = 365 * 24 * 3600
LABEL_MEDIA = ("application/json", "text/csv")
_MEDIA = ("image/png", "image/jpeg", "application/octet-stream")
_ERRORS = {
    401: "No known session.",
    403: "The token is missing, or the request comes from a page of another server.",
    404: "Not among the classes and images of this user.",
    409: "Not possible now: a limit is reached, a name is taken, or examples are missing.",
    413: "Too large.",
    415: "The content type is not accepted.",
    422: "Not understood, or no image.",
    408: "Too slow.",
    429: "Too often, or too much at the same time. `Retry-After` has the seconds to wait.",
    503: "Too many users, or the disk failed.",
    507: "No room left.",
}
_ALWAYS = (403, 429)
Problems = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Problems:
    """Return the documentation of the errors of a route."""
    shown = dict.fromkeys((*statuses, *_ALWAYS))
    return {status: {"model": forms.Problem, "description": _ERRORS[status]} for status in shown}


def file_answer(media: str, *statuses: int) -> dict[str, Any]:
    """Return arguments of a route whose answer is a file."""
    return {"responses": {**problems(*statuses), 200: {"content": {media: {}}}}, "response_class": Response}


class Entrance(NamedTuple):
    """Checks of new users. Servers have different names of cookies, because all ports of a host share cookies."""

    door: Door
    arrivals: Rate
    session_cookie: str
    token_cookie: str


async def _entrance_of(request: Request) -> Entrance:
    found: Entrance = request.app.state.entrance
    return found


async def _service_of(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


async def _user_of(request: Request) -> Session:
    user: Session | None = request.state.session
    if user is None:
        raise unknown_session()
    return user


async def _image_of(request: Request) -> bytes:
    """The body of an image's content type, which forms of other sites cannot set (CSRF)."""
    _content_type(request, "image/", "application/octet-stream")
    return await request.body()


async def _labels_of(request: Request) -> tuple[bytes, str]:
    kind = _content_type(request, *LABEL_MEDIA)
    return await request.body(), kind


async def _check_json(request: Request) -> None:
    _content_type(request, "application/json")


def _content_type(request: Request, *accepted: str) -> str:
    """Return the content type of the body, one of `accepted`; `image/` accepts all that begin with it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in accepted and not any(kind.startswith(one) for one in accepted if one.endswith("/")):
        raise RequestError(
            415, f"Expected a body of content type {' or '.join(accepted)}, but got {kind[:80]!r}. Send another."
        )
    return kind


Gate = Annotated[Entrance, Depends(_entrance_of)]
Server = Annotated[Service, Depends(_service_of)]
User = Annotated[Session, Depends(_user_of)]
Image = Annotated[bytes, Depends(_image_of)]
NumberInPath = Annotated[int, InPath(ge=1, le=2**53 - 1)]
NumberInQuery = Annotated[int, Query(ge=1, le=2**53 - 1)]
LabelFile = Annotated[tuple[bytes, str], Depends(_labels_of)]
KeepCopies = Annotated[bool, Query(description="Store an image that is there already once more.")]
FileName = Annotated[str, Query(max_length=1000, description="Name to show for the image.")]

JSON = [Depends(_check_json)]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
UPLOAD: dict[str, Any] = {
    "responses": problems(401, 404, 409, 413, 415, 422, 507),
    "openapi_extra": {"requestBody": {"required": True, "content": dict.fromkeys(_MEDIA, _BINARY)}},
}


def session_id_of(headers: Headers, cookie: str) -> str:
    """Return the session id of a request, from the bearer token or else from the cookie."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else cookies(headers).get(cookie, "")


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie for a year that scripts cannot read."""
    response.set_cookie(
        name, value, max_age=_YEAR, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )

"""The paths of the API. Each reads a request, asks the service, and answers."""

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as InPath
from starlette.datastructures import Headers

from mirrorshot.serve import forms
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.guard import client_address
from mirrorshot.serve.records import Session
from mirrorshot.serve.service import Service
from mirrorshot.serve.store import session_key, unknown_session
from mirrorshot.serve.tokens import Door, Rate, cookies

_YEAR = 365 * 24 * 3600
_MEDIA = ("image/png", "image/jpeg", "application/octet-stream")
_ERRORS = {
    401: "No session that is known.",
    403: "The token is missing, or a page of somebody else asks.",
    404: "Not among the things of this user.",
    409: "Not possible now: a limit is reached, a name is taken, or examples are missing.",
    413: "Too large.",
    415: "A content type that is not taken.",
    422: "Not understood, or no picture.",
    408: "Too slow.",
    429: "Too often, or too much at the same time. `Retry-After` has the seconds to wait.",
    503: "Too many users, or the disk failed.",
    507: "No room left.",
}
_ALWAYS = (403, 429)
Problems = dict[int | str, dict[str, Any]]
NumberInPath = Annotated[int, InPath(ge=1, le=2**53 - 1)]
FileName = Annotated[str, Query(max_length=1000, description="What to call the picture.")]


class Cookies(NamedTuple):
    """Names of the cookies; they differ from server to server, because ports share cookies."""

    session: str
    token: str


def make_router(service: Service, names: Cookies, door: Door) -> APIRouter:
    """All paths of the API."""
    router = APIRouter(prefix="/api")

    async def session(request: Request) -> Session:
        """The user, whom the guard has found."""
        user: Session | None = request.state.session
        if user is None:
            raise unknown_session()
        return user

    User = Annotated[Session, Depends(session)]
    _add_doors(router, service, names, door)
    _add_reads(router, service, session)
    _add_pictures(router, service, session)

    @router.delete("/session", tags=["users"], responses=_problems(401))
    async def forget_me(user: User, response: Response) -> forms.Done:
        """Delete all that is yours, and end the session."""
        await service.delete_session(user)
        response.delete_cookie(names.session)
        return forms.Done(version=0)

    @router.put("/encoder", tags=["pictures"], responses=_problems(401, 409, 415, 422), dependencies=[_JSON])
    async def choose_encoder(user: User, body: forms.EncoderName) -> forms.Done:
        """Choose what turns pictures into embeddings; possible while there is no picture."""
        return forms.Done(version=await service.set_encoder(user, body.name))

    @router.post(
        "/classes", status_code=201, tags=["classes"], responses=_problems(401, 409, 415, 422), dependencies=[_JSON]
    )
    async def make_class(user: User, body: forms.ClassName) -> forms.NewClass:
        """Make a class."""
        number = await service.on_disk(service.store.add_class, user.key, body.name)
        return forms.NewClass(id=number, name=body.name)

    @router.patch(
        "/classes/{class_id}", tags=["classes"], responses=_problems(401, 404, 409, 415, 422), dependencies=[_JSON]
    )
    async def rename_class(user: User, class_id: NumberInPath, body: forms.ClassName) -> forms.Done:
        """Rename a class."""
        return forms.Done(version=await service.on_disk(service.store.rename_class, user.key, class_id, body.name))

    @router.delete("/classes/{class_id}", tags=["classes"], responses=_problems(401, 404, 422))
    async def delete_class(user: User, class_id: NumberInPath) -> forms.Done:
        """Delete a class and its examples."""
        return forms.Done(version=await service.on_disk(service.store.delete_class, user.key, class_id))

    return router


def session_id_of(headers: Headers, cookie: str) -> str:
    """The session id of a request: that of the bearer, or else that of the cookie."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else cookies(headers).get(cookie, "")


def _add_doors(router: APIRouter, service: Service, names: Cookies, door: Door) -> None:
    limits = service.settings.limits
    arrivals = Rate(limits.sessions_per_minute)

    @router.get("/health", tags=["server"], responses=_problems(429))
    async def health(request: Request) -> forms.Health:
        """Whether the server runs, whether it wants a token from you, and whether it knows your cookie."""
        known = door.is_open(request.headers, client_address(request.scope))
        session_id = cookies(request.headers).get(names.session, "")
        found = await service.on_disk(service.store.find, session_key(session_id)) if known and session_id else None
        return forms.Health(is_running=True, needs_token=not known, has_session=found is not None)

    @router.post("/login", tags=["users"], responses=_problems(403, 415, 422, 429), dependencies=[_JSON])
    async def login(request: Request, response: Response, body: forms.Login) -> forms.Done:
        """Show the token of the server once, and get a cookie for it."""
        if not door.knows(body.token, client_address(request.scope)):
            raise RequestError(403, "Expected the token of this server, but got another one. Look for typing errors.")
        _set_cookie(request, response, names.token, door.proof)
        return forms.Done(version=0)

    @router.post("/sessions", status_code=201, tags=["users"], responses=_problems(403, 429, 503, 507))
    async def begin(request: Request, response: Response) -> forms.NewSession:
        """Become a user: get a session id of your own."""
        address = client_address(request.scope)
        if not arrivals.allows(address):
            raise RequestError(
                429,
                f"Expected at most {limits.sessions_per_minute} new sessions a minute, but got more. "
                "Wait a minute, or use the session that you have.",
                retry_after=arrivals.seconds,
            )
        session_id = await service.create_session(address)
        _set_cookie(request, response, names.session, session_id)
        return forms.NewSession(session=session_id)


def _add_reads(router: APIRouter, service: Service, session: Any) -> None:
    User = Annotated[Session, Depends(session)]

    @router.get("/session", tags=["users"], responses=_problems(401))
    async def overview(user: User) -> forms.Overview:
        """All that you have."""
        found = await service.on_disk(service.store.contents, user.key)
        counts = {number: sum(p.class_id == number for p in found.pictures) for number in found.classes}
        limits, encoder = service.settings.limits, found.session.encoder
        return forms.Overview(
            version=found.session.version,
            support=found.session.support,
            is_ready=sum(n > 0 for n in counts.values()) >= 2,
            encoder=None if encoder is None else encoder.partition("#")[0],
            encoders=list(service.encoders.identities),
            classes=[forms.ClassInfo(id=n, name=name, n_examples=counts[n]) for n, name in found.classes.items()],
            pictures=[forms.PictureInfo(**picture._asdict()) for picture in found.pictures],
            limits=forms.Bounds(**{name: getattr(limits, name) for name in forms.Bounds.model_fields}),
        )

    @router.get("/answers", tags=["answers"], responses=_problems(401, 409))
    async def answers(user: User) -> forms.Answers:
        """What the classifier says about your unlabelled pictures, and which of them it would learn most from."""
        return await service.answers(user)

    @router.get("/calibration", tags=["answers"], responses=_problems(401, 409))
    async def calibration(user: User) -> forms.Calibration:
        """Whether its probabilities are right: each example predicted from the others."""
        return await service.calibration(user)

    @router.get(
        "/model",
        tags=["answers"],
        responses={**_problems(401, 409, 503, 507), 200: {"content": {"application/octet-stream": {}}}},
        response_class=Response,
    )
    async def model(user: User) -> Response:
        """Download the classifier: a file for `mirrorshot predict`."""
        headers = {"content-disposition": 'attachment; filename="model.mirrorshot"'}
        return Response(await service.model_file(user), media_type="application/octet-stream", headers=headers)


def _add_pictures(router: APIRouter, service: Service, session: Any) -> None:
    User = Annotated[Session, Depends(session)]
    responses = _problems(401, 404, 409, 413, 415, 422, 507)

    @router.post("/examples", status_code=201, tags=["pictures"], responses=responses, openapi_extra=_PICTURE)
    async def add_example(
        user: User, request: Request, class_id: Annotated[int, Query(ge=1, le=2**53 - 1)], name: FileName = "picture"
    ) -> forms.NewPicture:
        """Add a picture to a class. When you have the answer it is on the disk."""
        number, got = await service.add_picture(user, class_id, await _picture(request), name)
        return forms.NewPicture(id=number, name=got.new.name, class_id=class_id, encoder=got.encoder.partition("#")[0])

    @router.post("/pool", status_code=201, tags=["pictures"], responses=responses, openapi_extra=_PICTURE)
    async def add_to_pool(user: User, request: Request, name: FileName = "picture") -> forms.NewPicture:
        """Add an unlabelled picture: it gets an answer, and may be the one that you are asked about."""
        number, got = await service.add_picture(user, None, await _picture(request), name)
        return forms.NewPicture(id=number, name=got.new.name, class_id=None, encoder=got.encoder.partition("#")[0])

    @router.post("/predict", tags=["answers"], responses=responses, openapi_extra=_PICTURE)
    async def predict(user: User, request: Request, name: FileName = "picture") -> forms.Answer:
        """What the classifier says about a picture, which is not stored."""
        return await service.predict(user, await _picture(request), name)

    @router.patch(
        "/pictures/{picture_id}", tags=["pictures"], responses=_problems(401, 404, 409, 415, 422), dependencies=[_JSON]
    )
    async def label_picture(user: User, picture_id: NumberInPath, body: forms.Place) -> forms.Done:
        """Label a picture, label it anew, or take its label away (null)."""
        version = await service.on_disk(service.store.move_picture, user.key, picture_id, body.class_id)
        return forms.Done(version=version)

    @router.delete("/pictures/{picture_id}", tags=["pictures"], responses=_problems(401, 404, 422))
    async def delete_picture(user: User, picture_id: NumberInPath) -> forms.Done:
        """Remove a picture."""
        return forms.Done(version=await service.on_disk(service.store.delete_picture, user.key, picture_id))

    @router.get(
        "/pictures/{picture_id}/preview",
        tags=["pictures"],
        responses={**_problems(401, 404, 422), 200: {"content": {"image/jpeg": {}}}},
        response_class=Response,
    )
    async def preview(user: User, picture_id: NumberInPath) -> Response:
        """A small JPEG of a picture."""
        content = await service.on_disk(service.store.preview, user.key, picture_id)
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=86400"})


async def _picture(request: Request) -> bytes:
    """The body, if it is said to be a picture; a form of another page cannot say so without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/octet-stream" and not kind.startswith("image/"):
        raise RequestError(
            415,
            f"Expected a content type image/... or application/octet-stream, but got {kind[:80]!r}. Send the bytes.",
        )
    return await request.body()


async def _check_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, f"Expected a body of content type application/json, but got {kind[:80]!r}.")


_JSON = Depends(_check_json)
_PICTURE = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _MEDIA},
    }
}


def _problems(*statuses: int) -> Problems:
    shown = dict.fromkeys((*statuses, *_ALWAYS))
    return {status: {"model": forms.Problem, "description": _ERRORS[status]} for status in shown}


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    response.set_cookie(
        name, value, max_age=_YEAR, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )

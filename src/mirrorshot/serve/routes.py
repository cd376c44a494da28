"""The paths of the API. Each reads a request, asks the service, and answers."""

from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi import Path as InPath
from starlette.datastructures import Headers

from mirrorshot.serve import forms
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.guard import client_address
from mirrorshot.serve.images import name_of
from mirrorshot.serve.labels import FILES, MEDIA, Format
from mirrorshot.serve.records import Change, Session
from mirrorshot.serve.service import Service
from mirrorshot.serve.store import unknown_session
from mirrorshot.serve.tokens import Door, Rate, cookies

_YEAR = 365 * 24 * 3600
_LABEL_MEDIA = ("application/json", "text/csv")
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


def _problems(*statuses: int) -> Problems:
    shown = dict.fromkeys((*statuses, *_ALWAYS))
    return {status: {"model": forms.Problem, "description": _ERRORS[status]} for status in shown}


def _file(media: str, *statuses: int) -> dict[str, Any]:
    """Arguments of a route whose answer is a file."""
    return {"responses": {**_problems(*statuses), 200: {"content": {media: {}}}}, "response_class": Response}


class Entrance(NamedTuple):
    """The checks of new users. Names of cookies differ from server to server, because ports share cookies."""

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
    """The user, as found by the guard."""
    user: Session | None = request.state.session
    if user is None:
        raise unknown_session()
    return user


async def _image_of(request: Request) -> bytes:
    """The body, if its content type is that of an image, which a form of another page cannot set without asking."""
    kind = _content_type(request)
    if kind != "application/octet-stream" and not kind.startswith("image/"):
        raise RequestError(
            415,
            f"Expected a content type image/... or application/octet-stream, but got {kind[:80]!r}. Send the bytes.",
        )
    return await request.body()


async def _labels_of(request: Request) -> tuple[bytes, str]:
    """The body and its content type, if that is one of a file of labels."""
    kind = _content_type(request)
    if kind not in _LABEL_MEDIA:
        raise RequestError(415, f"Expected a content type {' or '.join(_LABEL_MEDIA)}, but got {kind[:80]!r}.")
    return await request.body(), kind


async def _check_json(request: Request) -> None:
    kind = _content_type(request)
    if kind != "application/json":
        raise RequestError(415, f"Expected a body of content type application/json, but got {kind[:80]!r}.")


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


Gate = Annotated[Entrance, Depends(_entrance_of)]
Server = Annotated[Service, Depends(_service_of)]
User = Annotated[Session, Depends(_user_of)]
Image = Annotated[bytes, Depends(_image_of)]
NumberInPath = Annotated[int, InPath(ge=1, le=2**53 - 1)]
NumberInQuery = Annotated[int, Query(ge=1, le=2**53 - 1)]
LabelFile = Annotated[tuple[bytes, str], Depends(_labels_of)]
KeepCopies = Annotated[bool, Query(description="Store an image that is there already once more.")]
FileName = Annotated[str, Query(max_length=1000, description="Name to show for the image.")]

_JSON = [Depends(_check_json)]
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_UPLOAD: dict[str, Any] = {
    "responses": _problems(401, 404, 409, 413, 415, 422, 507),
    "openapi_extra": {"requestBody": {"required": True, "content": dict.fromkeys(_MEDIA, _BINARY)}},
}

router = APIRouter(prefix="/api")


@router.get("/health", tags=["server"], responses=_problems(429))
async def health(request: Request, service: Server, gate: Gate) -> forms.Health:
    """Whether the server runs, whether it wants a token from you, and whether it knows your cookie."""
    known = gate.door.is_open(request.headers, client_address(request.scope))
    session_id = cookies(request.headers).get(gate.session_cookie, "")
    found = await service.find_session(session_id) if known and session_id else None
    return forms.Health(is_running=True, needs_token=not known, has_session=found is not None)


@router.post("/login", tags=["users"], responses=_problems(403, 415, 422, 429), dependencies=_JSON)
async def login(request: Request, response: Response, gate: Gate, body: forms.Login) -> forms.Done:
    """Show the token of the server once, and get a cookie for it."""
    if not gate.door.knows(body.token, client_address(request.scope)):
        raise RequestError(403, "Expected the token of this server, but got another one. Look for typing errors.")
    _set_cookie(request, response, gate.token_cookie, gate.door.proof)
    return forms.Done(version=0)


@router.post("/sessions", status_code=201, tags=["users"], responses=_problems(403, 429, 503, 507))
async def begin(request: Request, response: Response, service: Server, gate: Gate) -> forms.NewSession:
    """Become a user: get a session id of your own."""
    address = client_address(request.scope)
    if not gate.arrivals.allows(address):
        raise RequestError(
            429,
            f"Expected at most {service.settings.limits.sessions_per_minute} new sessions a minute, but got more. "
            "Wait a minute, or use the session that you have.",
            retry_after=gate.arrivals.seconds,
        )
    session_id = await service.create_session(address)
    _set_cookie(request, response, gate.session_cookie, session_id)
    return forms.NewSession(session=session_id)


@router.get("/session", tags=["users"], responses=_problems(401))
async def overview(user: User, service: Server) -> forms.Overview:
    """Everything that you have."""
    found = await service.on_disk(service.store.contents, user.key)
    change = await service.on_disk(service.changes.status, user.key)
    counts = {number: sum(p.class_id == number for p in found.pictures) for number in found.classes}
    limits, encoder = service.settings.limits, found.session.encoder
    return forms.Overview(
        version=found.session.version,
        support=found.session.support,
        is_ready=sum(n > 0 for n in counts.values()) >= 2,
        encoder=None if encoder is None else name_of(encoder),
        encoders=list(service.encoders.identities),
        encoder_change=change and forms.EncoderChange(**change._asdict() | {"encoder": name_of(change.encoder)}),
        classes=[forms.ClassInfo(id=n, name=name, n_examples=counts[n]) for n, name in found.classes.items()],
        pictures=[forms.PictureInfo(**picture._asdict()) for picture in found.pictures],
        limits=forms.Bounds(**{name: getattr(limits, name) for name in forms.Bounds.model_fields}),
    )


@router.get("/answers", tags=["answers"], responses=_problems(401, 409))
async def answers(user: User, service: Server) -> forms.Answers:
    """Answers about your unlabelled images, and the one whose label would teach the classifier most."""
    return await service.answers(user)


@router.get("/calibration", tags=["answers"], responses=_problems(401, 409))
async def calibration(user: User, service: Server) -> forms.Calibration:
    """Whether the probabilities are right: each example predicted from the others."""
    return await service.calibration(user)


@router.get("/model", tags=["answers"], **_file("application/octet-stream", 401, 409, 503, 507))
async def model(user: User, service: Server) -> Response:
    """Download the classifier: a file for `mirrorshot predict`."""
    headers = {"content-disposition": 'attachment; filename="model.mirrorshot"'}
    return Response(await service.model_file(user), media_type="application/octet-stream", headers=headers)


@router.post("/examples", status_code=201, tags=["images"], **_UPLOAD)
async def add_example(
    user: User,
    service: Server,
    response: Response,
    class_id: NumberInQuery,
    image: Image,
    name: FileName = "image",
    copies: KeepCopies = False,
) -> forms.NewPicture:
    """Add an image to a class. When you have the answer it is on the disk.

    An image that is there already gets the label (status 200); if it has another one, that is an error (409).
    """
    return await _add(user, service, response, class_id, image, name, copies)


@router.post("/pool", status_code=201, tags=["images"], **_UPLOAD)
async def add_to_pool(
    user: User, service: Server, response: Response, image: Image, name: FileName = "image", copies: KeepCopies = False
) -> forms.NewPicture:
    """Add an unlabelled image: it gets an answer, and may be the one that you are asked about.

    An image that is there already is not stored again (status 200).
    """
    return await _add(user, service, response, None, image, name, copies)


async def _add(
    user: Session, service: Service, response: Response, class_id: int | None, image: bytes, name: str, copies: bool
) -> forms.NewPicture:
    number, is_new, got = await service.add_picture(user, class_id, image, name, keep_copy=copies)
    response.status_code = 201 if is_new else 200
    return forms.NewPicture(
        id=number,
        name=got.new.name,
        class_id=class_id,
        encoder=name_of(got.encoder),
        is_new=is_new,
        suits=got.suits,
    )


@router.post("/predict", tags=["answers"], **_UPLOAD)
async def predict(user: User, service: Server, image: Image, name: FileName = "image") -> forms.Answer:
    """The answer about an image, which is not stored."""
    return await service.predict(user, image, name)


@router.patch(
    "/pictures/{picture_id}", tags=["images"], responses=_problems(401, 404, 409, 415, 422), dependencies=_JSON
)
async def label_picture(user: User, service: Server, picture_id: NumberInPath, body: forms.Place) -> forms.Done:
    """Label an image, label it anew, or take its label away (null)."""
    change = Change(picture_id, body.class_id)
    return forms.Done(version=await service.on_disk(service.store.change, user.key, [change]))


@router.patch("/pictures", tags=["images"], responses=_problems(401, 404, 409, 415, 422), dependencies=_JSON)
async def change_pictures(user: User, service: Server, body: forms.Changes) -> forms.Done:
    """Label many images, accept answers, or take that back: all of it, or nothing if one of them is refused."""
    changes = [Change(**change.model_dump()) for change in body.changes]
    return forms.Done(version=await service.on_disk(service.store.change, user.key, changes))


@router.get("/labels", tags=["images"], **_file("application/octet-stream", 401, 409, 422))
async def download_labels(user: User, service: Server, form: Format = "json") -> Response:
    """Download the labels of all images: JSON, CSV, or JSON for Label Studio."""
    headers = {"content-disposition": f'attachment; filename="{FILES[form]}"'}
    return Response(await service.write_labels(user, form), media_type=MEDIA[form], headers=headers)


@router.post(
    "/labels",
    tags=["images"],
    responses=_problems(401, 409, 413, 415, 422),
    openapi_extra={"requestBody": {"required": True, "content": {kind: {"schema": {}} for kind in _LABEL_MEDIA}}},
)
async def upload_labels(user: User, service: Server, file: LabelFile) -> forms.Imported:
    """Label the images that you have as a file says: one of `GET /api/labels`, or an export of Label Studio."""
    return await service.import_labels(user, *file)


@router.delete("/pictures/{picture_id}", tags=["images"], responses=_problems(401, 404, 422))
async def delete_picture(user: User, service: Server, picture_id: NumberInPath) -> forms.Done:
    """Remove an image."""
    return forms.Done(version=await service.on_disk(service.store.delete_picture, user.key, picture_id))


@router.get("/pictures/{picture_id}/preview", tags=["images"], **_file("image/jpeg", 401, 404, 422))
async def preview(user: User, service: Server, picture_id: NumberInPath) -> Response:
    """A small JPEG of an image."""
    content = await service.on_disk(service.store.preview, user.key, picture_id)
    return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=86400"})


@router.delete("/session", tags=["users"], responses=_problems(401))
async def forget_me(user: User, service: Server, gate: Gate, response: Response) -> forms.Done:
    """Delete everything that is yours, and end the session."""
    await service.delete_session(user)
    response.delete_cookie(gate.session_cookie)
    return forms.Done(version=0)


@router.put("/encoder", tags=["images"], responses=_problems(401, 409, 415, 422), dependencies=_JSON)
async def choose_encoder(user: User, service: Server, body: forms.EncoderName) -> forms.Done:
    """Choose the encoder of the images.

    Images that are there are encoded anew in the background; answers come from the former encoder until all are done
    (`encoder_change` of `GET /api/session`). Labels stay. The present encoder ends a change that is under way.
    """
    return forms.Done(version=await service.set_encoder(user, body.name))


@router.post("/classes", status_code=201, tags=["classes"], responses=_problems(401, 409, 415, 422), dependencies=_JSON)
async def make_class(user: User, service: Server, body: forms.ClassName) -> forms.NewClass:
    """Make a class."""
    number = await service.on_disk(service.store.add_class, user.key, body.name)
    return forms.NewClass(id=number, name=body.name)


@router.patch("/classes/{class_id}", tags=["classes"], responses=_problems(401, 404, 409, 415, 422), dependencies=_JSON)
async def rename_class(user: User, service: Server, class_id: NumberInPath, body: forms.ClassName) -> forms.Done:
    """Rename a class."""
    return forms.Done(version=await service.on_disk(service.store.rename_class, user.key, class_id, body.name))


@router.delete("/classes/{class_id}", tags=["classes"], responses=_problems(401, 404, 422))
async def delete_class(user: User, service: Server, class_id: NumberInPath) -> forms.Done:
    """Delete a class and its examples."""
    return forms.Done(version=await service.on_disk(service.store.delete_class, user.key, class_id))


def session_id_of(headers: Headers, cookie: str) -> str:
    """The session id of a request: that of the bearer, or else that of the cookie."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else cookies(headers).get(cookie, "")


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    response.set_cookie(
        name, value, max_age=_YEAR, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )

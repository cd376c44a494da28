"""Routes of the API. Docstrings of routes are shown in its documentation, `/docs`."""

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from mirrorshot.serve import forms
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.guard import client_address
from mirrorshot.serve.images import name_of
from mirrorshot.serve.labels import FILES, MEDIA, Format
from mirrorshot.serve.records import Session
from mirrorshot.serve.requests import (
    JSON,
    LABEL_MEDIA,
    UPLOAD,
    FileName,
    Gate,
    Image,
    KeepCopies,
    LabelFile,
    NumberInPath,
    NumberInQuery,
    Server,
    User,
    file_answer,
    problems,
    set_cookie,
)
from mirrorshot.serve.service import Service
from mirrorshot.serve.tokens import cookies

router = APIRouter(prefix="/api")


@router.get("/health", tags=["server"], responses=problems(429))
async def health(request: Request, service: Server, gate: Gate) -> forms.Health:
    """Check that the server runs, whether you need its token, and whether it knows your session cookie."""
    known = gate.door.is_open(request.headers, client_address(request.scope))
    session_id = cookies(request.headers).get(gate.session_cookie, "")
    found = await service.find_session(session_id) if known and session_id else None
    return forms.Health(is_running=True, needs_token=not known, has_session=found is not None)


@router.post("/login", tags=["users"], responses=problems(403, 415, 422, 429), dependencies=JSON)
async def login(request: Request, response: Response, gate: Gate, body: forms.Login) -> forms.Done:
    """Send the token of the server and get a cookie that replaces it."""
    if not gate.door.knows(body.token, client_address(request.scope)):
        raise RequestError(403, "Expected the token of this server, but got another one. Look for typing errors.")
    set_cookie(request, response, gate.token_cookie, gate.door.proof)
    return forms.Done(version=0)


@router.post("/sessions", status_code=201, tags=["users"], responses=problems(403, 429, 503, 507))
async def begin(request: Request, response: Response, service: Server, gate: Gate) -> forms.NewSession:
    """Create a user: get a session id."""
    address = client_address(request.scope)
    if not gate.arrivals.allows(address):
        raise RequestError(
            429,
            f"Expected at most {service.settings.limits.sessions_per_minute} new sessions a minute, but got more. "
            "Wait a minute, or use the session that you have.",
            retry_after=gate.arrivals.seconds,
        )
    session_id = await service.create_session(address)
    set_cookie(request, response, gate.session_cookie, session_id)
    return forms.NewSession(session=session_id)


@router.get("/session", tags=["users"], response_model=forms.Overview, responses=problems(401))
async def overview(user: User, service: Server) -> Response:
    """Get your classes, images, encoder and limits."""
    return _as_json(await service.overview(user))


@router.get("/answers", tags=["answers"], response_model=forms.Answers, responses=problems(401, 409))
async def answers(user: User, service: Server) -> Response:
    """Get answers about your unlabelled images, the image to label next, and examples whose label may be wrong."""
    return _as_json(await service.answers(user))


def _as_json(answer: BaseModel) -> Response:
    """Return JSON without the second validation of FastAPI, which is slow for large answers."""
    return Response(answer.model_dump_json(), media_type="application/json")


@router.get("/calibration", tags=["answers"], responses=problems(401, 409))
async def calibration(user: User, service: Server) -> forms.Calibration:
    """Check the calibration of the probabilities, by predicting each example from the others."""
    return await service.calibration(user)


@router.get("/model", tags=["answers"], **file_answer("application/octet-stream", 401, 409))
async def model(user: User, service: Server) -> Response:
    """Download the classifier as a model file for `mirrorshot predict`."""
    headers = {"content-disposition": 'attachment; filename="model.mirrorshot"'}
    return Response(await service.model_file(user), media_type="application/octet-stream", headers=headers)


@router.post("/examples", status_code=201, tags=["images"], **UPLOAD)
async def add_example(
    user: User,
    service: Server,
    response: Response,
    class_id: NumberInQuery,
    image: Image,
    name: FileName = "image",
    copies: KeepCopies = False,
) -> forms.NewPicture:
    """Add an image to a class. It is on the disk when you get the answer.

    If the image is stored already, it gets the label (status 200); if it has another label, that is an error (409).
    """
    return await _add(user, service, response, class_id, image, name, copies)


@router.post("/pool", status_code=201, tags=["images"], **UPLOAD)
async def add_to_pool(
    user: User, service: Server, response: Response, image: Image, name: FileName = "image", copies: KeepCopies = False
) -> forms.NewPicture:
    """Add an unlabelled image. It gets an answer, and may be suggested as the image to label next.

    An image that is stored already is not stored again (status 200).
    """
    return await _add(user, service, response, None, image, name, copies)


async def _add(
    user: Session, service: Service, response: Response, class_id: int | None, image: bytes, name: str, copies: bool
) -> forms.NewPicture:
    stored, is_new, got = await service.add_picture(user, class_id, image, name, keep_copy=copies)
    response.status_code = 201 if is_new else 200
    return forms.NewPicture(
        id=stored.id,
        name=stored.name,
        class_id=stored.class_id,
        is_new=is_new,
        encoder=name_of(got.encoder),
        best=name_of(got.best),
    )


@router.post("/predict", tags=["answers"], **UPLOAD)
async def predict(user: User, service: Server, image: Image, name: FileName = "image") -> forms.Answer:
    """Classify an image without storing it."""
    return await service.predict(user, image, name)


@router.patch("/pictures/{picture_id}", tags=["images"], responses=problems(401, 404, 409, 415, 422), dependencies=JSON)
async def label_picture(user: User, service: Server, picture_id: NumberInPath, body: forms.Place) -> forms.Done:
    """Label an image, change its label, or remove its label (null)."""
    change = forms.Change(picture_id=picture_id, class_id=body.class_id)
    return forms.Done(version=await service.on_disk(service.store.change, user.key, [change]))


@router.patch("/pictures", tags=["images"], responses=problems(401, 404, 409, 415, 422), dependencies=JSON)
async def change_pictures(user: User, service: Server, body: forms.Changes) -> forms.Done:
    """Label many images, accept answers, or undo that. If one change is refused, none is made."""
    return forms.Done(version=await service.on_disk(service.store.change, user.key, body.changes))


@router.get("/labels", tags=["images"], **file_answer("application/octet-stream", 401, 409, 422))
async def download_labels(user: User, service: Server, form: Format = "json") -> Response:
    """Download the labels of all images: JSON, CSV, or JSON for Label Studio."""
    headers = {"content-disposition": f'attachment; filename="{FILES[form]}"'}
    return Response(await service.write_labels(user, form), media_type=MEDIA[form], headers=headers)


@router.post(
    "/labels",
    tags=["images"],
    responses=problems(401, 409, 413, 415, 422),
    openapi_extra={"requestBody": {"required": True, "content": {kind: {"schema": {}} for kind in LABEL_MEDIA}}},
)
async def upload_labels(user: User, service: Server, file: LabelFile) -> forms.Imported:
    """Label your images from a file: one of `GET /api/labels`, or an export of Label Studio."""
    return await service.import_labels(user, *file)


@router.delete("/pictures/{picture_id}", tags=["images"], responses=problems(401, 404, 422))
async def delete_picture(user: User, service: Server, picture_id: NumberInPath) -> forms.Done:
    """Remove an image."""
    return forms.Done(version=await service.on_disk(service.store.delete_picture, user.key, picture_id))


@router.get("/pictures/{picture_id}/preview", tags=["images"], **file_answer("image/jpeg", 401, 404, 422))
async def preview(user: User, service: Server, picture_id: NumberInPath) -> Response:
    """Get a small JPEG of an image."""
    content = await service.on_disk(service.reader.preview, user.key, picture_id)
    return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=86400"})


@router.delete("/session", tags=["users"], responses=problems(401))
async def forget_me(user: User, service: Server, gate: Gate, response: Response) -> forms.Done:
    """Delete all your data and end the session."""
    await service.delete_session(user)
    response.delete_cookie(gate.session_cookie)
    return forms.Done(version=0)


@router.get("/encoder", tags=["images"], responses=problems(401))
async def encoder(user: User, service: Server) -> forms.EncoderState:
    """Get the encoder of your images, those of this server, and the progress of a change."""
    return await service.encoder_state(user)


@router.put("/encoder", tags=["images"], responses=problems(401, 409, 415, 422), dependencies=JSON)
async def choose_encoder(user: User, service: Server, body: forms.EncoderName) -> forms.Done:
    """Choose the encoder of your images.

    Stored images are encoded again in the background; the former encoder is used until all are done (`encoder_change`
    of `GET /api/session`). Labels stay. Choosing the present encoder cancels a change in progress.
    """
    return forms.Done(version=await service.set_encoder(user, body.name))


@router.post("/classes", status_code=201, tags=["classes"], responses=problems(401, 409, 415, 422), dependencies=JSON)
async def make_class(user: User, service: Server, body: forms.ClassName) -> forms.NewClass:
    """Create a class."""
    number = await service.on_disk(service.store.add_class, user.key, body.name)
    return forms.NewClass(id=number, name=body.name)


@router.patch("/classes/{class_id}", tags=["classes"], responses=problems(401, 404, 409, 415, 422), dependencies=JSON)
async def rename_class(user: User, service: Server, class_id: NumberInPath, body: forms.ClassName) -> forms.Done:
    """Rename a class."""
    return forms.Done(version=await service.on_disk(service.store.rename_class, user.key, class_id, body.name))


@router.delete("/classes/{class_id}", tags=["classes"], responses=problems(401, 404, 422))
async def delete_class(user: User, service: Server, class_id: NumberInPath) -> forms.Done:
    """Delete a class and its examples."""
    return forms.Done(version=await service.on_disk(service.store.delete_class, user.key, class_id))

"""The work of the server for its users, independent of HTTP.

Work runs in threads, so that the event loop never waits; a request takes as few turns of them as it can, because on a
busy machine every turn waits for a core.
"""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from mirrorshot.files.checkpoint import CheckpointWriteError
from mirrorshot.serve import answers
from mirrorshot.serve.backup import Backups
from mirrorshot.serve.database import Database
from mirrorshot.serve.encoder_change import EncoderChanges
from mirrorshot.serve.errors import RequestError, disk_failed
from mirrorshot.serve.fitting import Cache, Fitted, fit
from mirrorshot.serve.forms import Answer, Answers, Calibration, Imported
from mirrorshot.serve.images import N_WORKERS, Encoders, Received, identity, make_preview, receive, start_workers
from mirrorshot.serve.labels import Format, match, read_labels, write_labels
from mirrorshot.serve.records import New, Session
from mirrorshot.serve.scheduler import Scheduler
from mirrorshot.serve.settings import Settings
from mirrorshot.serve.store import Store, session_key, unknown_session
from mirrorshot.tool import Model
from mirrorshot.types import DataError

_T = TypeVar("_T")
_DISK_THREADS = 4
_CLOSE_SECONDS = 1.0  # for work that runs when the server stops
_DOWNLOAD = "download-"  # how names of files that are being sent begin


class Service:
    """Users, their classifiers, and the threads that work for them. New users begin with the examples of `model`."""

    def __init__(self, settings: Settings, encoders: Encoders, model: Model | None = None) -> None:
        self.settings, self.encoders = settings, encoders
        self.database = Database(settings.data_folder, settings.limits.store_bytes)
        self.store = Store(self.database, settings.limits)
        self.backups = Backups(self.database)
        self.cache = Cache(settings.limits.cache_bytes)
        self.workers = start_workers(settings.limits.pixels)
        _remove_stale(settings.data_folder)
        self._begin_with = _examples_of(model, settings) if model is not None else (None, {}, ())
        n_cores = os.cpu_count() or 1
        self.closers: list[Callable[[], object]] = [self.workers.close]  # called when the server stops
        self._fit = Scheduler(n_cores, "fit")  # apart: nobody else waits for a long fit
        self._compute = Scheduler(n_cores + 2, "compute")
        self._images = Scheduler(N_WORKERS, "images")
        self._disk = Scheduler(_DISK_THREADS, "disk")
        self.changes = EncoderChanges(self.database, encoders, self._images.run)

    def close(self) -> None:
        """Drop waiting work, and close the database when running work has ended.

        Work that takes longer keeps its connection: the process ends, and a commit is on the disk anyway.
        """
        self.backups.stop()
        self.changes.stop()
        for close in self.closers:
            close()
        ends = time.monotonic() + _CLOSE_SECONDS
        pools = (self._fit, self._compute, self._images, self._disk)
        have_ended = [pool.close(ends - time.monotonic()) for pool in pools]
        if all(have_ended):
            self.database.close()

    async def on_disk(self, work: Callable[..., _T], key: str, *arguments: Any, **named: Any) -> _T:
        """Run short work for a user, by key, that reads or writes the database."""
        return await self._disk.run(key, lambda: work(key, *arguments, **named))

    async def computed(self, key: str, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run work for a user, by key, that computes."""
        return await self._compute.run(key, lambda: work(*arguments))

    async def create_session(self, address: str) -> str:
        """A new user; the session id."""
        return await self._disk.run(address, lambda: self.store.create_session(*self._begin_with))

    async def find_session(self, session_id: str) -> Session | None:
        """The user with that session id; None if there is none."""
        return await self.on_disk(self.store.find, session_key(session_id))

    async def delete_session(self, session: Session) -> None:
        """Forget a user."""
        await self.on_disk(self.store.delete_session, session.key)
        self.cache.forget(session.key)

    async def set_encoder(self, session: Session, name: str) -> int:
        """Choose an encoder by name; only those that the server was started with can be named."""
        known = self.encoders.identities
        if name != "auto" and name not in known:
            raise RequestError(
                422, f"Expected an encoder of this server ({', '.join(['auto', *known])}), but got {name[:80]!r}."
            )
        version = await self.on_disk(self.changes.request, session.key, known.get(name))
        self.changes.start(session.key)
        return version

    async def add_picture(
        self, session: Session, class_id: int | None, content: bytes, name: str, *, keep_copy: bool
    ) -> tuple[int, bool, Received]:
        """Store an image, unless it is there already; when this returns it is on the disk."""

        def work() -> tuple[int, bool, Received]:
            encoder = session.encoder
            while True:
                got = receive(self.workers, self.encoders, encoder, content, name)
                now = self.store.find(session.key)
                if now is None:
                    raise unknown_session()
                if now.encoder in (None, got.encoder):
                    break
                encoder = now.encoder  # it has changed in the meantime
            stored = self.store.add_picture(session.key, class_id, got.new, got.encoder, keep_copy=keep_copy)
            return *stored, got

        return await self._images.run(session.key, work)

    async def fitted(self, session: Session) -> Fitted:
        """The classifier of a user as of now."""
        found = self.cache.get(session.key, session.support)
        if found is not None:
            return found
        async with self.cache.turn(session.key):
            now = await self.on_disk(self.store.find, session.key)
            if now is None:
                raise unknown_session()
            found = self.cache.get(now.key, now.support)
            if found is None:
                rows = await self.on_disk(self.store.rows, now.key, labelled=True, with_previews=True)
                encoder = None if rows.encoder is None else self.encoders.get(rows.encoder)
                before, parameters = self.cache.earlier(now.key), now.parameters
                found = await self._fit.run(now.key, lambda: fit(rows, encoder, parameters, before))
                self.cache.put(now.key, found)
            return found

    async def predict(self, session: Session, content: bytes, name: str) -> Answer:
        """The answer about an image that is not stored."""
        fitted = await self.fitted(session)

        def work() -> Answer:
            new = receive(self.workers, self.encoders, fitted.encoder, content, name).new
            (prediction,) = answers.predict(fitted, [new.name], new.embedding[None])
            return answers.answer(prediction)

        return await self._images.run(session.key, work)

    async def answers(self, session: Session) -> Answers:
        """Answers about the unlabelled images and about the labels."""
        fitted = await self.fitted(session)
        pool = await self.on_disk(self.store.rows, session.key, labelled=False)
        if pool.encoder != fitted.encoder:  # it has changed in the meantime
            return await self.answers(session._replace(support=pool.support))
        decided = await self.on_disk(self.store.decided, session.key)
        return await self.computed(session.key, answers.all_answers, fitted, pool, decided)

    async def write_labels(self, session: Session, form: Format) -> bytes:
        """All images with their labels, and the answers if there are any, as a file."""
        contents = await self.on_disk(self.store.contents, session.key)
        digests = await self.on_disk(self.store.digests, session.key)
        labelled = {picture.class_id for picture in contents.pictures} - {None}
        found = (await self.answers(session)).answers if len(labelled) >= 2 else []
        told = {answer.picture_id: answer for answer in found}
        return await self.computed(session.key, write_labels, form, contents, digests, told)

    async def import_labels(self, session: Session, content: bytes, kind: str) -> Imported:
        """Label images as a file says."""
        labels = await self.computed(session.key, read_labels, content, kind)
        contents = await self.on_disk(self.store.contents, session.key)
        digests = await self.on_disk(self.store.digests, session.key)
        found = match(labels, contents.pictures, digests)
        version, counts = await self.on_disk(self.store.import_labels, session.key, found.labels)
        return Imported(
            version=version,
            n_examples=counts["example"],
            n_accepted=counts["accepted"],
            n_none=counts["none"],
            n_unmatched=len(found.unmatched),
            unmatched=[name[:120] for name in found.unmatched[:5]],
        )

    async def calibration(self, session: Session) -> Calibration:
        """How well calibrated the classifier is, by leaving one out."""
        return await self.computed(session.key, answers.calibration, await self.fitted(session))

    async def model_file(self, session: Session) -> bytes:
        """The classifier as a model file."""
        return await self.computed(session.key, self._saved, (await self.fitted(session)).model)

    def _saved(self, model: Model) -> bytes:
        path = self.settings.data_folder / f"{_DOWNLOAD}{secrets.token_hex(8)}"
        try:
            model.save(path)
            return path.read_bytes()
        except CheckpointWriteError as error:
            cause = error.__cause__
            raise disk_failed(cause if isinstance(cause, OSError) else OSError(str(error))) from error
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(folder: Path) -> None:
    """Remove downloads that a server was writing when it was killed."""
    for path in folder.glob(f"*{_DOWNLOAD}*"):
        if path.stat().st_mtime < time.time() - 3600.0:
            path.unlink(missing_ok=True)


def _examples_of(model: Model, settings: Settings) -> tuple[str, dict[str, Any], list[tuple[str, New]]]:
    """Encoder, parameters and examples of a model, for new users."""
    limits, parameters = settings.limits, model.head.get_params(deep=False)
    if not isinstance(parameters["kernel"], str):
        raise DataError("Expected a model with a kernel that has a name, but got one that was made by hand.")
    if len(model.classes) > limits.classes or len(model.names) > limits.examples:
        raise DataError(
            f"Expected a model of at most {limits.classes} classes and {limits.examples} examples, but got "
            f"{len(model.classes)} and {len(model.names)}. Raise --max-classes or --max-examples."
        )
    thumbnails = model.thumbnails if model.thumbnails is not None else [None] * len(model.names)
    previews = [
        make_preview(Image.new("L", (8, 8), 200) if small is None else Image.fromarray(small)) for small in thumbnails
    ]
    new = [New(*parts) for parts in zip(model.names, model.embeddings, previews, strict=True)]
    return identity(model.encoder), parameters, list(zip(model.labels, new, strict=True))

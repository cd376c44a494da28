"""Operations of the server for its users, independent of HTTP.

Work runs in threads, so that the event loop never blocks. A request uses as few of them as possible, because on a busy
machine each one waits for a core.
"""

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from mirrorshot.files.imaging.workers import DecodeWorkers, WorkerLimits
from mirrorshot.serve import answers, forms
from mirrorshot.serve.backup import Backups
from mirrorshot.serve.database import Database
from mirrorshot.serve.encoder_change import EncoderChanges
from mirrorshot.serve.errors import RequestError, unknown_session
from mirrorshot.serve.fitting import Cache, Fitted, fit
from mirrorshot.serve.images import N_WORKERS, PREVIEW, Encoders, Received, examples_of, name_of, receive
from mirrorshot.serve.labels import Format, match, read_labels, write_labels
from mirrorshot.serve.reader import Reader
from mirrorshot.serve.records import EncoderChange, Picture, Session
from mirrorshot.serve.scheduler import Scheduler
from mirrorshot.serve.settings import Settings
from mirrorshot.serve.store import Store, session_key
from mirrorshot.tool import Model
from mirrorshot.tool.model_file import model_bytes

_T = TypeVar("_T")
_DISK_THREADS = 4
_CLOSE_SECONDS = 1.0  # for work that runs when the server stops


class Service:
    """Users, their classifiers, and threads. New users start with the examples of `model`."""

    def __init__(self, settings: Settings, encoders: Encoders, model: Model | None = None) -> None:
        self.settings, self.encoders = settings, encoders
        self.database = Database(settings.data_folder, settings.limits.store_bytes)
        self.store, self.reader = Store(self.database, settings.limits), Reader(self.database)
        self.backups = Backups(self.database)
        self.cache = Cache(settings.limits.cache_bytes)
        self.workers = DecodeWorkers(N_WORKERS, side=PREVIEW, limits=WorkerLimits(settings.limits.pixels))
        self._begin_with = examples_of(model, settings.limits) if model is not None else (None, {}, ())
        n_cores = os.cpu_count() or 1
        self.closers: list[Callable[[], object]] = [self.workers.close]  # called when the server stops
        self._fit = Scheduler(n_cores, "fit")  # separate, so that other work does not wait for long fits
        self._compute = Scheduler(n_cores + 2, "compute")
        self._images = Scheduler(N_WORKERS, "images")
        self._disk = Scheduler(_DISK_THREADS, "disk")
        self.changes = EncoderChanges(self.database, encoders, self._images.run)

    def close(self) -> None:
        """Drop waiting work, and close the database if running work ends in time.

        Otherwise connections stay open until the process ends; commits are on the disk already.
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
        """Run a short access of the database for the user of `key`."""
        return await self._disk.run(key, lambda: work(key, *arguments, **named))

    async def computed(self, key: str, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run a computation for the user of `key`."""
        return await self._compute.run(key, lambda: work(*arguments))

    async def create_session(self, address: str) -> str:
        """Create a user; return the session id."""
        return await self._disk.run(address, lambda: self.store.create_session(*self._begin_with))

    async def find_session(self, session_id: str) -> Session | None:
        """Return the user of a session id; None if there is none."""
        return await self.on_disk(self.reader.find, session_key(session_id))

    async def delete_session(self, session: Session) -> None:
        """Delete a user and the cached model."""
        await self.on_disk(self.store.delete_session, session.key)
        self.cache.forget(session.key)

    async def overview(self, session: Session) -> forms.Overview:
        """Return all data of a user except embeddings and previews."""
        change = await self.on_disk(self.changes.status, session.key)  # before the contents: it may end in between
        found = await self.on_disk(self.reader.contents, session.key)
        state = self._encoder_state(found.session, change)
        n_examples = Counter(picture.class_id for picture in found.pictures)
        limits = self.settings.limits
        return forms.Overview(
            user=session.key[:12],
            version=found.session.version,
            support=found.session.support,
            is_ready=sum(n_examples[number] > 0 for number in found.classes) >= 2,
            encoder=state.encoder,
            encoders=state.encoders,
            encoder_change=state.change,
            classes=[forms.ClassInfo(id=n, name=name, n_examples=n_examples[n]) for n, name in found.classes.items()],
            pictures=found.pictures,
            limits=forms.Bounds(**{name: getattr(limits, name) for name in forms.Bounds.model_fields}),
        )

    async def encoder_state(self, session: Session) -> forms.EncoderState:
        """Return the encoder of a user, those of this server, and the progress of a change."""
        change = await self.on_disk(self.changes.status, session.key)
        return self._encoder_state(await self.find(session), change)

    def _encoder_state(self, session: Session, change: EncoderChange | None) -> forms.EncoderState:
        return forms.EncoderState(
            encoder=None if session.encoder is None else name_of(session.encoder),
            encoders=list(self.encoders.identities),
            change=change and dataclasses.replace(change, encoder=name_of(change.encoder)),
        )

    async def find(self, session: Session) -> Session:
        """Return the current state of the session, or raise a `RequestError` if it was deleted."""
        now = await self.on_disk(self.reader.find, session.key)
        if now is None:
            raise unknown_session()
        return now

    async def set_encoder(self, session: Session, name: str) -> int:
        """Choose an encoder of this server by name; return the version."""
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
    ) -> tuple[Picture, bool, Received]:
        """Store an image on the disk, unless it is stored already; return it and whether it is new."""

        def work() -> tuple[Picture, bool, Received]:
            encoder = session.encoder
            while True:
                got = receive(self.workers, self.encoders, encoder, content, name)
                now = self.reader.find(session.key)
                if now is None:
                    raise unknown_session()
                if now.encoder in (None, got.encoder):
                    break
                encoder = now.encoder  # changed in the meantime
            stored = self.store.add_picture(session.key, class_id, got.new, got.encoder, keep_copy=keep_copy)
            return *stored, got

        return await self._images.run(session.key, work)

    async def fitted(self, session: Session) -> Fitted:
        """Return the current classifier of a user."""
        found = self.cache.get(session.key, session.support)
        if found is not None:
            return found
        async with self.cache.turn(session.key):
            now = await self.find(session)
            found = self.cache.get(now.key, now.support)
            if found is None:
                rows = await self.on_disk(self.reader.rows, now.key, labelled=True, with_previews=True)
                encoder = None if rows.encoder is None else self.encoders.get(rows.encoder)
                before, parameters = self.cache.earlier(now.key), now.parameters
                found = await self._fit.run(now.key, lambda: fit(rows, encoder, parameters, before))
                self.cache.put(now.key, found)
            return found

    async def predict(self, session: Session, content: bytes, name: str) -> forms.Answer:
        """Classify an image without storing it."""
        fitted = await self.fitted(session)

        def work() -> forms.Answer:
            new = receive(self.workers, self.encoders, fitted.encoder, content, name).new
            (prediction,) = answers.predict(fitted, [new.name], new.embedding[None])
            return answers.answer(prediction)

        return await self._images.run(session.key, work)

    async def answers(self, session: Session) -> forms.Answers:
        """Return answers about the unlabelled images and suspicious labels."""
        fitted = await self.fitted(session)
        pool = await self.on_disk(self.reader.rows, session.key, labelled=False)
        if pool.encoder != fitted.encoder:  # changed in the meantime
            return await self.answers(session._replace(support=pool.support))
        decided = await self.on_disk(self.reader.decided, session.key)
        found = await self.computed(session.key, answers.all_answers, fitted, pool, decided)
        self.cache.shrink()
        return found

    async def write_labels(self, session: Session, form: Format) -> bytes:
        """Return a file of all images with their labels and, if there are any, answers."""
        contents = await self.on_disk(self.reader.contents, session.key)
        digests = await self.on_disk(self.reader.digests, session.key)
        labelled = {picture.class_id for picture in contents.pictures} - {None}
        found = (await self.answers(session)).answers if len(labelled) >= 2 else []
        told = {answer.picture_id: answer for answer in found}
        return await self.computed(session.key, write_labels, form, contents, digests, told)

    async def import_labels(self, session: Session, content: bytes, kind: str) -> forms.Imported:
        """Label images from a file of labels."""
        labels = await self.computed(session.key, read_labels, content, kind)
        contents = await self.on_disk(self.reader.contents, session.key)
        digests = await self.on_disk(self.reader.digests, session.key)
        found, unmatched = match(labels, contents.pictures, digests)
        version, counts = await self.on_disk(self.store.import_labels, session.key, found)
        return forms.Imported(
            version=version,
            n_examples=counts["example"],
            n_accepted=counts["accepted"],
            n_none=counts["none"],
            n_unmatched=len(unmatched),
            unmatched=[name[:120] for name in unmatched[:5]],
        )

    async def calibration(self, session: Session) -> forms.Calibration:
        """Return the leave-one-out calibration of the classifier."""
        return await self.computed(session.key, answers.calibration, await self.fitted(session))

    async def model_file(self, session: Session) -> bytes:
        """Return the content of a model file of the classifier."""
        fitted = await self.fitted(session)
        return await self.computed(session.key, model_bytes, fitted.model)

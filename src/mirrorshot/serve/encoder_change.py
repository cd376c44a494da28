"""Changes of a user's encoder: the server encodes stored images again in the background, then swaps the embeddings.

The swap is one transaction; until then the former encoder stays in use. Finished embeddings are stored, so a restarted
server resumes the change. The former embeddings are kept, so that changing back is immediate.
"""

import asyncio
import io
import logging
import sqlite3
from collections.abc import Awaitable, Callable

from PIL import Image

from mirrorshot.serve.database import Database
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.images import Encoders
from mirrorshot.serve.records import EncoderChange
from mirrorshot.serve.statements import as_bytes, touch
from mirrorshot.types import MirrorshotError

OWNER = "encoder changes"  # owner of all changes in the scheduler, so that they delay other users little
_FAILED = "Expected the images to be encoded, but that failed. The log of the server says why."
Run = Callable[[str, Callable[[], bool]], Awaitable[bool]]


class EncoderChanges:
    """Requested changes and their background tasks; `run` runs a function in a thread."""

    def __init__(self, database: Database, encoders: Encoders, run: Run) -> None:
        self._database, self._encoders, self._run = database, encoders, run
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: set[str] = set()  # users with requests that no task has seen yet

    def request(self, key: str, encoder: str | None) -> int:
        """Request an encoder for a user; None: the first image decides. Return the version.

        A request of the present encoder cancels a change in progress. Without images the encoder changes immediately.
        """
        with self._database.write() as db:
            db.execute("DELETE FROM encoder_change WHERE session = ?", (key,))
            if db.execute("SELECT 1 FROM picture WHERE session = ?", (key,)).fetchone() is None:
                db.execute("UPDATE session SET encoder = ? WHERE key = ?", (encoder, key))
            elif encoder is None:
                raise RequestError(
                    409, "Expected an encoder by name, because there are images already, but got 'auto'. Name one."
                )
            elif encoder != _present(db, key):
                db.execute("INSERT INTO encoder_change (session, encoder) VALUES (?, ?)", (key, encoder))
            return touch(db, key, is_support=False)

    def status(self, key: str) -> EncoderChange | None:
        """Return the change that is in progress or failed; None if there is none."""
        with self._database.snapshot() as db:
            row = db.execute("SELECT encoder, problem FROM encoder_change WHERE session = ?", (key,)).fetchone()
            if row is None:
                return None
            query = "SELECT count(*), count(encoded.picture) " + _PICTURES
            n, n_done = db.execute(query, (row["encoder"], key)).fetchone()
            return EncoderChange(row["encoder"], n_done, n, row["problem"])

    def resume(self) -> None:
        """Resume all changes that were in progress when the server stopped."""
        for row in self._database.read("SELECT session FROM encoder_change WHERE problem IS NULL"):
            self.start(row["session"])

    def start(self, key: str) -> None:
        """Start the background task for the requested change of a user, if there is one."""
        self._wanted.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key))

    def stop(self) -> None:
        """Cancel the background tasks; a restarted server resumes them."""
        for task in self._tasks.values():
            task.cancel()

    async def _work(self, key: str) -> None:
        try:
            while key in self._wanted:
                self._wanted.discard(key)
                while await self._run(OWNER, lambda: self._step(key)):
                    pass
        except Exception as error:  # nothing awaits this task; the user gets a message, the log the details
            logging.getLogger("mirrorshot.serve").error("an encoder could not be changed", exc_info=error)
            self._fail(key, str(error) if isinstance(error, MirrorshotError) else _FAILED)
        finally:
            del self._tasks[key]

    def _step(self, key: str) -> bool:
        """Encode one image, or swap the embeddings after the last one; return whether there is more to do."""
        found = self._next(key)
        if found is None:
            return self._finish(key)
        encoder, number, content = found
        embedding = as_bytes(self._encoders.encode(encoder, Image.open(io.BytesIO(content))))
        with self._database.write() as db:
            self._database.check_room()
            if db.execute("SELECT 1 FROM picture WHERE id = ?", (number,)).fetchone():
                db.execute("INSERT OR REPLACE INTO encoded VALUES (?, ?, ?)", (number, encoder, embedding))
        return True

    def _next(self, key: str) -> tuple[str, int, bytes] | None:
        """Return encoder, id and copy (or else preview) of the next image to encode."""
        query = (
            "SELECT encoder_change.encoder, picture.id, ifnull(copy.image, picture.preview) FROM encoder_change "
            "JOIN picture USING (session) LEFT JOIN copy ON copy.picture = picture.id LEFT JOIN encoded ON "
            "encoded.picture = picture.id AND encoded.encoder = encoder_change.encoder "
            "WHERE session = ? AND problem IS NULL AND encoded.picture IS NULL LIMIT 1"
        )
        rows = self._database.read(query, (key,))
        return (str(rows[0][0]), int(rows[0][1]), bytes(rows[0][2])) if rows else None

    def _finish(self, key: str) -> bool:
        """Swap the embeddings, unless an image was added in the meantime; return whether there is more to do."""
        with self._database.write() as db:
            row = db.execute(
                "SELECT encoder FROM encoder_change WHERE session = ? AND problem IS NULL", (key,)
            ).fetchone()
            if row is None:
                return False
            missing = f"SELECT 1 {_PICTURES} AND encoded.picture IS NULL"
            if db.execute(missing, (row["encoder"], key)).fetchone():
                return True
            _exchange(db, key, row["encoder"])
            db.execute("DELETE FROM encoder_change WHERE session = ?", (key,))
            touch(db, key)
            return False

    def _fail(self, key: str, problem: str) -> None:
        try:
            with self._database.write() as db:
                db.execute("UPDATE encoder_change SET problem = ? WHERE session = ?", (problem, key))
        except (MirrorshotError, sqlite3.Error) as error:
            logging.getLogger("mirrorshot.serve").error("the failure could not be noted", exc_info=error)


_PICTURES = (
    "FROM picture LEFT JOIN encoded ON encoded.picture = picture.id AND encoded.encoder = ? WHERE picture.session = ?"
)


def _present(db: sqlite3.Connection, key: str) -> str | None:
    row = db.execute("SELECT encoder FROM session WHERE key = ?", (key,)).fetchone()
    return None if row is None else row["encoder"]


def _exchange(db: sqlite3.Connection, key: str, encoder: str) -> None:
    """Store the present embeddings, and replace them by those of another encoder."""
    own = "SELECT id FROM picture WHERE session = ?"
    db.execute(
        "INSERT OR REPLACE INTO encoded SELECT id, ?, embedding FROM picture WHERE session = ?",
        (_present(db, key), key),
    )
    db.execute(
        "UPDATE picture SET embedding = (SELECT embedding FROM encoded WHERE encoded.picture = picture.id AND "
        "encoded.encoder = ?) WHERE session = ?",
        (encoder, key),
    )
    db.execute(f"DELETE FROM encoded WHERE encoder = ? AND picture IN ({own})", (encoder, key))
    db.execute("UPDATE session SET encoder = ? WHERE key = ?", (encoder, key))

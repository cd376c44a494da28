"""The SQLite database: tables, connections, and durable transactions."""

import contextlib
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from mirrorshot.serve.errors import RequestError
from mirrorshot.types import DataError

DATABASE_NAME = "serve.sqlite3"
_APPLICATION = 0x6D697272  # "mirr", in the header of the file
_VERSION = 1
_BUSY_SECONDS = 30.0
_TABLES = (  # tables missing in a database of an earlier version are created when it is opened
    "TABLE about (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL)",
    "TABLE secret (id INTEGER PRIMARY KEY CHECK (id = 1), value TEXT NOT NULL)",
    "TABLE session (key TEXT PRIMARY KEY, created REAL NOT NULL, version INTEGER NOT NULL DEFAULT 0, "
    "support INTEGER NOT NULL DEFAULT 0, encoder TEXT, parameters TEXT NOT NULL) WITHOUT ROWID",
    "TABLE class (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES session (key) "
    "ON DELETE CASCADE, name TEXT NOT NULL, UNIQUE (session, name))",
    "TABLE picture (id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES session (key) "
    "ON DELETE CASCADE, class INTEGER REFERENCES class (id) ON DELETE CASCADE, name TEXT NOT NULL, "
    "embedding BLOB NOT NULL, preview BLOB NOT NULL)",
    # accepted answers, which are no examples; a null class means none of the classes
    "TABLE accepted (picture INTEGER PRIMARY KEY REFERENCES picture (id) ON DELETE CASCADE, "
    "class INTEGER REFERENCES class (id) ON DELETE CASCADE)",
    # small copies of images, for other encoders
    "TABLE copy (picture INTEGER PRIMARY KEY REFERENCES picture (id) ON DELETE CASCADE, image BLOB NOT NULL)",
    # embeddings by other encoders than the present one
    "TABLE encoded (picture INTEGER NOT NULL REFERENCES picture (id) ON DELETE CASCADE, encoder TEXT NOT NULL, "
    "embedding BLOB NOT NULL, PRIMARY KEY (picture, encoder)) WITHOUT ROWID",
    # requested changes of the encoder
    "TABLE encoder_change (session TEXT PRIMARY KEY REFERENCES session (key) ON DELETE CASCADE, encoder TEXT NOT NULL, "
    "problem TEXT)",
    "INDEX picture_of_session ON picture (session, id)",
    "INDEX picture_of_class ON picture (class)",
    "INDEX session_by_age ON session (version, created)",
)


class Database:
    """One SQLite file, with a connection for each thread.

    Design note: with a write-ahead log, readers never wait for a writer. With `synchronous=FULL`, a commit is on the
    disk before the client gets its answer. A separate lock orders the writers, because waiting for SQLite's lock is a
    loop of sleeps. Rejected: one connection for all threads, because readers would wait for every sync.

    Raises:
        DataError: the file is damaged or not writable, or belongs to another program or a newer mirrorshot.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / DATABASE_NAME
        self._max_bytes = max_bytes
        self._local, self._turn = threading.local(), threading.Lock()
        self._opened: list[sqlite3.Connection] = []
        self._files: list[tuple[int, int]] | None = None
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._prepare()
            damage = first_damage(self._connection())
            if damage is not None:
                raise sqlite3.DatabaseError(damage)
            self.name = str(self.read("SELECT name FROM about")[0]["name"])
            self.secret = str(self.read("SELECT value FROM secret")[0]["value"])
            self._files = self._identities()
        except (OSError, sqlite3.OperationalError) as error:
            self.close()
            raise DataError(
                f"Expected {self.path} to be a database that can be written, but got: {error}. Use another folder."
            ) from error
        except (sqlite3.DatabaseError, IndexError) as error:
            self.close()
            raise _damaged(self.path, error) from error

    @property
    def log_path(self) -> Path:
        """The write-ahead log, which contains the latest commits."""
        return self.path.with_name(f"{self.path.name}-wal")

    def _identities(self) -> list[tuple[int, int]]:
        return [(found.st_dev, found.st_ino) for found in (self.path.stat(), self.log_path.stat())]

    def _check_there(self) -> None:
        """Raise an error if the files were removed or replaced, because then commits are lost."""
        try:
            is_there = self._files is None or self._identities() == self._files
        except OSError:
            is_there = False
        if not is_there:
            logging.getLogger("mirrorshot.serve").error("%s was removed or replaced; restart the server", self.path)
            raise RequestError(
                503,
                "Expected the data of the server to be where they were, but they were removed. The change is not kept. "
                "Ask the operator of the server.",
            )

    def _prepare(self) -> None:
        connection = self._connection()
        connection.execute("PRAGMA journal_mode=WAL")
        with self.write() as db:
            application, version = (db.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version"))
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                db.execute(f"PRAGMA application_id={_APPLICATION}")
                db.execute(f"PRAGMA user_version={_VERSION}")
            elif application != _APPLICATION or version > _VERSION:
                raise DataError(
                    f"Expected {self.path} to be a database of `mirrorshot serve` of version {_VERSION} or older, but "
                    f"got version {version} of application {application}. Use another folder, or update mirrorshot."
                )
            for statement in _TABLES:
                kind, what = statement.split(maxsplit=1)
                db.execute(f"CREATE {kind} IF NOT EXISTS {what}")
            db.execute("INSERT OR IGNORE INTO about VALUES (1, ?)", (secrets.token_hex(4),))
            db.execute("INSERT OR IGNORE INTO secret VALUES (1, ?)", (secrets.token_hex(32),))

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            self._check_there()  # otherwise a new connection would create an empty file
            found = self._local.connection = self.connect()
            self._opened.append(found)
        return found

    def connect(self) -> sqlite3.Connection:
        """Open a new connection, which the caller closes."""
        made = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        made.row_factory = sqlite3.Row
        made.execute("PRAGMA synchronous=FULL")
        made.execute("PRAGMA foreign_keys=ON")
        return made

    def read(self, query: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        return self._connection().execute(query, values).fetchall()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Let all queries of the block see the same state."""
        db = self._connection()
        db.execute("BEGIN")
        try:
            yield db
        finally:
            db.execute("COMMIT")

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run the block as a transaction: on the disk when the block ends, rolled back after an error."""
        db = self._connection()
        with self._turn:
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
                self._check_there()
            except BaseException as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    message = f"Expected room on the disk, but got: {error}. Ask the operator of the server."
                    raise RequestError(507, message) from error
                raise

    def check_room(self) -> None:
        """Raise an error if the data are larger than `max_bytes`."""
        sizes = [int(self.read(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count", "page_size")]
        used = (sizes[0] - sizes[1]) * sizes[2]
        if used > self._max_bytes:
            raise RequestError(
                507,
                f"Expected the data of all users to take at most {self._max_bytes} bytes, but got {used}. "
                "Remove images, or ask the operator of the server.",
            )

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()
        self._local = threading.local()


def backup_path(path: Path) -> Path:
    """Return the path of the backup of a database."""
    return path.with_name(f"{path.name}-backup")


def first_damage(connection: sqlite3.Connection) -> str | None:
    """Return the first defect of a database; None if it is intact."""
    found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    return None if found == "ok" else found.replace("\n", " ")


def _damaged(path: Path, error: Exception) -> DataError:
    copy = backup_path(path)
    advice = f"Move it away with the files {path.name}-wal and {path.name}-shm beside it, "
    if copy.exists():
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(copy.stat().st_mtime))
        advice += f"then rename the copy of {made}, {copy}, to {path.name}, and start again."
    else:
        advice += "then start again: there is no copy of it. `sqlite3 FILE .recover` may save a part."
    return DataError(f"Expected {path} to be an intact database, but got: {error}. {advice}")

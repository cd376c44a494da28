"""The database file: its tables, connections, and transactions that survive the loss of power."""

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from mirrorshot.serve.errors import RequestError
from mirrorshot.types import DataError

DATABASE_NAME = "serve.sqlite3"
_APPLICATION = 0x6D697272  # "mirr", written into the header of the file
_VERSION = 1
_BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE about (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL);
CREATE TABLE session (
    key TEXT PRIMARY KEY, created REAL NOT NULL, version INTEGER NOT NULL DEFAULT 0,
    support INTEGER NOT NULL DEFAULT 0, encoder TEXT, parameters TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE class (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES session (key) ON DELETE CASCADE,
    name TEXT NOT NULL, UNIQUE (session, name)
);
CREATE TABLE picture (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL REFERENCES session (key) ON DELETE CASCADE,
    class INTEGER REFERENCES class (id) ON DELETE CASCADE, name TEXT NOT NULL,
    embedding BLOB NOT NULL, preview BLOB NOT NULL
);
CREATE INDEX picture_of_session ON picture (session, id);
CREATE INDEX picture_of_class ON picture (class);
CREATE INDEX session_by_age ON session (version, created);
"""


class Database:
    """One SQLite file, with a connection for each thread.

    Design note: write-ahead log, so that readers never wait for a writer; `synchronous=FULL`, so that a commit is on
    the disk before its client is told. Writers take turns by a lock of their own: waiting for SQLite's would be a loop
    of sleeps. Rejected: one connection for all threads, whose readers would wait for every sync.

    Args:
        folder: made if it is missing, for this user only.
        max_bytes: size from which on the file does not grow.

    Raises:
        DataError: the file is of another program, or of a newer mirrorshot.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / DATABASE_NAME
        self._max_bytes = max_bytes
        self._local, self._turn = threading.local(), threading.Lock()
        self._opened: list[sqlite3.Connection] = []
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise DataError(
                f"Expected {self.path} to be a database that can be written, but got: {error}. Use another folder."
            ) from error
        self.name = str(self.read("SELECT name FROM about")[0]["name"])

    def _prepare(self) -> None:
        connection = self._connection()
        connection.execute("PRAGMA journal_mode=WAL")
        with self.write() as db:
            application, version = (db.execute(f"PRAGMA {n}").fetchone()[0] for n in ("application_id", "user_version"))
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                for statement in _TABLES.split(";\n"):
                    db.execute(statement)
                db.execute("INSERT INTO about VALUES (1, ?)", (secrets.token_hex(4),))
                db.execute(f"PRAGMA application_id={_APPLICATION}")
                db.execute(f"PRAGMA user_version={_VERSION}")
            elif application != _APPLICATION or version > _VERSION:
                raise DataError(
                    f"Expected {self.path} to be a database of `mirrorshot serve` of version {_VERSION} or older, but "
                    f"got version {version} of application {application}. Use another folder, or update mirrorshot."
                )

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA synchronous=FULL")
            found.execute("PRAGMA foreign_keys=ON")
            self._local.connection = found
            self._opened.append(found)
        return found

    def read(self, query: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """Rows of a query."""
        return self._connection().execute(query, values).fetchall()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several queries that see the same state."""
        db = self._connection()
        db.execute("BEGIN")
        try:
            yield db
        finally:
            db.execute("COMMIT")

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: on the disk when the block ends, undone if an error leaves it.

        Raises:
            RequestError: the disk is full.
        """
        db = self._connection()
        with self._turn:
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    message = f"Expected room on the disk, but got: {error}. Ask whoever runs the server."
                    raise RequestError(507, message) from error
                raise

    def check_room(self) -> None:
        """Refuse to let the file grow beyond its bound."""
        sizes = [int(self.read(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count", "page_size")]
        used = (sizes[0] - sizes[1]) * sizes[2]
        if used > self._max_bytes:
            raise RequestError(
                507,
                f"Expected the data of all users to take at most {self._max_bytes} bytes, but got {used}. "
                "Remove pictures, or ask whoever runs the server.",
            )

    def close(self) -> None:
        """Close all connections."""
        for connection in self._opened:
            connection.close()
        self._opened.clear()
        self._local = threading.local()

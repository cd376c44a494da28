"""SQL statements on classes and images of one user, for use in a transaction."""

import sqlite3
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.serve.errors import RequestError, not_found, too_many, unknown_session
from mirrorshot.serve.forms import Change
from mirrorshot.serve.records import New
from mirrorshot.serve.settings import Limits


def touch(db: sqlite3.Connection, key: str, *, is_support: bool = True) -> int:
    """Count a change, with `is_support` one that affects the classifier; return the version."""
    query = "UPDATE session SET version = version + 1, support = support + ? WHERE key = ? RETURNING version"
    row = db.execute(query, (int(is_support), key)).fetchone()
    if row is None:
        raise unknown_session()
    return int(row["version"])


def class_name(db: sqlite3.Connection, key: str, class_id: int) -> str:
    """Return the name of a class of the user."""
    row = db.execute("SELECT name FROM class WHERE id = ? AND session = ?", (class_id, key)).fetchone()
    if row is None:
        raise not_found("classes", class_id)
    return str(row["name"])


def check_new_name(db: sqlite3.Connection, key: str, name: str) -> None:
    """Refuse the name of an existing class."""
    if db.execute("SELECT 1 FROM class WHERE session = ? AND name = ?", (key, name)).fetchone():
        raise RequestError(409, f"Expected a name that no class has yet, but got {name!r}. Choose another.")


def insert_class(db: sqlite3.Connection, key: str, name: str) -> int:
    """Insert a class; return its id."""
    return int(db.execute("INSERT INTO class (session, name) VALUES (?, ?)", (key, name)).lastrowid or 0)


def insert_picture(db: sqlite3.Connection, key: str, class_id: int | None, new: New) -> int:
    """Insert an image; return its id."""
    values = (key, class_id, new.name, as_bytes(new.embedding), new.preview)
    query = "INSERT INTO picture (session, class, name, embedding, preview) VALUES (?, ?, ?, ?, ?)"
    number = int(db.execute(query, values).lastrowid or 0)
    if new.copy:
        db.execute("INSERT INTO copy VALUES (?, ?)", (number, new.copy))
    return number


def find_copy(db: sqlite3.Connection, key: str, new: New) -> sqlite3.Row | None:
    """Return the first stored image with the same content."""
    query = (
        "SELECT id, name, class FROM picture LEFT JOIN copy ON copy.picture = picture.id WHERE session = ? AND "
        "preview = ? AND ifnull(copy.image = ?, embedding = ?) ORDER BY id"
    )
    found: sqlite3.Row | None = db.execute(query, (key, new.preview, new.copy, as_bytes(new.embedding))).fetchone()
    return found


def check_contradiction(db: sqlite3.Connection, there: sqlite3.Row, class_id: int | None) -> None:
    """Refuse another class for an image that is stored as an example."""
    if class_id is None or there["class"] in (None, class_id):
        return
    name = db.execute("SELECT name FROM class WHERE id = ?", (there["class"],)).fetchone()["name"]
    raise RequestError(
        409,
        f"Expected one class for an image, but the same image is {there['name']!r} of class {name!r}. Move that one, "
        "or send it with copies=true.",
    )


def check_place(db: sqlite3.Connection, limits: Limits, key: str, class_id: int | None, is_new: bool = True) -> None:
    """Refuse a class of another user, and, with `is_new`, more images than the limit."""
    if class_id is not None:
        class_name(db, key, class_id)
    if not is_new:
        return
    what = "class IS NULL" if class_id is None else "class IS NOT NULL"
    limit = limits.pool if class_id is None else limits.examples
    if db.execute(f"SELECT count(*) FROM picture WHERE session = ? AND {what}", (key,)).fetchone()[0] >= limit:
        raise too_many("unlabelled images" if class_id is None else "examples", limit)


def change_picture(db: sqlite3.Connection, limits: Limits, key: str, change: Change) -> bool:
    """Make one change; return whether it changed the examples."""
    number, class_id = change.picture_id, change.class_id
    row = db.execute("SELECT class FROM picture WHERE id = ? AND session = ?", (number, key)).fetchone()
    if row is None:
        raise not_found("images", number)
    check_place(db, limits, key, class_id, is_new=(class_id is None) != (row["class"] is None))
    if change.accepted_id is not None:
        class_name(db, key, change.accepted_id)
    db.execute("UPDATE picture SET class = ? WHERE id = ? AND session = ?", (class_id, number, key))
    db.execute("DELETE FROM accepted WHERE picture = ?", (number,))
    if change.accepted_id is not None or change.is_none:
        db.execute("INSERT INTO accepted VALUES (?, ?)", (number, change.accepted_id))
    return bool(class_id != row["class"])


def as_bytes(embedding: NDArray[Any]) -> bytes:
    """Convert an embedding to bytes, of which the first is its type."""
    kind = b"d" if embedding.dtype == np.float64 else b"f"
    return kind + embedding.astype(f"<{kind.decode()}").tobytes()


def as_array(blob: bytes) -> NDArray[Any]:
    """Convert the result of `as_bytes` back to an embedding."""
    return np.frombuffer(blob, dtype=f"<{blob[:1].decode()}", offset=1)

"""Classes and images of each user, labelled or not. Every query names the user it is for."""

import hashlib
import json
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.serve.database import Database
from mirrorshot.serve.errors import RequestError, not_found, too_many
from mirrorshot.serve.labels import Label
from mirrorshot.serve.records import Change, Contents, New, Picture, Rows, Session
from mirrorshot.serve.settings import Limits

_UNTOUCHED_SECONDS = 3600.0  # after which a session that its user never changed is forgotten


class Store:
    """Users, their classes and images. Changes return the version after them, or the id of a new class or image."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits

    def create_session(
        self,
        encoder: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        examples: Sequence[tuple[str, New]] = (),
    ) -> str:
        """Make a user, perhaps with labelled examples; return the session id, a secret of 256 random bits."""
        session_id = secrets.token_urlsafe(32)
        key = session_key(session_id)
        with self.database.write() as db:
            self.database.check_room()
            now = time.time()
            db.execute("DELETE FROM session WHERE version = 0 AND created < ?", (now - _UNTOUCHED_SECONDS,))
            if db.execute("SELECT count(*) FROM session").fetchone()[0] >= self.limits.sessions:
                raise RequestError(
                    503,
                    f"Expected at most {self.limits.sessions} users, but that is how many there are. "
                    "Ask the operator of the server.",
                )
            db.execute(
                "INSERT INTO session (key, created, encoder, parameters) VALUES (?, ?, ?, ?)",
                (key, now, encoder, json.dumps(dict(parameters or {}))),
            )
            labels = dict.fromkeys(label for label, _ in examples)
            ids = {label: _insert_class(db, key, label) for label in labels}
            for label, new in examples:
                _insert_picture(db, key, ids[label], new)
        return session_id

    def find(self, key: str) -> Session | None:
        """The user of that key."""
        rows = self.database.read("SELECT * FROM session WHERE key = ?", (key,))
        return _session(rows[0]) if rows else None

    def delete_session(self, key: str) -> None:
        """Forget a user and all that is theirs."""
        with self.database.write() as db:
            db.execute("DELETE FROM session WHERE key = ?", (key,))

    def add_class(self, key: str, name: str) -> int:
        """A new class."""
        with self.database.write() as db:
            if db.execute("SELECT count(*) FROM class WHERE session = ?", (key,)).fetchone()[0] >= self.limits.classes:
                raise too_many("classes", self.limits.classes)
            _check_new_name(db, key, name)
            touch(db, key, is_support=False)
            return _insert_class(db, key, name)

    def rename_class(self, key: str, class_id: int, name: str) -> int:
        """Another name for a class."""
        with self.database.write() as db:
            if name != _class_name(db, key, class_id):
                _check_new_name(db, key, name)
            db.execute("UPDATE class SET name = ? WHERE id = ? AND session = ?", (name, class_id, key))
            return touch(db, key)

    def delete_class(self, key: str, class_id: int) -> int:
        """Remove a class and its examples."""
        with self.database.write() as db:
            _class_name(db, key, class_id)
            db.execute("DELETE FROM class WHERE id = ? AND session = ?", (class_id, key))
            return touch(db, key)

    def add_picture(
        self, key: str, class_id: int | None, new: New, encoder: str, *, keep_copy: bool = True
    ) -> tuple[int, bool]:
        """Store an image, labelled or not; return its id, and whether it is new. The first one settles the encoder.

        Without `keep_copy` an image that is there already is not stored again, but gets the label if it has none.

        Raises:
            RequestError: the same image has another label, or a limit is reached.
        """
        with self.database.write() as db:
            self.database.check_room()
            there = None if keep_copy else _find_copy(db, key, new)
            if there is not None:
                _check_contradiction(db, there, class_id)
                if class_id is not None and there["class"] is None:
                    self._change(db, key, Change(there["id"], class_id))
                    touch(db, key)
                return int(there["id"]), False
            row = db.execute("SELECT encoder FROM session WHERE key = ?", (key,)).fetchone()
            if row is None or row["encoder"] not in (None, encoder):
                raise RequestError(
                    409, "Expected the encoder to stay as it was, but it has changed. Send the image again."
                )
            self._check_place(db, key, class_id)
            db.execute("UPDATE session SET encoder = ? WHERE key = ?", (encoder, key))
            touch(db, key, is_support=class_id is not None)
            return _insert_picture(db, key, class_id, new), True

    def change(self, key: str, changes: Sequence[Change]) -> int:
        """Label images, accept answers, or take that back; all of it or nothing."""
        with self.database.write() as db:
            is_support = [self._change(db, key, change) for change in changes]
            return touch(db, key, is_support=any(is_support))

    def import_labels(self, key: str, labels: Mapping[int, Label]) -> tuple[int, Counter[str]]:
        """Label images by their ids, all of them or none; return the version, and how many are what now.

        Missing classes are made. Of labels whose origin is unknown, examples are made in turns of the classes up to the
        limit; the others are accepted.
        """
        with self.database.write() as db:
            own = db.execute("SELECT id, name FROM class WHERE session = ?", (key,)).fetchall()
            ids = {row["name"]: int(row["id"]) for row in own}
            for name in dict.fromkeys(label.label for label in labels.values() if label.how != "none"):
                if name not in ids:
                    ids[name] = _insert_class(db, key, name)
            if len(ids) > self.limits.classes:
                raise too_many("classes", self.limits.classes)
            counts: Counter[str] = Counter()
            kept = db.execute("SELECT id FROM picture WHERE session = ? AND class IS NOT NULL", (key,)).fetchall()
            room = self.limits.examples - sum(row["id"] not in labels for row in kept)
            for number in labels:  # those that have a label now make room first
                self._change(db, key, Change(number))
            for number, label in _in_turns(labels):
                how = label.how or "example"
                if how == "example" and counts["example"] >= room:
                    how = "accepted"
                class_id = ids.get(label.label)
                self._change(
                    db, key,
                    Change(
                        number, class_id if how == "example" else None, class_id if how == "accepted" else None,
                        how == "none",
                    ),
                )  # fmt: skip
                counts[how] += 1
            return touch(db, key), counts

    def _change(self, db: sqlite3.Connection, key: str, change: Change) -> bool:
        """Make one change; return whether an example has changed."""
        number, class_id = change.picture_id, change.class_id
        row = db.execute("SELECT class FROM picture WHERE id = ? AND session = ?", (number, key)).fetchone()
        if row is None:
            raise not_found("image", number)
        self._check_place(db, key, class_id, is_new=(class_id is None) != (row["class"] is None))
        if change.accepted_id is not None:
            _class_name(db, key, change.accepted_id)
        db.execute("UPDATE picture SET class = ? WHERE id = ? AND session = ?", (class_id, number, key))
        db.execute("DELETE FROM accepted WHERE picture = ?", (number,))
        if change.accepted_id is not None or change.is_none:
            db.execute("INSERT INTO accepted VALUES (?, ?)", (number, change.accepted_id))
        return bool(class_id != row["class"])

    def delete_picture(self, key: str, picture_id: int) -> int:
        """Remove an image."""
        with self.database.write() as db:
            found = db.execute(
                "DELETE FROM picture WHERE id = ? AND session = ? RETURNING class", (picture_id, key)
            ).fetchone()
            if found is None:
                raise not_found("image", picture_id)
            return touch(db, key, is_support=found["class"] is not None)

    def _check_place(self, db: sqlite3.Connection, key: str, class_id: int | None, is_new: bool = True) -> None:
        """Refuse a class of another user, and more images than the limit."""
        if class_id is not None:
            _class_name(db, key, class_id)
        if not is_new:
            return
        what = "class IS NULL" if class_id is None else "class IS NOT NULL"
        limit = self.limits.pool if class_id is None else self.limits.examples
        if db.execute(f"SELECT count(*) FROM picture WHERE session = ? AND {what}", (key,)).fetchone()[0] >= limit:
            raise too_many("unlabelled images" if class_id is None else "examples", limit)

    def contents(self, key: str) -> Contents:
        """Everything that a user has, without embeddings and previews."""
        with self.database.snapshot() as db:
            session = db.execute("SELECT * FROM session WHERE key = ?", (key,)).fetchone()
            if session is None:
                raise unknown_session()
            classes = db.execute("SELECT id, name FROM class WHERE session = ? ORDER BY id", (key,)).fetchall()
            query = (
                "SELECT picture.id, name, picture.class, accepted.class, accepted.picture IS NOT NULL AND "
                "accepted.class IS NULL FROM picture LEFT JOIN accepted ON accepted.picture = picture.id "
                "WHERE session = ? ORDER BY picture.id"
            )
            pictures = [(*row[:4], bool(row[4])) for row in map(tuple, db.execute(query, (key,)).fetchall())]
        return Contents(_session(session), {row["id"]: row["name"] for row in classes}, [Picture(*p) for p in pictures])

    def rows(self, key: str, *, labelled: bool, with_previews: bool = False) -> Rows:
        """Embeddings of the labelled or of the unlabelled images, in the order in which they came."""
        preview = "picture.preview" if with_previews else "x''"
        kind = "NOT NULL" if labelled else "NULL"
        with self.database.snapshot() as db:
            session = db.execute("SELECT support, encoder FROM session WHERE key = ?", (key,)).fetchone()
            if session is None:
                raise unknown_session()
            found = db.execute(
                f"SELECT picture.id, picture.name, ifnull(class.name, ''), embedding, {preview} FROM picture "
                f"LEFT JOIN class ON class.id = class WHERE picture.session = ? AND class IS {kind} "
                "ORDER BY picture.id",
                (key,),
            ).fetchall()
        ids, names, labels, embeddings, previews = ([row[i] for row in found] for i in range(5))
        array = np.stack([as_array(blob) for blob in embeddings]) if embeddings else np.zeros((0, 1), np.float32)
        return Rows(session["support"], session["encoder"], ids, names, labels, array, previews)

    def decided(self, key: str) -> set[int]:
        """Ids of the unlabelled images for which the user has accepted an answer."""
        query = "SELECT picture.id FROM picture JOIN accepted ON accepted.picture = picture.id WHERE session = ?"
        return {int(row["id"]) for row in self.database.read(query, (key,))}

    def digests(self, key: str) -> dict[int, str]:
        """A hash of each image's preview, by id; equal for equal images."""
        rows = self.database.read("SELECT id, preview FROM picture WHERE session = ?", (key,))
        return {int(row["id"]): preview_digest(bytes(row["preview"])) for row in rows}

    def preview(self, key: str, picture_id: int) -> bytes:
        """The small JPEG file of an image."""
        rows = self.database.read("SELECT preview FROM picture WHERE id = ? AND session = ?", (picture_id, key))
        if not rows:
            raise not_found("image", picture_id)
        return bytes(rows[0]["preview"])


def session_key(session_id: str) -> str:
    """Hash that the database keeps instead of a session id, so that a copy of the database opens no session."""
    return hashlib.sha256(session_id.encode()).hexdigest()


def preview_digest(preview: bytes) -> str:
    """Hash of a preview, which is the same for the same image."""
    return hashlib.sha256(preview).hexdigest()[:32]


def unknown_session() -> RequestError:
    """The session does not exist (any more)."""
    return RequestError(
        401, "Expected the id of a session, but got none that is known. Begin one with POST /api/sessions."
    )


def _session(row: sqlite3.Row) -> Session:
    return Session(row["key"], row["version"], row["support"], row["encoder"], json.loads(row["parameters"]))


def touch(db: sqlite3.Connection, key: str, *, is_support: bool = True) -> int:
    """Count a change, perhaps one of labelled images; a removed session is refused."""
    query = "UPDATE session SET version = version + 1, support = support + ? WHERE key = ? RETURNING version"
    row = db.execute(query, (int(is_support), key)).fetchone()
    if row is None:
        raise unknown_session()
    return int(row["version"])


def _in_turns(labels: Mapping[int, Label]) -> list[tuple[int, Label]]:
    """Labels that are known to be examples, then others, one of each class at a time."""
    seen: Counter[str] = Counter()
    order = []
    for number, label in labels.items():
        seen[label.label] += 1
        order.append((label.how != "example", seen[label.label], number, label))
    return [(number, label) for *_, number, label in sorted(order, key=lambda entry: entry[:2])]


def _find_copy(db: sqlite3.Connection, key: str, new: New) -> sqlite3.Row | None:
    query = (
        "SELECT id, name, class FROM picture LEFT JOIN copy ON copy.picture = picture.id WHERE session = ? AND "
        "preview = ? AND ifnull(copy.image = ?, embedding = ?) ORDER BY id"
    )
    found: sqlite3.Row | None = db.execute(query, (key, new.preview, new.copy, as_bytes(new.embedding))).fetchone()
    return found


def _check_contradiction(db: sqlite3.Connection, there: sqlite3.Row, class_id: int | None) -> None:
    if class_id is None or there["class"] in (None, class_id):
        return
    name = db.execute("SELECT name FROM class WHERE id = ?", (there["class"],)).fetchone()["name"]
    raise RequestError(
        409,
        f"Expected one class for an image, but the same image is {there['name']!r} of class {name!r}. Move that one, "
        "or send it with copies=true.",
    )


def _class_name(db: sqlite3.Connection, key: str, class_id: int) -> str:
    row = db.execute("SELECT name FROM class WHERE id = ? AND session = ?", (class_id, key)).fetchone()
    if row is None:
        raise not_found("class", class_id)
    return str(row["name"])


def _check_new_name(db: sqlite3.Connection, key: str, name: str) -> None:
    if db.execute("SELECT 1 FROM class WHERE session = ? AND name = ?", (key, name)).fetchone():
        raise RequestError(409, f"Expected a name that no class has yet, but got {name!r}. Choose another.")


def _insert_class(db: sqlite3.Connection, key: str, name: str) -> int:
    return int(db.execute("INSERT INTO class (session, name) VALUES (?, ?)", (key, name)).lastrowid or 0)


def _insert_picture(db: sqlite3.Connection, key: str, class_id: int | None, new: New) -> int:
    values = (key, class_id, new.name, as_bytes(new.embedding), new.preview)
    query = "INSERT INTO picture (session, class, name, embedding, preview) VALUES (?, ?, ?, ?, ?)"
    number = int(db.execute(query, values).lastrowid or 0)
    if new.copy:
        db.execute("INSERT INTO copy VALUES (?, ?)", (number, new.copy))
    return number


def as_bytes(embedding: NDArray[Any]) -> bytes:
    """An embedding as bytes, with its type in the first one."""
    kind = b"d" if embedding.dtype == np.float64 else b"f"
    return kind + embedding.astype(f"<{kind.decode()}").tobytes()


def as_array(blob: bytes) -> NDArray[Any]:
    """The embedding that `as_bytes` has written."""
    return np.frombuffer(blob, dtype=f"<{blob[:1].decode()}", offset=1)

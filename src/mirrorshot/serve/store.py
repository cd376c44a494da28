"""Changes of users, classes and images in the database. Every query is restricted to one user."""

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mirrorshot.serve.database import Database
from mirrorshot.serve.errors import RequestError, not_found, too_many
from mirrorshot.serve.forms import Change
from mirrorshot.serve.labels import Label
from mirrorshot.serve.records import New, Picture
from mirrorshot.serve.settings import Limits
from mirrorshot.serve.statements import (
    change_picture,
    check_contradiction,
    check_new_name,
    check_place,
    class_name,
    find_copy,
    insert_class,
    insert_picture,
    touch,
)

_UNTOUCHED_SECONDS = 3600.0  # age at which a session without changes is deleted


class Store:
    """Users, their classes and images. Changes return the new version, or the new class or image."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database, self.limits = database, limits

    def create_session(
        self,
        encoder: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        examples: Sequence[tuple[str, New]] = (),
    ) -> str:
        """Create a user with optional examples; return the session id, a secret of 256 random bits."""
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
            ids = {label: insert_class(db, key, label) for label in labels}
            for label, new in examples:
                insert_picture(db, key, ids[label], new)
        return session_id

    def delete_session(self, key: str) -> None:
        """Delete a user with all data."""
        with self.database.write() as db:
            db.execute("DELETE FROM session WHERE key = ?", (key,))

    def add_class(self, key: str, name: str) -> int:
        """Add a class; return its id."""
        with self.database.write() as db:
            if db.execute("SELECT count(*) FROM class WHERE session = ?", (key,)).fetchone()[0] >= self.limits.classes:
                raise too_many("classes", self.limits.classes)
            check_new_name(db, key, name)
            touch(db, key, is_support=False)
            return insert_class(db, key, name)

    def rename_class(self, key: str, class_id: int, name: str) -> int:
        """Rename a class."""
        with self.database.write() as db:
            if name != class_name(db, key, class_id):
                check_new_name(db, key, name)
            db.execute("UPDATE class SET name = ? WHERE id = ? AND session = ?", (name, class_id, key))
            return touch(db, key)

    def delete_class(self, key: str, class_id: int) -> int:
        """Remove a class and its examples."""
        with self.database.write() as db:
            class_name(db, key, class_id)
            db.execute("DELETE FROM class WHERE id = ? AND session = ?", (class_id, key))
            return touch(db, key)

    def add_picture(
        self, key: str, class_id: int | None, new: New, encoder: str, *, keep_copy: bool = True
    ) -> tuple[Picture, bool]:
        """Store an image; return it and whether it is new. The first image determines the encoder.

        Without `keep_copy` an image that is stored already is not stored again, but gets the label if it has none;
        another label is an error.
        """
        with self.database.write() as db:
            self.database.check_room()
            there = None if keep_copy else find_copy(db, key, new)
            if there is not None:
                check_contradiction(db, there, class_id)
                if class_id is not None and there["class"] is None:
                    change_picture(db, self.limits, key, Change(picture_id=there["id"], class_id=class_id))
                    touch(db, key)
                return Picture(int(there["id"]), there["name"], class_id or there["class"]), False
            row = db.execute("SELECT encoder FROM session WHERE key = ?", (key,)).fetchone()
            if row is None or row["encoder"] not in (None, encoder):
                raise RequestError(
                    409, "Expected the encoder to stay as it was, but it has changed. Send the image again."
                )
            check_place(db, self.limits, key, class_id)
            db.execute("UPDATE session SET encoder = ? WHERE key = ?", (encoder, key))
            touch(db, key, is_support=class_id is not None)
            return Picture(insert_picture(db, key, class_id, new), new.name, class_id), True

    def change(self, key: str, changes: Sequence[Change]) -> int:
        """Make all changes of images, or none if one is refused."""
        with self.database.write() as db:
            is_support = [change_picture(db, self.limits, key, change) for change in changes]
            return touch(db, key, is_support=any(is_support))

    def import_labels(self, key: str, labels: Mapping[int, Label]) -> tuple[int, Counter[str]]:
        """Label images by their ids, all or none; return the version, and the number of labels of each kind.

        Missing classes are created. Labels of unknown kind become examples, in turns of the classes and after the known
        examples. Examples beyond the limit become accepted answers.
        """
        with self.database.write() as db:
            own = db.execute("SELECT id, name FROM class WHERE session = ?", (key,)).fetchall()
            ids = {row["name"]: int(row["id"]) for row in own}
            for name in dict.fromkeys(label.label for label in labels.values() if label.how != "none"):
                if name not in ids:
                    ids[name] = insert_class(db, key, name)
            if len(ids) > self.limits.classes:
                raise too_many("classes", self.limits.classes)
            kept = db.execute("SELECT id FROM picture WHERE session = ? AND class IS NOT NULL", (key,)).fetchall()
            room = self.limits.examples - sum(row["id"] not in labels for row in kept)
            for number in labels:  # remove present labels first, to make room
                change_picture(db, self.limits, key, Change(picture_id=number))
            counts: Counter[str] = Counter()
            for number, label in _in_turns(labels):
                is_full = counts["example"] >= room
                how = "accepted" if is_full and label.how in ("", "example") else label.how or "example"
                change_picture(db, self.limits, key, _change_to(number, how, ids.get(label.label)))
                counts[how] += 1
            return touch(db, key), counts

    def delete_picture(self, key: str, picture_id: int) -> int:
        """Remove an image."""
        with self.database.write() as db:
            found = db.execute(
                "DELETE FROM picture WHERE id = ? AND session = ? RETURNING class", (picture_id, key)
            ).fetchone()
            if found is None:
                raise not_found("images", picture_id)
            return touch(db, key, is_support=found["class"] is not None)


def session_key(session_id: str) -> str:
    """Hash a session id for the database, so that a copy of the database does not give access to sessions."""
    return hashlib.sha256(session_id.encode()).hexdigest()


def _change_to(number: int, how: str, class_id: int | None) -> Change:
    return Change(
        picture_id=number,
        class_id=class_id if how == "example" else None,
        accepted_id=class_id if how == "accepted" else None,
        is_none=how == "none",
    )


def _in_turns(labels: Mapping[int, Label]) -> list[tuple[int, Label]]:
    """Sort labels: known examples first, then in turns of the classes."""
    seen: Counter[str] = Counter()
    order = []
    for number, label in labels.items():
        seen[label.label] += 1
        order.append((label.how != "example", seen[label.label], number, label))
    return [(number, label) for *_, number, label in sorted(order, key=lambda entry: entry[:2])]

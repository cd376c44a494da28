"""Queries for the classes and images of a user."""

import hashlib
import json
import sqlite3

import numpy as np

from mirrorshot.serve.database import Database
from mirrorshot.serve.errors import not_found, unknown_session
from mirrorshot.serve.records import Contents, Picture, Rows, Session
from mirrorshot.serve.statements import as_array

_PICTURES = (
    "SELECT picture.id, name, picture.class, accepted.class, accepted.picture IS NOT NULL AND accepted.class IS NULL "
    "FROM picture LEFT JOIN accepted ON accepted.picture = picture.id WHERE session = ? ORDER BY picture.id"
)


class Reader:
    """Reads the data of a user. Every query is restricted to one user."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def find(self, key: str) -> Session | None:
        """Return the user of a key; None if there is none."""
        rows = self.database.read("SELECT * FROM session WHERE key = ?", (key,))
        return _session(rows[0]) if rows else None

    def contents(self, key: str) -> Contents:
        """Return all data of a user except embeddings and previews."""
        with self.database.snapshot() as db:
            session = db.execute("SELECT * FROM session WHERE key = ?", (key,)).fetchone()
            if session is None:
                raise unknown_session()
            classes = db.execute("SELECT id, name FROM class WHERE session = ? ORDER BY id", (key,)).fetchall()
            found = db.execute(_PICTURES, (key,)).fetchall()
        pictures = [Picture(id_, name, own, accepted, bool(none)) for id_, name, own, accepted, none in found]
        return Contents(_session(session), {row["id"]: row["name"] for row in classes}, pictures)

    def rows(self, key: str, *, labelled: bool, with_previews: bool = False) -> Rows:
        """Return the labelled or the unlabelled images with their embeddings, in the order of their ids."""
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
        """Return the ids of the images for which the user has accepted an answer."""
        query = "SELECT picture.id FROM picture JOIN accepted ON accepted.picture = picture.id WHERE session = ?"
        return {int(row["id"]) for row in self.database.read(query, (key,))}

    def digests(self, key: str) -> dict[int, str]:
        """Return a hash of each image's preview, by id."""
        rows = self.database.read("SELECT id, preview FROM picture WHERE session = ?", (key,))
        return {int(row["id"]): hashlib.sha256(row["preview"]).hexdigest()[:32] for row in rows}

    def preview(self, key: str, picture_id: int) -> bytes:
        """Return the preview of an image, a JPEG file."""
        rows = self.database.read("SELECT preview FROM picture WHERE id = ? AND session = ?", (picture_id, key))
        if not rows:
            raise not_found("images", picture_id)
        return bytes(rows[0]["preview"])


def _session(row: sqlite3.Row) -> Session:
    return Session(row["key"], row["version"], row["support"], row["encoder"], json.loads(row["parameters"]))

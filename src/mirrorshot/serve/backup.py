"""Backups of the database while the server runs."""

import contextlib
import logging
import os
import sqlite3
import threading

from mirrorshot.serve.database import Database, backup_path, first_damage

_SECONDS = 3600.0


class Backups(threading.Thread):
    """Thread that copies the database after the start and every hour, if it has changed.

    SQLite makes the copy in one step, so it is a consistent snapshot, and writers do not wait. The copy replaces the
    previous one only after a check for damage.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(name="backup", daemon=True)
        self._database, self._stopped = database, threading.Event()

    def stop(self) -> None:
        """Stop making copies."""
        self._stopped.set()

    def run(self) -> None:
        """Make copies until `stop`."""
        while not self._stopped.is_set():
            try:
                back_up(self._database)
            except (OSError, sqlite3.Error) as error:
                logging.getLogger("mirrorshot.serve").error("the database could not be copied", exc_info=error)
            self._stopped.wait(_SECONDS)


def back_up(database: Database) -> bool:
    """Copy the database if it has changed since the last copy; return whether it has.

    Raises:
        sqlite3.DatabaseError: the copy, and so the database, is damaged; the previous copy is kept.
    """
    copy = backup_path(database.path)
    changed = _changed(database)
    if changed <= (copy.stat().st_mtime if copy.exists() else 0.0):
        return False
    part = copy.with_name(f"{copy.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_RDWR, 0o600))
    with contextlib.closing(sqlite3.connect(part)) as target, contextlib.closing(database.connect()) as source:
        source.backup(target)
        damage = first_damage(target)
    if damage is not None:
        part.unlink()
        raise sqlite3.DatabaseError(f"Expected {database.path} to be intact, but got: {damage}.")
    os.utime(part, (changed, changed))
    part.replace(copy)
    return True


def _changed(database: Database) -> float:
    """Time of the last change; 0 if there are no users."""
    if not database.read("SELECT 1 FROM session LIMIT 1"):
        return 0.0
    return max(path.stat().st_mtime for path in (database.path, database.log_path) if path.exists())

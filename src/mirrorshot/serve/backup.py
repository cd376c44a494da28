"""Backups of the database, made while the server runs, in case the file is damaged."""

import contextlib
import logging
import os
import sqlite3
import threading

from mirrorshot.serve.database import Database, backup_path, first_damage

_SECONDS = 3600.0


class Backups(threading.Thread):
    """Copies the database soon after the start and every hour, if it has changed.

    The copy is made in one step by SQLite, so it is the state of one moment; writers do not wait for it. It replaces
    the one before only after it has passed the check for damage.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(name="backup", daemon=True)
        self._database, self._stopped = database, threading.Event()

    def stop(self) -> None:
        """Make no further copies."""
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
        sqlite3.DatabaseError: the copy is damaged, so the database is; the copy before is kept.
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

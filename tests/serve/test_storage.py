"""The disk in trouble: full, removed, damaged; and the copy of the database."""

import errno
import logging
import os
import shutil
import socket
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorshot.serve import Settings, running
from mirrorshot.serve.backup import back_up
from mirrorshot.serve.database import Database
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.store import Store
from mirrorshot.types import DataError

PNG = {"content-type": "image/png"}


def teach(user, picture_of):
    for kind in ("bar", "ring"):
        user.add(picture_of(kind), user.make_class(kind))
    return user


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, 507), (errno.EIO, 503)])
def test_a_disk_that_fails_is_an_error_without_a_path(serve, picture_of, monkeypatch, caplog, code, status):
    server = serve()
    user = teach(server.client().begin(), picture_of)

    def fail(*_):
        raise OSError(code, os.strerror(code), str(server.folder / "copy-1"))

    monkeypatch.setattr("mirrorshot.serve.reader.Reader.contents", fail)
    with caplog.at_level(logging.ERROR, "mirrorshot.serve"):
        answer = user.http.get("/api/session")
    assert answer.status_code == status
    assert answer.json()["error"].startswith("Expected")
    assert str(server.folder) not in answer.text
    assert "copy-" not in answer.text
    assert str(server.folder) in caplog.text  # whoever runs the server needs it


@pytest.mark.parametrize("what", ["folder", "database", "log", "replaced"])
def test_a_label_is_refused_when_its_files_are_gone(serve, picture_of, what):
    server = serve()
    user = teach(server.client().begin(), picture_of)
    number = user.get("session")["classes"][0]["id"]
    if what == "folder":
        shutil.rmtree(server.folder)
    elif what == "replaced":
        shutil.copy(server.folder / "serve.sqlite3", server.folder / "copy")
        (server.folder / "copy").replace(server.folder / "serve.sqlite3")
    else:
        (server.folder / ("serve.sqlite3" + ("-wal" if what == "log" else ""))).unlink()
    answers = [
        user.http.post("/api/examples", params={"class_id": number}, content=picture_of("bar"), headers=PNG),
        user.http.post("/api/classes", json={"name": "new"}),
        user.http.post("/api/sessions"),
    ]
    assert [answer.status_code for answer in answers] == [503] * 3
    assert all(answer.json()["error"].startswith("Expected the data") for answer in answers)
    assert str(server.folder) not in answers[0].text


def test_no_thread_makes_an_empty_database_in_the_place_of_one_that_is_gone(tmp_path):
    database = Database(tmp_path, 10**9)
    (tmp_path / "serve.sqlite3").unlink()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RequestError, match="they were removed"):
        pool.submit(database.read, "SELECT 1").result()
    assert not (tmp_path / "serve.sqlite3").exists()
    database.close()


def filled(folder):
    """A database with 300 users in it."""
    database = Database(folder, 10**9)
    store = Store(database, Settings(folder).limits)
    with database.write() as db:
        for i in range(300):
            db.execute(
                "INSERT INTO session (key, created, version, parameters) VALUES (?, 0, 1, ?)",
                (f"{i:064}", "{}" + " " * 500),
            )
    return database, store


def damage(path):
    content = bytearray(path.read_bytes())
    content[8192 : 8192 + 4096 * 3] = b"\xa5" * (4096 * 3)
    path.write_bytes(content)


def test_a_damaged_database_is_told_with_what_to_do(tmp_path):
    database, _ = filled(tmp_path)
    assert back_up(database)
    database.close()
    damage(database.path)
    with pytest.raises(DataError) as caught:
        Database(tmp_path, 10**9)
    assert str(caught.value).startswith(f"Expected {database.path} to be an intact database, but got: ")
    assert f"{database.path}-backup, to serve.sqlite3, and start again." in str(caught.value)
    database.path.unlink()  # as the message says
    (tmp_path / "serve.sqlite3-backup").rename(database.path)
    again = Database(tmp_path, 10**9)
    assert again.read("SELECT count(*) FROM session")[0][0] == 300
    again.close()


@pytest.mark.parametrize("n_bytes", [50, 5000])
def test_a_database_that_was_cut_off_is_told_too(tmp_path, n_bytes):
    database, _ = filled(tmp_path)
    database.close()
    with open(database.path, "r+b") as file:
        file.truncate(n_bytes)
    with pytest.raises(DataError, match=r"Move it away .* there is no copy of it"):
        Database(tmp_path, 10**9)


def test_a_damaged_database_gives_a_message_on_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from mirrorshot.cli import main

    database, _ = filled(tmp_path)
    database.close()
    damage(database.path)
    result = CliRunner().invoke(main, ["serve", "--data-folder", str(tmp_path), "--port", "0"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Expected ")
    assert "to be an intact database" in result.stderr


def test_a_copy_has_all_commits_and_is_made_only_after_changes(tmp_path):
    database, store = filled(tmp_path)
    assert back_up(database)
    assert not back_up(database)
    copy = tmp_path / "serve.sqlite3-backup"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    os.utime(copy, (0, 0))
    store.create_session()
    assert back_up(database)
    with sqlite3.connect(copy) as reader:
        assert reader.execute("SELECT count(*) FROM session").fetchone()[0] == 301
    reader.close()
    database.close()
    assert not list(tmp_path.glob("*.part*"))


def test_an_empty_database_is_not_copied(tmp_path):
    database = Database(tmp_path, 10**9)
    assert not back_up(database)
    database.close()


def test_a_copy_of_a_damaged_database_does_not_replace_a_good_one(tmp_path):
    database, _ = filled(tmp_path)
    back_up(database)
    database.read("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = tmp_path / "serve.sqlite3-backup"
    os.utime(copy, (0, 0))
    before = copy.read_bytes()
    damage(database.path)
    with pytest.raises(sqlite3.DatabaseError):
        back_up(database)
    assert copy.read_bytes() == before
    database.close()


def test_a_running_server_makes_a_copy(serve, picture_of):
    import time

    teach(serve().client().begin(), picture_of)
    folder = serve().folder  # the second server starts with users
    deadline = time.monotonic() + 300
    while not (folder / "serve.sqlite3-backup").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (folder / "serve.sqlite3-backup").exists()


def test_a_port_is_not_shared_on_windows(tmp_path, monkeypatch):
    options = []

    class Recorded(socket.socket):
        def setsockopt(self, level, option, value):
            options.append(option)

    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    monkeypatch.setattr(socket, "socket", Recorded)
    running._listen(Settings(tmp_path, port=0)).close()
    assert options == [-5]

"""`mirrorshot serve` on the command line."""

import socket
import sqlite3
import stat
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mirrorshot.cli import main
from mirrorshot.serve.database import Database
from mirrorshot.types import DataError


def run(*arguments, **options):
    return CliRunner().invoke(main, ["serve", *map(str, arguments)], **options)


@pytest.mark.parametrize("options", [["--host", "0.0.0.0"], ["--public-host", "few.example"]])
def test_a_server_that_others_can_reach_makes_a_token_of_its_own(tmp_path, monkeypatch, options):
    started = []
    monkeypatch.setattr("mirrorshot.serve.running.run", lambda settings, *_, **__: started.append(settings))
    for _ in range(2):
        result = run(*options, "--data-folder", tmp_path, env={"MIRRORSHOT_TOKEN": ""})
        assert result.exit_code == 0, result.stderr
        assert f"Token of this server, which users have to know: {started[-1].token}" in result.stderr
    assert len(started[0].token) >= 40
    assert started[0].token != started[1].token


def test_a_server_on_this_machine_alone_makes_no_token(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("mirrorshot.serve.running.run", lambda settings, *_, **__: started.append(settings))
    assert "Token" not in run("--data-folder", tmp_path).stderr
    assert started[0].token is None


def test_a_short_token_is_refused_also_from_the_environment(tmp_path):
    result = run("--data-folder", tmp_path, env={"MIRRORSHOT_TOKEN": "secret"})
    assert result.exit_code == 2
    assert "at least 16 characters" in result.stderr
    assert "secret" not in result.stderr.replace("secrets", "")


def test_a_port_that_is_taken_is_told(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("--port", port, "--data-folder", tmp_path)
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert result.stderr.startswith(f"Error: Expected 127.0.0.1 port {port} to be free, but got:")


def test_the_name_of_the_data_folder_cannot_steer_the_terminal(tmp_path, monkeypatch):
    def started(app, settings):
        return SimpleNamespace(run=lambda sockets: (sockets[0].close(), app.state.service.close()))

    monkeypatch.setattr("mirrorshot.serve.running.make_server", started)
    result = run("--port", 0, "--encoder", "pixels", "--data-folder", tmp_path / "\x1b[2Jdata")
    assert result.exit_code == 0, result.stderr
    assert "mirrorshot serve: http://127.0.0.1:" in result.stderr
    assert r"\x1b[2Jdata. Stop with Ctrl-C." in result.stderr
    assert "\x1b" not in result.stderr


def test_a_model_that_is_none_is_refused(tmp_path):
    (tmp_path / "model").write_text("no model")
    result = run(tmp_path / "model", "--data-folder", tmp_path / "data")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: Expected")
    assert not (tmp_path / "data").exists()


def test_a_model_of_embeddings_is_refused(tmp_path, points):
    from mirrorshot.tool import Model

    Model.fit(points).save(tmp_path / "model")
    result = run(tmp_path / "model", "--data-folder", tmp_path / "data")
    assert result.exit_code == 1
    assert "Expected a model of images, but got one of embeddings" in result.stderr


def test_a_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "serve.sqlite3"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (a)")
    other.close()
    with pytest.raises(DataError, match="to be a database of `mirrorshot serve`"):
        Database(tmp_path, 10**6)


def test_a_file_that_is_no_database_is_left_alone(tmp_path):
    (tmp_path / "serve.sqlite3").write_text("these are not tables" * 100)
    with pytest.raises(DataError, match=r"to be an intact database, but got: file is not a database"):
        Database(tmp_path, 10**6)
    assert (tmp_path / "serve.sqlite3").read_text().startswith("these are not tables")


def test_only_the_owner_can_read_the_data(tmp_path):
    database = Database(tmp_path / "data", 10**6)
    assert stat.S_IMODE(database.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700
    assert database.read("PRAGMA journal_mode")[0][0] == "wal"
    assert database.read("PRAGMA synchronous")[0][0] == 2  # FULL
    database.close()

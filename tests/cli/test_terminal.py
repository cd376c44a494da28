import os
from pathlib import PurePosixPath, PureWindowsPath

import pytest
import typer

from mirrorshot.cli import terminal


def test_errors_of_other_processes_have_their_number(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(typer.Exit):
        terminal.refuse("no")
    assert capsys.readouterr().err == "Error in process 3: no\n"


@pytest.mark.parametrize(
    ("system", "path", "expected"),
    [
        ("posix", PurePosixPath("runs/one"), "runs/one"),
        ("posix", PurePosixPath("my runs/one"), "'my runs/one'"),
        ("nt", PureWindowsPath("runs/one"), r"runs\one"),
        ("nt", PureWindowsPath("my runs/one"), r'"my runs\one"'),
    ],
)
def test_paths_are_quoted_for_the_shell_of_the_system(monkeypatch, system, path, expected):
    monkeypatch.setattr(os, "name", system)
    found = terminal.quoted(path)
    monkeypatch.undo()
    assert found == expected


def test_in_short_work_threads_sleep_while_they_wait_unless_a_user_says_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    with terminal.short_work():
        assert (os.environ["OMP_WAIT_POLICY"], os.environ["OPENBLAS_THREAD_TIMEOUT"]) == ("ACTIVE", "20")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT")
    with terminal.short_work():
        assert (os.environ["OMP_WAIT_POLICY"], os.environ["OPENBLAS_THREAD_TIMEOUT"]) == ("PASSIVE", "4")

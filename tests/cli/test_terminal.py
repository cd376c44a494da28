import os
import time
from pathlib import PurePosixPath, PureWindowsPath

import pytest
import typer

from mirrorshot.cli import progress, terminal
from mirrorshot.cli.tables import print_tables
from mirrorshot.views import Table


def test_progress_in_a_log_is_a_line_now_and_then(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with progress.progress_bar(quiet=False) as stage:
        report = stage("Training")
        for second in range(0, 100, 10):
            clock[0] = float(second)
            report(100 * second, 1000, f"after {second}")
    assert capsys.readouterr().err.splitlines() == [
        f"Training: {100 * second:,} of 1,000  after {second}" for second in (30, 60, 90)
    ]


def test_quiet_and_other_processes_say_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with progress.progress_bar(quiet=True) as stage:
        stage("Training")(1, 2, "x")
    monkeypatch.setenv("RANK", "1")
    with progress.progress_bar(quiet=False) as stage:
        stage("Training")(1, 2, "x")
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar_for_each_stage(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.progress_bar(quiet=False) as stage:
        stage("Loading")(1, 2, "images")
        stage("Training")(1, 2, "loss [1.5]")
    assert "loss [1.5]" in capsys.readouterr().err


def test_errors_of_other_processes_have_their_number(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(typer.Exit):
        terminal.refuse("no")
    assert capsys.readouterr().err == "Error in process 3: no\n"


def test_tables_share_their_protocol_and_notes(capsys):
    one = Table("First", ["method", "accuracy"], [["a", "1"], ["a, T = 2", "3"]], {"tasks": "5"}, [(1, 1)], "Small.")
    two = one._replace(caption="Second", rows=[["b", "4"]], best=[])
    print_tables([one, two])
    text = capsys.readouterr().out
    assert text.count("Protocol: tasks 5.") == 1
    assert text.count("Small.") == 1
    assert "3*" in text
    assert "a, T = 2" not in text  # the second row has only what is new
    assert text.index("First") < text.index("Second")
    assert "*: best of its column. Small." in text


def test_only_tables_with_marks_explain_them(capsys):
    table = Table("First", ["method", "accuracy"], [["a", "1"]], {"tasks": "5"}, note="Small.")
    print_tables([table])
    assert "best of its column" not in capsys.readouterr().out


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

import time

from mirrorshot.cli import progress


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

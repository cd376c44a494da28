"""Where results go: files that are not to be overwritten, encodings, a full disk, closed streams."""

import os

import pytest

TEXTS = "text,label\ngood day,a\nbad night,b\n"


@pytest.fixture
def fitted(run, tmp_path):
    """A table of texts and the model of it, in the working folder."""
    (tmp_path / "texts.csv").write_text(TEXTS)
    result = run("fit", "texts.csv", "-e", "tfidf", "-o", "été.model")
    assert result.exit_code == 0, result.output
    return "été.model"


@pytest.mark.parametrize(
    "line",
    [
        ["fit", "texts.csv", "-o", "./texts.csv"],
        ["add", "été.model", "texts.csv", "-o", "texts.csv"],
        ["export", "été.model", "-o", "été.model"],
        ["prior", "texts.csv", "-o", "texts.csv"],
        ["predict", "été.model", "texts.csv", "--parquet", "texts.csv"],
        ["predict", "été.model", "texts.csv", "--parquet", "été.model"],
    ],
)
def test_no_command_overwrites_what_it_reads(run, fitted, tmp_path, line):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    result = run(*line)
    assert result.exit_code == 2
    assert "to be another file than those to read, but got" in result.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_empty_name_of_a_file_is_quoted(run, fitted):
    assert "but got the folder '.'." in run("fit", "texts.csv", "-o", "").stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_fits_encodings_without_its_characters(in_subprocess, tmp_path, encoding):
    (tmp_path / "texts.csv").write_text("text,label\ngood day,日本\nbad night,b\n", encoding="utf-8")
    environment = {"PYTHONIOENCODING": encoding}
    for line in (["fit", "texts.csv", "-e", "tfidf"], ["predict", "model.mirrorshot", "texts.csv"]):
        done = in_subprocess("-m", "mirrorshot", *line, env=environment)
        assert done.returncode == 0, done.stderr
    assert r"\u65e5\u672c" in done.stdout
    assert "<=" in done.stdout
    assert len({len(line) for line in done.stdout.splitlines()}) == 1  # the columns are straight


COMMAND = "os.execv(sys.executable, [sys.executable, '-m', 'mirrorshot', *sys.argv[1:]])"
needs_descriptors = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")


@needs_descriptors
@pytest.mark.parametrize("option", ["--csv", "--json"])
def test_a_full_disk_is_told_in_one_line(in_subprocess, fitted, option):
    code = f"import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); {COMMAND}"
    done = in_subprocess("-c", code, "predict", fitted, "texts.csv", option)
    assert done.returncode == 1
    assert done.stderr == "Error: Expected to write the results, but got: [Errno 28] No space left on device.\n"


@needs_descriptors
def test_a_closed_stdout_is_no_failure(in_subprocess, fitted):
    done = in_subprocess("-c", f"import os, sys; os.close(1); {COMMAND}", "predict", fitted, "texts.csv", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


@needs_descriptors
@pytest.mark.parametrize("line", [["--help"], ["--version"], ["fit", "--help"]])
def test_a_full_disk_is_told_in_one_line_by_help_too(in_subprocess, line):
    code = f"import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); {COMMAND}"
    done = in_subprocess("-c", code, *line)
    assert done.returncode == 1
    assert done.stderr == "Error: Expected to write the results, but got: [Errno 28] No space left on device.\n"


@needs_descriptors
def test_a_closed_stdin_has_no_items(in_subprocess, fitted):
    done = in_subprocess("-c", f"import os, sys; os.close(0); {COMMAND}", "predict", fitted, "-")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Expected at least one image")
    assert done.stderr.count("\n") == 1


def test_an_interrupt_while_the_command_is_imported_is_no_traceback(in_subprocess):
    code = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "mirrorshot.cli.options":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from mirrorshot.__main__ import run
run()
"""
    done = in_subprocess("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

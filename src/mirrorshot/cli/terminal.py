"""Terminal output, errors as one-line messages, exit codes, and checks of paths."""

import errno
import io
import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from mirrorshot.files.imaging.folders import SUFFIXES
from mirrorshot.files.lazy import missing_package
from mirrorshot.files.texts import harmless
from mirrorshot.types import InvalidInputError, MirrorshotError

FINDINGS = 3
"""Exit code: done, but images could not be read, the doctor found errors, or a gate is not passed."""


def say(text: str, *, err: bool = False) -> None:
    """Print a line with control characters escaped, so that names cannot control the terminal."""
    typer.echo(harmless(text), err=err)


def say_json(record: Any) -> None:
    """Print JSON."""
    say(json.dumps(record, indent=2))


def say_result(record: Any, text: str, *, as_json: bool) -> None:
    """Print a result, as JSON or as text."""
    if as_json:
        say_json(record)
    else:
        say(text)


def note(text: str, *, quiet: bool = False) -> None:
    """Print a line on stderr unless `quiet`."""
    if not quiet:
        say(text, err=True)


def shown(name: Any) -> str:
    """Return a name on one line, with control characters escaped."""
    return harmless(str(name), keep="")


def quoted(path: Path) -> str:
    """Quote a path for the shell of this system."""
    return subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))


def is_first_process() -> bool:
    """Return whether this is the only process, or rank 0 of `torchrun`: the one that prints."""
    return os.environ.get("RANK", "0") == "0"


def refuse(message: str) -> NoReturn:
    """Print one line about wrong usage, and exit with code 2."""
    _complain(message)
    raise typer.Exit(2)


class Commands(TyperGroup):
    """Command group with output for any encoding; a missing extra or a full disk is reported in one line."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the command line; `--help` prints here."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # "≤" and most names are not in cp1252 or ASCII
        with _missing_or_full():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _missing_or_full():
            return super().invoke(ctx)


@contextmanager
def _missing_or_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader, for instance `head`, closed the pipe
            raise
        _complain(f"Expected to write the results, but got: {error}.")
        raise typer.Exit(1) from error
    except ModuleNotFoundError as error:
        explained = missing_package(error)
        if explained is None:
            raise
        _complain(f"{explained}")
        raise typer.Exit(1) from error


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Treat an `InvalidInputError` in the block as wrong usage: exit code 2."""
    try:
        yield
    except InvalidInputError as error:
        refuse(str(error))


@contextmanager
def errors_as_messages() -> Iterator[None]:
    """Show warnings and expected errors as one line each; any other exception is a bug and keeps its traceback."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        except (MirrorshotError, OSError) as error:
            _complain(str(error))
            raise typer.Exit(1) from error


@contextmanager
def short_work() -> Iterator[None]:
    """`errors_as_messages` for a block that computes little; idle threads sleep instead of spinning.

    Design note: the block is half a second of imports and some small products. Spinning threads take the processor
    from other programs, and on a busy machine from this one. OpenMP and OpenBLAS read the variables when they are
    loaded. `OPENBLAS_THREAD_TIMEOUT` is the base-2 logarithm of the cycles before a thread sleeps, at least 4.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    with errors_as_messages():
        yield


def _complain(message: str) -> None:
    where = "" if is_first_process() else f" in process {os.environ['RANK']}"
    say(f"Error{where}: {_one_line(message)}", err=True)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    if is_first_process():
        say(f"Warning: {_one_line(str(message))}", err=True)


def _one_line(message: str) -> str:
    return " ".join(line.strip() for line in message.splitlines())


def numbers(option: str, text: str, *, least: int = 0) -> tuple[int, ...]:
    """Parse integers such as `1,2,3`; refuse other text, duplicates and numbers below `least`."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        refuse(f"Expected {option} to be numbers with commas, for instance 1,2,3, but got {text!r}.")
    if min(found) < least or len(set(found)) < len(found):
        refuse(f"Expected {option} to be distinct and at least {least}, but got {text!r}.")
    return found


def check_folder(option: str, path: Path) -> None:
    """Refuse a folder that cannot be made or written, before slow work begins."""
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        refuse(f"Expected {option} to be a folder that can be written, but got {path}: {nearest} is no folder.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        refuse(f"Expected {option} to be a folder that can be written, but got {path}: no permission.")


def prepare_file(option: str, path: Path, *, inputs: Iterable[str | Path | None] = ()) -> None:
    """Make the folder of an output file; refuse a folder, an input, or a place that cannot be written."""
    if path.is_dir():
        refuse(f"Expected {option} to be a file, but got the folder {str(path)!r}. Name a file in it.")
    if path.exists() and any(given is not None and _is_read(path, Path(given)) for given in inputs):
        refuse(f"Expected {option} to be another file than those to read, but got {path}. It would be overwritten.")
    check_folder(option, path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)


def _is_read(path: Path, given: Path) -> bool:
    """Return whether an existing file is an input, or an image in an input folder."""
    is_inside = path.suffix.lower() in SUFFIXES and Path(os.path.abspath(given)) in Path(os.path.abspath(path)).parents
    return os.path.exists(given) and (is_inside or path.samefile(given))


def prepare_page(option: str, path: Path) -> None:
    """`prepare_file` for a path that ends in .html."""
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        refuse(f"Expected {option} to be a file that ends in .html, but got {str(path)!r}.")
    prepare_file(option, path)

"""Entry point of `python -m mirrorshot`, and of `torchrun -m mirrorshot` in several processes."""

import os  # the interpreter has loaded these two before any program starts
import sys


def _leave_out_working_folder() -> None:
    """Remove the working folder from `sys.path`, so that Python files beside a user's images never run.

    `python -m` puts it there, and so does an empty entry of PYTHONPATH, as in `PYTHONPATH=$PYTHONPATH:/opt/lib` with an
    unset variable. Entries that PYTHONPATH names stay.
    """
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if __name__ == "__main__" and not is_safe:
        del sys.path[0]
    named = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.getcwd()
    if "" in named and here not in map(os.path.abspath, filter(None, named)):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]


_leave_out_working_folder()

import atexit  # noqa: E402 - not from a file of that name in the working folder
import threading  # noqa: E402
from typing import NoReturn  # noqa: E402


def run() -> None:
    """Run the command and end the process at once.

    A normal exit spends most of a second on unloading torch and scikit-learn. With several processes it can also fail:
    threads of torch's gloo can abort a finished process during shutdown
    (https://github.com/pytorch/pytorch/issues/179291), and `torchrun` would then report a finished run as a failure.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # None if the parent closed them
        setattr(sys, name, getattr(sys, name) or open(os.devnull, mode))  # noqa: SIM115 (until the end)
    try:
        from mirrorshot.cli import main  # inside `try`: Ctrl-C can come during the import

        main(prog_name="mirrorshot")
    except KeyboardInterrupt:  # before the command has started
        _leave(130)
    except SystemExit as end:
        is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        if is_alone and any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
            raise
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))


def _leave(code: int) -> NoReturn:
    """Run the exit handlers, flush the streams and end the process without unloading modules."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader, for instance `head`, has closed the pipe
        code = code or 1
    os._exit(code)


if __name__ == "__main__":
    run()

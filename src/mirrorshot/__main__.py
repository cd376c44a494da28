"""`python -m mirrorshot` is the command `mirrorshot`; `torchrun -m mirrorshot` runs it in several processes."""

import os  # these two the interpreter has loaded before any program begins
import sys


def _leave_out_working_folder() -> None:
    """Remove the working folder from `sys.path`: files beside somebody's images must not run.

    `python -m` puts it there, and so does an empty entry of PYTHONPATH, as in `PYTHONPATH=$PYTHONPATH:/opt/lib` where
    the variable was not set. Entries that PYTHONPATH names stay.
    """
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if __name__ == "__main__" and not is_safe:
        del sys.path[0]
    named = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.getcwd()
    if "" in named and here not in map(os.path.abspath, filter(None, named)):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]


_leave_out_working_folder()

import atexit  # noqa: E402 - a file of that name in the working folder is not the one that is meant
import threading  # noqa: E402
from typing import NoReturn  # noqa: E402


def run() -> None:
    """Run the command, and end at once when it is done.

    Taking torch and scikit-learn apart again takes the interpreter most of a second, which whoever waits for a
    prediction would wait for too. In one of several processes it can do worse: threads of torch's gloo can abort a
    process that is done but still shutting down (https://github.com/pytorch/pytorch/issues/179291), and `torchrun`
    would then call a finished run a failure.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # None where the parent has closed them
        setattr(sys, name, getattr(sys, name) or open(os.devnull, mode))  # noqa: SIM115 (until the end)
    try:
        from mirrorshot.cli import main  # here, because Ctrl-C can come while it is imported

        main(prog_name="mirrorshot")
    except KeyboardInterrupt:  # before the command has begun
        _leave(130)
    except SystemExit as end:
        is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        if is_alone and any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
            raise
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))


def _leave(code: int) -> NoReturn:
    """End the process: what is registered for its end is done, what is written is flushed, nothing is taken apart."""
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:  # the reader, for instance `head`, has seen enough
        code = code or 1
    os._exit(code)


if __name__ == "__main__":
    run()

"""`python -m mirrorshot` is the command `mirrorshot`; `torchrun -m mirrorshot` runs it in several processes."""

from mirrorshot.files.import_path import leave_out_working_folder

leave_out_working_folder(is_program=__name__ == "__main__")

import atexit  # noqa: E402 - a file of that name in the working folder is not the one that is meant
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from typing import NoReturn  # noqa: E402

from mirrorshot.cli import main  # noqa: E402


def run() -> None:
    """Run the command, and end at once when it is done.

    Taking torch and scikit-learn apart again takes the interpreter most of a second, which whoever waits for a
    prediction would wait for too. In one of several processes it can do worse: threads of torch's gloo can abort a
    process that is done but still shutting down (https://github.com/pytorch/pytorch/issues/179291), and `torchrun`
    would then call a finished run a failure.
    """
    for name in ("stdout", "stderr"):  # None where the parent has closed them
        setattr(sys, name, getattr(sys, name) or open(os.devnull, "w"))  # noqa: SIM115 (until the end)
    try:
        main(prog_name="mirrorshot")
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

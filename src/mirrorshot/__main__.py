"""`python -m mirrorshot` is the command `mirrorshot`; `torchrun -m mirrorshot` runs it in several processes."""

import os
import sys

from mirrorshot.cli import main


def run() -> None:
    """Run the command.

    One of several processes ends at once, without the interpreter's clean-up: threads of torch's gloo can abort a
    process that is done but still shutting down (https://github.com/pytorch/pytorch/issues/179291), and `torchrun`
    would then call a finished run a failure.
    """
    try:
        main(prog_name="mirrorshot")
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


if __name__ == "__main__":
    run()

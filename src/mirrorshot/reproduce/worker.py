"""`python -m mirrorshot.reproduce.worker TASK`: one cell, in a process of its own. Started by `run_cells`."""

import json
import sys

from mirrorshot.reproduce.runner import run_task
from mirrorshot.types import MirrorshotError


def main() -> int:
    """Run the cell; exit code 1 and one line on stderr if it fails."""
    try:
        run_task(json.loads(sys.argv[1]), _say)
    except MirrorshotError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

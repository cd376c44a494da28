"""The import path of the command without the working folder: files beside somebody's images must not run.

Imports only modules that the interpreter has loaded before any program begins.
"""

import os
import sys


def leave_out_working_folder(*, is_program: bool) -> None:
    """Remove the working folder from `sys.path`.

    `python -m` puts it there, and so does an empty entry of PYTHONPATH, as in `PYTHONPATH=$PYTHONPATH:/opt/lib` where
    the variable was not set. Entries that PYTHONPATH names stay.

    Args:
        is_program: whether Python runs the caller itself (`python -m`) and has put a folder first in the path.
    """
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if is_program and not is_safe:
        del sys.path[0]
    named = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.getcwd()
    if "" in named and here not in map(os.path.abspath, filter(None, named)):
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]

"""Freed memory that stays with the process."""

import subprocess
import sys

import pytest

from mirrorshot.files import freed_memory

CODE = """
import resource, sys
import numpy as np
from mirrorshot.files.freed_memory import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
arrays = lambda: [np.ones(2**22) for _ in range(4)]  # 32 MB each, all there at once
arrays()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    arrays()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone gives memory back like that")
def test_arrays_of_the_next_step_need_no_new_pages():
    counts = {}
    for name in ("given back", "kept"):
        done = subprocess.run([sys.executable, "-c", CODE, name], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        counts[name] = int(done.stdout)
    assert counts["kept"] < 0.1 * counts["given back"]


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_another_c_library_is_left_alone(monkeypatch, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", refuse)
    assert not freed_memory.keep_freed_memory()


def test_another_system_is_left_alone(monkeypatch):
    monkeypatch.setattr(freed_memory.sys, "platform", "darwin")
    assert not freed_memory.keep_freed_memory()

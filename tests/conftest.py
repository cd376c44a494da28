import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

# No deadlines and no complaint of slow draws: how long an example takes depends on what else the machine does.
settings.register_profile(
    "mirrorshot", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("extended", settings.get_profile("mirrorshot"), max_examples=2000)
settings.load_profile("mirrorshot")  # --hypothesis-profile=extended, if given, is loaded after this

PACKAGE = Path(__file__).parents[1] / "src" / "mirrorshot"
# Rooms whose annotated shapes and types are checked in tests, never in a user's program.
CHECKED = ("softmax", "gp", "metrics", "classifier", "networks", "data", "methods", "training")
# Modules that take any input and report themselves what is wrong with it, or that are traced.
UNCHECKED = {"classifier.estimator", "classifier.export.graph", "classifier.export.head", "training.config"}


def checked_modules():
    """Dotted names, for the import hook of jaxtyping; a name stands for what is below it too."""
    for room in CHECKED:
        left_out = {name for name in UNCHECKED if name.startswith(f"{room}.")}
        paths = (PACKAGE / room).rglob("[!_]*.py") if left_out else [PACKAGE / room]
        names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths}
        yield from (f"mirrorshot.{name}" for name in sorted(names - left_out))


NEEDS_TORCH = re.compile(
    r"^(?:import|from) (?:torch|mirrorshot\.(?:networks|data|methods|training|paper))\b", re.MULTILINE
)

try:
    import torch
except ModuleNotFoundError:  # make test-light
    torch = None
    # A test file that imports torch, or a room that needs it, at its top is left out; any other import has to work.
    collect_ignore = [
        path for path in Path(__file__).parent.rglob("*.py") if NEEDS_TORCH.search(path.read_text("utf-8"))
    ]


def pytest_report_header():
    return f"without torch: {len(collect_ignore)} files are left out" if torch is None else None


jaxtyping.install_import_hook(list(checked_modules()), "beartype.beartype")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tests run side by side in several processes; more threads in each would only be in the way."""
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture
def as_for_users(monkeypatch):
    """Switch off the run-time shape checks, to see what a user sees when an argument is wrong."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def load_file():
    """Import a file that is in no package."""

    def load(path):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def _draw(kind, rng):
    """A cross, a bar or a ring of dark ink on a light page, a little different each time."""
    page = rng.integers(235, 250, (40, 40)).astype(np.uint8)
    x, y, thick = rng.integers(12, 18), rng.integers(12, 18), rng.integers(3, 6)
    if kind == "bar":
        page[4:36, x : x + thick] = 15
    elif kind == "cross":
        page[4:36, x : x + thick] = 15
        page[y : y + thick, 4:36] = 15
    else:
        rows, columns = np.ogrid[:40, :40]
        radius = np.hypot(rows - 8 - x // 2 - y // 4, 1.2 * (columns - 12 - y // 2))
        page[(radius > 15 - thick) & (radius < 15)] = 15
    return Image.fromarray(page)


def _write_pictures(root, n=4, seed=0, kinds=("bar", "cross", "ring")):
    """A folder of class folders."""
    rng = np.random.default_rng(seed)
    for kind in kinds:
        (root / kind).mkdir(parents=True)
        for i in range(n):
            _draw(kind, rng).save(root / kind / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Folders `support` (4 pictures of 3 classes) and `query` (3 others of each)."""
    root = tmp_path_factory.mktemp("pictures")
    _write_pictures(root / "support")
    _write_pictures(root / "query", n=3, seed=1)
    return root


def _blobs(n_way=3, n_shot=4, n_features=6, seed=0):
    """Embeddings of classes that are easy to tell apart."""
    rng = np.random.default_rng(seed)
    X = np.repeat(3 * rng.normal(size=(n_way, n_features)), n_shot, 0) + rng.normal(size=(n_way * n_shot, n_features))
    from mirrorshot.tool import Items

    labels = [f"class {c}" for c in range(n_way) for _ in range(n_shot)]
    return Items("embedding", [f"item {i}" for i in range(len(X))], X, labels)


@pytest.fixture
def points():
    return _blobs()


@pytest.fixture
def write_pictures():
    return _write_pictures


@pytest.fixture
def blobs():
    return _blobs


@pytest.fixture
def in_tritons_interpreter():
    """Runs a program whose kernels Triton interprets on the CPU; Triton chooses on import, so in a new process."""

    def run(program, *arguments):
        pytest.importorskip("triton", reason="Triton is not installed; the fused kernels run on GPUs only")
        environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program), *arguments]
        return subprocess.run(
            command, env=environment, check=True, text=True, stdout=subprocess.PIPE, timeout=300
        ).stdout

    return run

"""Training on a GPU that is lent for minutes: CUDA MPS, and archives of results and checkpoints."""

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

RESULTS = "results.tar"
_LARGEST = 15 * 2**20  # bytes of an archive of runs
_MOST = 6  # archives of runs
_TRAINED, _BEGUN = ("training.json", "best.safetensors"), ("last.safetensors",)  # files to resume a run from


@contextlib.contextmanager
def multi_process_service() -> Iterator[bool]:
    """Let processes share the GPU by CUDA MPS, if available; yield whether they do."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield False
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        environment = {**os.environ, **places}
        begun = subprocess.run([control, "-d"], env=environment, check=False).returncode == 0
        try:
            works = begun and _can_compute(environment)
            if works:
                os.environ.update(places)
            yield works
        finally:
            for name in places:
                os.environ.pop(name, None)
            if begun:
                subprocess.run([control], input="quit\n", env=environment, text=True, check=False, timeout=60)


def _can_compute(environment: dict[str, str]) -> bool:
    """Return whether a process can use the GPU in this environment."""
    code = "import torch; assert float(torch.ones(8, device='cuda').sum()) == 8"
    try:
        return subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=90).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def keep(folder: Path, results: Sequence[Path], runs: Sequence[Path]) -> list[str]:
    """Archive results, and the checkpoints of unfinished runs; return the names of runs that do not fit.

    Archives of runs are few and small, because a lent machine returns only few files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _pack(folder / RESULTS, results, results[0].parent if results else folder)
    parts, sizes, left_out = list[list[Path]](), list[int](), []
    for run in runs:
        files = [run / name for name in ("config.json", "log.jsonl", *_state(run)) if (run / name).exists()]
        size = sum(file.stat().st_size + 2048 for file in files)
        place = next((i for i, taken in enumerate(sizes) if taken + size <= _LARGEST), len(parts))
        if size > _LARGEST or place == _MOST:
            left_out.append(run.name)
            continue
        if place == len(parts):
            parts.append([])
            sizes.append(0)
        parts[place] += files
        sizes[place] += size
    for i, files in enumerate(parts):
        _pack(folder / f"runs-{i}.tar", files, files[0].parent.parent)
    for i in range(len(parts), _MOST):
        (folder / f"runs-{i}.tar").unlink(missing_ok=True)
    return left_out


def _state(run: Path) -> tuple[str, ...]:
    return _TRAINED if (run / "training.json").exists() else _BEGUN


def _pack(path: Path, files: Sequence[Path], root: Path) -> None:
    """Write an archive, then replace the old one atomically."""
    part = path.with_suffix(".part")
    with tarfile.open(part, "w") as archive:
        for file in files:
            archive.add(file, file.relative_to(root))
    part.replace(path)


def fetch(folder: Path, results: Path, runs: Path) -> list[str]:
    """Unpack the archives of `keep`; return the names of the files."""
    names = []
    for path in sorted([*folder.rglob(RESULTS), *folder.rglob("runs-*.tar")]):
        place = results if path.name == RESULTS else runs
        place.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path) as archive:
            archive.extractall(place, filter="data")
            names += [f"{place}/{name}" for name in archive.getnames()]
    return names

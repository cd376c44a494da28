"""Time and memory of predicting 100,000 and a million embeddings in chunks, on one and two threads.

    python benchmarks/bulk.py

The embeddings are a memory-mapped float32 file. Memory is the increase of the process's own pages (`RssAnon` of Linux)
to their peak, without the result; pages of the mapped file can be dropped at any time and do not count. Each case runs
in its own process.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from mirrorshot import FewShotClassifier
from mirrorshot.classifier.bulk import in_chunks

SEED, N_FEATURES, N_CLASSES, N_SHOT = 0, 256, 10, 5
CASES = [(100_000, 1), (100_000, 2), (1_000_000, 1), (1_000_000, 2)]


def own_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def measure(path: Path, n: int, n_jobs: int) -> dict[str, float]:
    X = np.load(path, mmap_mode="r")[:n]
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(N_CLASSES, N_FEATURES))
    examples = np.repeat(centres, N_SHOT, 0) + rng.normal(size=(N_CLASSES * N_SHOT, N_FEATURES))
    few = FewShotClassifier().fit(examples, np.repeat(np.arange(N_CLASSES), N_SHOT))
    few.predict_proba(X[:100])
    before, peak, done = own_mib(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], own_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    found = in_chunks(few.predict_proba, X, n_jobs=n_jobs)
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    return {"n": n, "n_jobs": n_jobs, "seconds": seconds, "mib": peak[0] - before - found.nbytes / 2**20}


def main() -> None:
    from _common import save, table  # imports torch, which the measured processes must not

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        X = np.lib.format.open_memmap(path, "w+", np.float32, (max(n for n, _ in CASES), N_FEATURES))
        rng = np.random.default_rng(SEED + 1)
        for i in range(0, len(X), 50_000):
            X[i : i + 50_000] = rng.normal(size=(min(50_000, len(X) - i), N_FEATURES))
        X.flush()
        rows = []
        for case in CASES:
            command = [sys.executable, __file__, "--one", str(path), *map(str, case)]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    print(table(
        ["embeddings", "threads", "seconds", "MiB beside the result"],
        [[f"{r['n']:,}", str(r["n_jobs"]), f"{r['seconds']:.1f}", f"{r['mib']:.0f}"] for r in rows],
    ))  # fmt: skip
    sizes = {"n_features": N_FEATURES, "n_classes": N_CLASSES, "n_shot": N_SHOT}
    save("bulk", {**sizes, "cases": rows}, seed=SEED)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()

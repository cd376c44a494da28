"""Shared functions of the benchmarks: episodes, tables, and results with their provenance."""

import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirrorshot.paper.cells import save_result

RESULTS = Path(__file__).parent.parent / "results"
_STARTED = time.perf_counter()  # approximate start of the script


class Episode(NamedTuple):
    """A few-shot task: labelled support, and queries with their right labels."""

    support_x: NDArray[np.float64]
    support_y: NDArray[np.int64]
    query_x: NDArray[np.float64]
    query_y: NDArray[np.int64]


def sample_episodes(
    X: NDArray[np.float64],
    y: NDArray[np.int64],
    *,
    n_way: int,
    n_shot: int,
    n_query: int,
    n_episodes: int,
    seed: int,
) -> list[Episode]:
    """Draw episodes: classes, then examples of each class, both without replacement."""
    rng = np.random.default_rng(seed)
    rows_of = {label: np.flatnonzero(y == label) for label in np.unique(y)}
    episodes = []
    for _ in range(n_episodes):
        labels = rng.permutation(list(rows_of))[:n_way]
        drawn = [rng.permutation(rows_of[label])[: n_shot + n_query] for label in labels]
        support = np.concatenate([rows[:n_shot] for rows in drawn])
        query = np.concatenate([rows[n_shot:] for rows in drawn])
        counts = [len(rows) - n_shot for rows in drawn]
        episodes.append(
            Episode(X[support], np.repeat(np.arange(n_way), n_shot), X[query], np.repeat(np.arange(n_way), counts))
        )
    return episodes


def save(name: str, result: dict[str, Any], *, seed: int) -> None:
    """Write a result with commit, command, device, versions and wall time."""
    arguments = ["FOLDER" if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    command = " ".join(["python", str(Path(sys.argv[0])), *arguments])
    save_result(RESULTS / f"{name}.json", result, command=command, seed=seed, started=_STARTED)
    print(f"written: results/{name}.json")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])

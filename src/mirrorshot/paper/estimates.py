"""How long cells will take, from the times of those that have a result."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.cells import Cell, Result


class Estimate(NamedTuple):
    """Seconds of training and test, and the device that they were measured on; None and "" where nothing was.

    `is_own` is false where the times are those of other methods.
    """

    seconds: float | None
    device: str = ""
    is_own: bool = True


def estimate(cell: Cell, results: Sequence[Result], device: str) -> Estimate:
    """Estimate the time of a cell from the most similar results: of its row, else of its method, else of any.

    Results of this kind of device, GPU or CPU, come first. Those with another network or another kind of data say
    nothing, and neither do those of a resumed training, whose time is that of its last session.
    """
    config, kind = cell.config(), _kind(cell)
    similar = [r for r in results if _kind(r.cell) == kind and r.record["config"].get("backbone") == config.backbone]
    similar = [r for r in similar if _has_time(r)]
    is_here = [_is_cpu(r.record["device"]) == _is_cpu(device) for r in similar]
    for wanted in (True, False):
        group = [r for r, here in zip(similar, is_here, strict=True) if here == wanted]
        trained = _first(cell, group)
        if trained:
            rates = [r.record["training_time_s"] / r.record["config"]["n_episodes"] for r in trained]
            seconds = statistics.median(rates) * config.n_episodes + _testing(cell, group)
            is_own = trained[0].record["config"]["method"] == config.method
            return Estimate(seconds, trained[0].record["device"], is_own)
    return Estimate(None)


def _testing(cell: Cell, results: Sequence[Result]) -> float:
    """Seconds of the test, scaled to its number of tasks; 0 where none was measured on the device of the training."""
    tested = [r for r in results if "testing_time_s" in r.record and r.record.get("tested_with", {}).get("device")]
    tested = [r for r in tested if _is_cpu(r.record["tested_with"]["device"]) == _is_cpu(r.record["device"])]
    rates = [r.record["testing_time_s"] / n for r in _first(cell, tested) if (n := _n_tasks(r))]
    budget = BUDGETS[cell.budget]
    return statistics.median(rates) * budget.n_tasks * len(budget.seeds) if rates else 0.0


def _n_tasks(result: Result) -> int:
    protocol = result.evaluation["protocol"]
    n_tasks: int = protocol.get("n_tasks", 0) * len(protocol.get("seeds", ()))
    return n_tasks


def _first(cell: Cell, results: Sequence[Result]) -> list[Result]:
    """The most similar results."""

    def groups() -> Iterator[list[Result]]:
        same_row = [r for r in results if r.cell.row == cell.row]
        yield [r for r in same_row if (Path(r.cell.data).stem, r.cell.n_shot) == (Path(cell.data).stem, cell.n_shot)]
        yield same_row
        yield [r for r in results if r.record["config"]["method"] == cell.config().method]
        yield list(results)

    return next((group for group in groups() if group), [])


def _has_time(result: Result) -> bool:
    record = result.record
    return (
        {"training_time_s", "device"} <= set(record)
        and not record.get("is_resumed")
        and record["config"].get("n_episodes", 0) > 0
    )


def _kind(cell: Cell) -> tuple[str, bool]:
    """What the time of an episode depends on; a smoke test is mostly validation."""
    kind = DATASETS[cell.data].kind if cell.data in DATASETS else Path(cell.data).stem
    return kind, cell.budget == "smoke"


def _is_cpu(device: str) -> bool:
    return device.startswith("CPU")


def in_words(seconds: float) -> str:
    """A time to read.

    Example:
        >>> in_words(40), in_words(1000), in_words(20_000)
        ('40 s', '17 min', '5.6 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def announcement(cells: Sequence[Cell], results: Sequence[Result], device: str, n_jobs: int = 1) -> list[str]:
    """Lines that say how long each of the cells will take and all of them, and on which device that was measured."""
    found = {cell: estimate(cell, results, device) for cell in cells}
    sums: dict[str, list[float]] = {}
    for known in found.values():
        if known.seconds is not None:
            sums.setdefault(known.device, []).append(known.seconds)
    parts = [f"{len(times)} of them about {in_words(sum(times))} on {name}" for name, times in sums.items()]
    if n_unknown := sum(known.seconds is None for known in found.values()):
        parts.append(f"{n_unknown} of them were never measured")
    shared = f" {n_jobs} at a time share the device, and may save less than it seems." if n_jobs > 1 else ""
    total = f"{len(cells)} cells to run, one after the other: {'; '.join(parts)}.{shared} This device: {device}."
    return [*(f"{cell.name}: {_words(known)}" for cell, known in found.items()), total]


def _words(known: Estimate) -> str:
    if known.seconds is None:
        return "not measured"
    how = "about" if known.is_own else "by the times of other methods"
    return f"{how} {in_words(known.seconds)} on {known.device}"

"""What is asked for, and what came of it."""

from pathlib import Path
from typing import NamedTuple

from mirrorshot.reproduce.runner import Outcome, Places
from mirrorshot.reproduce.sheets import Sheet


class Request(NamedTuple):
    """What is asked for. Empty lists: the paper's, or glyphs with the budget "smoke".

    Attributes:
        target: a name of `TARGETS` but "tables".
        data: data sets.
        rows: rows or methods; patterns are allowed.
        shots: numbers of labelled items of a class.
        seeds: seeds of training.
        preset, budget: of the cells.
        changes: settings, `name=value`.
        tag: ending of the names of the results.
        places: folders of results and runs.
        output: folder of tables and figures.
        n_jobs: cells at a time.
        seconds: begin no further cell after this time.
        again: also what has a result.
        train_only: leave the tests for later.
    """

    target: str
    data: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (1,)
    preset: str = "paper"
    budget: str = "paper"
    changes: tuple[str, ...] = ()
    tag: str = ""
    places: Places = Places(Path("results"), Path("runs"))
    output: Path = Path("reproduction")
    n_jobs: int = 1
    seconds: float = float("inf")
    again: bool = False
    train_only: bool = False


class Reproduction(NamedTuple):
    """What came of it: tables, files, and what became of each cell."""

    sheets: list[Sheet]
    files: list[Path]
    outcomes: list[Outcome]

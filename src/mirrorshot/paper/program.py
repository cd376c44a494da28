"""Work of `mirrorshot reproduce`: check a request, run cells or experiments, write tables and figures."""

import fnmatch
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mirrorshot.data import loaders
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.data.decoding import Progress
from mirrorshot.paper import BUDGETS, TARGETS
from mirrorshot.paper.cell_run import Places, Say
from mirrorshot.paper.cells import Cell, budget_suffix, device_name, read_results, row_of
from mirrorshot.paper.details import SHEETS
from mirrorshot.paper.experiments import EXPERIMENTS, measured, sheet_of
from mirrorshot.paper.figure2 import figure_of_groups
from mirrorshot.paper.page import write_results
from mirrorshot.paper.published import ROWS, TABLE_1, known_rows
from mirrorshot.paper.runner import Outcome, announcement, plan, run_cells
from mirrorshot.paper.tables import Sheet, grouped, untagged_cells, write_sheets
from mirrorshot.training.config import FREE
from mirrorshot.training.presets import PRESETS
from mirrorshot.types import DataError, InvalidInputError
from mirrorshot.views import save_figure

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

CELL_SHEETS = {**SHEETS, "figure2": SHEETS["table2"]}
"""Functions that make tables of cells, by target."""
_OF_CELLS = {
    "rows": "--method",
    "changes": "--set",
    "tag": "--tag",
    "n_jobs": "--jobs",
    "seeds": "--seeds",
    "preset": "--preset",
    "train_only": "--train-only",
}  # fields of a request that experiments do not use, with their options
_OPTIONS = {"data": "--dataset", "n_shot": "--shots", "seed": "--seeds", "method": "--method"}  # for --set of a name


class Request(NamedTuple):
    """Arguments of `mirrorshot reproduce`.

    Empty `data`, `shots` and `rows` mean those of the paper; the data of the budget "smoke" are glyphs. `rows` may be
    patterns. `changes` are settings, `name=value`, and `tag` is the suffix of the names of their results. `output` is
    the folder of tables and figures, or the page of the target "tables". See `run_cells` for the rest.
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

    @property
    def name(self) -> str:
        """Return the name of its tables and figures."""
        return f"{self.target}{budget_suffix(self.budget)}{self.tag}"


class Reproduction(NamedTuple):
    """Tables, files, and the status of each cell."""

    sheets: list[Sheet]
    files: list[Path]
    outcomes: list[Outcome]

    @property
    def failures(self) -> str:
        """Return the failed cells in one line; empty if there are none."""
        failed = [outcome for outcome in self.outcomes if outcome.status == "failed"]
        return "; ".join(f"{outcome.cell.name}: {outcome.detail}" for outcome in failed)


def completed(request: Request) -> Request:
    """Check a request before any work; return it with its defaults filled in.

    Raises:
        InvalidInputError: a name does not exist, or options contradict each other.
        DataError: data are missing.
    """
    target, is_of_cells = TARGETS[request.target], request.target in CELL_SHEETS
    for option, value, known in (("budget", request.budget, BUDGETS), ("preset", request.preset, PRESETS)):
        if value not in known:
            raise InvalidInputError(f"Expected --{option} to be one of {', '.join(known)}, but got {value!r}.")
    if not is_of_cells:
        _refuse_options_of_others(request)
    data = request.data or (("glyphs",) * bool(target.data) if request.budget == "smoke" else target.data)
    request = request._replace(
        data=data,
        shots=request.shots or target.shots,
        tag=normal_tag(request.tag, request.changes),
        rows=tuple(_rows(request)) if is_of_cells else (),
    )
    _check_data(data)
    for cell in cells_of(request) if is_of_cells else ():
        cell.config()
    return request


def _refuse_options_of_others(request: Request) -> None:
    options = dict(_OF_CELLS)
    if not TARGETS[request.target].data:
        options |= {"data": "--dataset", "shots": "--shots"}
    if request.target == "tables":
        options["again"] = "--again"
    defaults = Request._field_defaults
    wrong = [option for name, option in options.items() if getattr(request, name) != defaults[name]]
    if wrong:
        raise InvalidInputError(
            f"Expected {request.target} without {wrong[0]}, which changes nothing there. Leave {wrong[0]} out."
        )


def normal_tag(tag: str, changes: Sequence[str]) -> str:
    """Check and return the suffix of names of results, which tells changed settings from the unchanged cell."""
    changed = sorted({text.partition("=")[0].strip() for text in changes} - set(FREE))
    own = next((name for name in changed if name in _OPTIONS), None)
    if own is not None:
        raise InvalidInputError(f"Expected {_OPTIONS[own]}, which the result is named after, but got --set {own}=...")
    if changed and not tag:
        raise InvalidInputError(
            f"Expected --tag with --set {changed[0]}=..., a name for results with other settings, for instance "
            "--tag try1."
        )
    if tag and not re.fullmatch(r"[\w.-]+", tag):
        raise InvalidInputError(f"Expected --tag to be letters, digits, '_', '-' and '.', but got {tag!r}.")
    tag = f"_{tag.removeprefix('_')}" if tag else ""
    if re.match(rf"_(seed\d|{'|'.join(BUDGETS)})", tag):
        raise InvalidInputError(f"Expected --tag to be no seed and no budget, but got {tag[1:]!r}.")
    return tag


def _rows(request: Request) -> list[str]:
    known = known_rows(request.target)
    if request.target == "figure2" and not request.rows:
        return ["mirror_gp"]
    chosen = rows_named(request.rows, known)
    if request.target == "table3" and not set(chosen) <= set(known):
        wrong = next(name for name in chosen if name not in known)
        raise InvalidInputError(f"Expected --method of table3 to be one of {', '.join(known)}, but got {wrong!r}.")
    return chosen


def rows_named(names: Sequence[str], known: Sequence[str] = tuple(ROWS)) -> list[str]:
    """Return distinct names of rows and methods, with patterns resolved; all known rows if `names` is empty.

    Example:
        >>> rows_named(["ove_gp*", "simpleshot"])
        ['ove_gp', 'ove_gp_pl', 'simpleshot']
    """
    chosen: list[str] = []
    for name in names:
        matched = fnmatch.filter(known, name)
        if not matched:
            row_of(name)
        chosen += matched or [name]
    return list(dict.fromkeys(chosen)) or list(known)


def _check_data(data: Sequence[str]) -> None:
    """Refuse data with missing files, without decoding any, and data of equal names, which would share results."""
    stems: dict[str, str] = {}
    for name in data:
        if name in DATASETS:
            loaders.check_present(name)
        elif not Path(name).exists():
            raise DataError(
                f"Expected --dataset to be one of {', '.join(DATASETS)} or a path, but {name!r} is neither; check the "
                "spelling."
            )
        other = stems.setdefault(Path(name).stem, name)
        if other != name:
            raise InvalidInputError(
                f"Expected --dataset to have different names, after which results are called, but got {other} and "
                f"{name}. Rename one, or run them one after the other with --results and --runs of their own."
            )


def cells_of(request: Request) -> list[Cell]:
    """Return the cells of a table; without named rows, cells that a column of the paper lacks are left out."""
    cells = [
        Cell(row, data, n_shot, request.preset, request.budget, seed, request.tag, request.changes)
        for data in request.data
        for n_shot in request.shots
        for row in request.rows
        for seed in request.seeds
    ]
    if list(request.rows) != known_rows(request.target):
        return cells
    in_paper = {column for row in TABLE_1.values() for column in row}
    return [cell for cell in cells if cell[1:3] not in in_paper or cell[1:3] in TABLE_1.get(cell.row, in_paper)]


def reproduce(request: Request, *, say: Say, progress: Callable[[str], Progress] | None = None) -> Reproduction:
    """Run cells or experiments that have no result yet, then write their tables and figures."""
    request = completed(request)
    if request.target == "tables":
        return Reproduction([], write_results(request.places.results, request.output), [])
    if request.target in EXPERIMENTS:
        return _measure(request, say)
    cells, folder, outcomes = cells_of(request), request.places.results, []
    known = read_results(folder)  # damaged results are reported before hours of work
    if request.target == "figure2":
        plan(cells, request.places)
    else:
        waiting = plan(cells, request.places, again=request.again)
        for line in announcement(waiting, known, device_name(), request.n_jobs) if waiting else ():
            say(line)
        options = {name: getattr(request, name) for name in ("n_jobs", "seconds", "again", "train_only")}
        outcomes = run_cells(cells, request.places, say=say, progress=progress, **options)
    results, files = read_results(folder), []
    if request.target == "figure2":
        groups = grouped(cells, results)
        files = write_figure(figure_of_groups(groups, folder), request.name, request.output)
    else:
        groups = grouped([*cells, *untagged_cells(cells, results)], results)
    sheets = CELL_SHEETS[request.target](groups)
    return Reproduction(sheets, files + write_sheets(request.name, sheets, request.output), outcomes)


def _measure(request: Request, say: Say) -> Reproduction:
    sheets, files, draw = [], [], EXPERIMENTS[request.target].figure
    for data, n_shot in [(data, n_shot) for data in request.data for n_shot in request.shots] or [("", 0)]:
        path, record = measured(
            request.target, data, n_shot, request.budget, request.places.results, again=request.again, say=say
        )
        sheets.append(sheet_of(request.target, record, path))
        files += write_figure(draw(record), path.stem, request.output) if draw else []
    return Reproduction(sheets, files + write_sheets(request.name, sheets, request.output), [])


def write_figure(figure: "matplotlib.figure.Figure", name: str, folder: Path) -> list[Path]:
    """Write a figure as SVG and PNG; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}{suffix}" for suffix in (".svg", ".png")]
    for path in paths:
        save_figure(figure, path)
    return paths

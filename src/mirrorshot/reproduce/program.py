"""From what is asked for to tables, figures and files: what `mirrorshot reproduce` does."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mirrorshot.data import loaders
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.presets import PRESETS
from mirrorshot.reproduce.accuracy import accuracy_sheets
from mirrorshot.reproduce.calibration import calibration_sheets
from mirrorshot.reproduce.cells import Cell, normal_tag, read_results, rows_named
from mirrorshot.reproduce.departures import departures_sheet, measure_departures
from mirrorshot.reproduce.figures import calibration_figure, inner_loop_figure, outer_loop_figure, write_figure
from mirrorshot.reproduce.inner_loop import inner_loop_sheet, measure_inner_loop
from mirrorshot.reproduce.outer_loop import measure_outer_loop, outer_loop_sheet
from mirrorshot.reproduce.provenance import device_name, read_result, save_result
from mirrorshot.reproduce.published import TABLE_1, known_rows
from mirrorshot.reproduce.runner import Outcome, Places, Progress, Say, plan, run_cells
from mirrorshot.reproduce.sheets import Record, Sheet, write_sheets
from mirrorshot.reproduce.studies import study_sheets
from mirrorshot.reproduce.tables import Group, column_title, grouped, untagged_cells
from mirrorshot.reproduce.targets import BUDGETS, TARGETS
from mirrorshot.reproduce.timing import measure_times, timing_sheet
from mirrorshot.types import DataError, InvalidInputError

CELL_TARGETS = ("table1", "table2", "table3", "figure2")
MEASURED_TARGETS = ("table4", "figure3", "figure4", "departures")
CELL_SHEETS = {"table1": accuracy_sheets, "table2": calibration_sheets, "table3": study_sheets}
"""What makes the tables of results of cells."""


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


def completed(request: Request) -> Request:
    """The request with its defaults filled in, wholly checked; nothing is read but what is there.

    Raises:
        InvalidInputError: a name does not exist, or options contradict one another.
        DataError: data are missing. The message says how to get them.
    """
    target = TARGETS[request.target]
    if request.budget not in BUDGETS:
        raise InvalidInputError(f"Expected --budget to be one of {', '.join(BUDGETS)}, but got {request.budget!r}.")
    if request.preset not in PRESETS:
        raise InvalidInputError(f"Expected --preset to be one of {', '.join(PRESETS)}, but got {request.preset!r}.")
    if request.target not in CELL_TARGETS:
        _refuse_options_of_cells(request)
    data = request.data or (("glyphs",) * bool(target.data) if request.budget == "smoke" else target.data)
    request = request._replace(
        data=data, shots=request.shots or target.shots, tag=normal_tag(request.tag, request.changes),
        rows=tuple(_rows(request)) if request.target in CELL_TARGETS else (),
    )  # fmt: skip
    for name in data:
        check_data(name)
    if request.target in CELL_TARGETS:
        for cell in cells_of(request):
            cell.config()
    _check_names_differ(request)
    return request


def _check_names_differ(request: Request) -> None:
    """Data of one name would share their results: `one/data` and `two/data` do."""
    stems: dict[str, str] = {}
    for name in request.data:
        other = stems.setdefault(Path(name).stem, name)
        if other != name:
            raise InvalidInputError(
                f"Expected --dataset to have different names, after which results are called, but got {other} and "
                f"{name}. Rename one, or run them one after the other with --results and --runs of their own."
            )


def _refuse_options_of_cells(request: Request) -> None:
    given = {
        "--method": request.rows, "--set": request.changes, "--tag": request.tag, "--jobs": request.n_jobs != 1,
        "--seeds": request.seeds != (1,), "--preset": request.preset != "paper", "--train-only": request.train_only,
    }  # fmt: skip
    wrong = [name for name, value in given.items() if value]
    if request.target == "departures" and (request.data or request.shots):
        name = "--dataset" if request.data else "--shots"
        raise InvalidInputError(f"Expected departures without {name}, since it draws its own tasks, but got it.")
    if wrong:
        raise InvalidInputError(
            f"Expected {request.target} without {wrong[0]}, which is for {', '.join(CELL_TARGETS)}, but got it."
        )


def _rows(request: Request) -> list[str]:
    known = known_rows(request.target)
    if request.target == "figure2" and not request.rows:
        return ["mirror_gp"]
    chosen = rows_named(request.rows, known)
    if request.target == "table3" and not set(chosen) <= set(known):
        wrong = next(name for name in chosen if name not in known)
        raise InvalidInputError(f"Expected --method of table3 to be one of {', '.join(known)}, but got {wrong!r}.")
    return chosen


def check_data(name: str) -> None:
    """Raise `DataError` if the files of a data set are not there; nothing is decoded."""
    if name in DATASETS:
        loaders.check_present(name)
    elif not Path(name).exists():
        raise DataError(
            f"Expected --dataset to be one of {', '.join(DATASETS)} or a path, but {name!r} is neither; check the "
            "spelling."
        )


def cells_of(request: Request) -> list[Cell]:
    """The cells of a table; those that the paper leaves out are left out, unless their rows are named."""
    cells = [
        Cell(row, data, n_shot, request.preset, request.budget, seed, request.tag, request.changes)
        for data in request.data
        for n_shot in request.shots
        for row in request.rows
        for seed in request.seeds
    ]
    is_whole = list(request.rows) == known_rows(request.target)
    return [cell for cell in cells if not (is_whole and _is_left_out(cell))]


def _is_left_out(cell: Cell) -> bool:
    """Whether the paper has this data set for other rows but not for this one."""
    in_paper = any((cell.data, cell.n_shot) in row for row in TABLE_1.values())
    return in_paper and cell.row in TABLE_1 and (cell.data, cell.n_shot) not in TABLE_1[cell.row]


def reproduce(request: Request, *, say: Say, progress: Callable[[str], Progress] | None = None) -> Reproduction:
    """Run what has no result yet, then make tables and figures of all that has one.

    Args:
        request: what is asked for; see `completed`.
        say: told what goes on.
        progress: makes a progress bar; None: a line every ten seconds.
    """
    request = completed(request)
    if request.target in MEASURED_TARGETS:
        return _measured(request, say)
    cells = cells_of(request)
    read_results(request.places.results)  # one that is damaged is better known before hours of work
    if request.target == "figure2":
        outcomes = []
        plan(cells, request.places)
    else:
        outcomes = run_cells(
            cells, request.places, say=say, n_jobs=request.n_jobs, seconds=request.seconds, again=request.again,
            train_only=request.train_only, progress=progress,
        )  # fmt: skip
    results = read_results(request.places.results)
    name = f"{request.target}{'' if request.budget == 'paper' else f'_{request.budget}'}{request.tag}"
    if request.target == "figure2":
        return _reliability(grouped(cells, results), request, name)
    sheets = CELL_SHEETS[request.target](grouped([*cells, *untagged_cells(cells, results)], results))
    return Reproduction(sheets, write_sheets(name, sheets, request.output), outcomes)


def _reliability(groups: Sequence[Group], request: Request, name: str) -> Reproduction:
    found, missing = {}, []
    for group in groups:
        if group.first and group.first.evaluation["raw"].get("bins"):
            found[f"{group.title}, {column_title(group.cell.data, group.cell.n_shot)}"] = group.first
        else:
            missing.append(group.cell)
    if not found:
        first = missing[0]
        raise DataError(
            f"Expected results with reliability bins in {request.places.results}, but got none for {first.name}. Run: "
            f"{first.command('table2')}{' --again' if (request.places.results / f'{first.name}.json').exists() else ''}"
        )
    files = write_figure(calibration_figure(found), name, request.output)
    sheets = calibration_sheets(groups)
    return Reproduction(sheets, files + write_sheets(name, sheets, request.output), [])


def _measured(request: Request, say: Say) -> Reproduction:
    """Experiments that are one result for each data set and number of shots."""
    sheets, files = [], []
    for name, data, n_shot in measured_names(request):
        path = request.places.results / f"{name}.json"
        if path.exists() and not request.again:
            _check_is_of(path, data)
            say(f"{name}: has a result")
        else:
            say(f"{name}: begins")
            started = time.perf_counter()
            record = _measure(request, data, n_shot)
            command = f"mirrorshot reproduce {request.target}"
            command += f" --dataset {data} --shots {n_shot}" if data else ""
            command += "" if request.budget == "paper" else f" --budget {request.budget}"
            save_result(path, record, command=command, seed=1, started=started)
        record = read_result(path)
        sheets.append(measured_sheet(request.target, record, path))
        figure = {"figure3": inner_loop_figure, "figure4": outer_loop_figure}.get(request.target)
        files += write_figure(figure(record), name, request.output) if figure else []
    budget = "" if request.budget == "paper" else f"_{request.budget}"
    return Reproduction(sheets, files + write_sheets(f"{request.target}{budget}", sheets, request.output), [])


def _check_is_of(path: Path, data: str) -> None:
    """Refuse a result of other data with the same name."""
    stored = read_result(path).get("data", data)
    if data and stored != data:
        raise InvalidInputError(
            f"Expected {path} to be of --dataset {data}, but it is of {stored}. Give --results another folder, or "
            "--again to run it anew."
        )


def measured_names(request: Request) -> list[tuple[str, str, int]]:
    """Names of the results of an experiment, with data set and number of shots."""
    budget = "" if request.budget == "paper" else f"_{request.budget}"
    if request.target == "departures":
        return [(f"departures{budget}", "", 0)]
    device = f"_{'cpu' if device_name().startswith('CPU') else 'gpu'}" if request.target == "table4" else ""
    return [
        (f"{request.target}_{Path(data).stem}_{n_shot}shot{device}{budget}", data, n_shot)
        for data in request.data
        for n_shot in request.shots
    ]


def _measure(request: Request, data: str, n_shot: int) -> Record:
    is_smoke, is_short = request.budget == "smoke", request.budget == "short"
    if request.target == "departures":
        return measure_departures()
    if request.target == "table4":
        return measure_times(data, n_shot, n_tasks=3 if is_smoke else 20 if is_short else 100)
    if request.target == "figure3":
        if is_smoke:
            return measure_inner_loop(data, n_shot, n_steps=4, n_fresh=1, n_known=4, n_repeats=1)
        return measure_inner_loop(data, n_shot)
    sizes = (3, 6, 2) if is_smoke else (30, 30, 5) if is_short else (30, 300, 20)
    return measure_outer_loop(data, n_shot, n_iterations=sizes[0], n_fresh=sizes[1], n_held_out=sizes[2])


def measured_sheet(target: str, record: Record, path: Path) -> Sheet:
    """The table of an experiment.

    Raises:
        DataError: the record, which was read from `path`, is not whole.
    """
    make = {"table4": timing_sheet, "figure3": inner_loop_sheet, "figure4": outer_loop_sheet}
    try:
        return make.get(target, departures_sheet)(record)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataError(
            f"Expected {path} to be a result of {target}, but it is not whole: {type(error).__name__} {error}. Move it "
            "away, or run the command with --again."
        ) from error


def failures(outcomes: Sequence[Outcome]) -> str:
    """What failed, in one line; empty if nothing did."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    return "; ".join(f"{outcome.cell.name}: {outcome.detail}" for outcome in failed)

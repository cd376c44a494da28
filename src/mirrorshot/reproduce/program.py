"""From what is asked for to tables, figures and files: what `mirrorshot reproduce` does."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mirrorshot.data import loaders
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.presets import PRESETS
from mirrorshot.reproduce.accuracy import accuracy_sheets
from mirrorshot.reproduce.calibration import calibration_sheets
from mirrorshot.reproduce.cells import Cell, normal_tag, read_results, rows_named
from mirrorshot.reproduce.figures import calibration_figure, write_figure
from mirrorshot.reproduce.measured import MEASURED_TARGETS, measure
from mirrorshot.reproduce.published import TABLE_1, known_rows
from mirrorshot.reproduce.request import Reproduction, Request
from mirrorshot.reproduce.runner import Outcome, Progress, Say, plan, run_cells
from mirrorshot.reproduce.sheets import write_sheets
from mirrorshot.reproduce.studies import study_sheets
from mirrorshot.reproduce.tables import Group, column_title, grouped, untagged_cells
from mirrorshot.reproduce.targets import BUDGETS, TARGETS
from mirrorshot.types import DataError, InvalidInputError

CELL_TARGETS = ("table1", "table2", "table3", "figure2")
CELL_SHEETS = {"table1": accuracy_sheets, "table2": calibration_sheets, "table3": study_sheets}
"""What makes the tables of results of cells."""


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
        return measure(request, say)
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


def failures(outcomes: Sequence[Outcome]) -> str:
    """What failed, in one line; empty if nothing did."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    return "; ".join(f"{outcome.cell.name}: {outcome.detail}" for outcome in failed)

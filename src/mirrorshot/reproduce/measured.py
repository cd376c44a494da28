"""Experiments that are one result for each data set and number of shots: table 4, figures 3 and 4, departures."""

import time
from pathlib import Path

from mirrorshot.reproduce.departures import departures_sheet, measure_departures
from mirrorshot.reproduce.figures import inner_loop_figure, outer_loop_figure, write_figure
from mirrorshot.reproduce.inner_loop import inner_loop_sheet, measure_inner_loop
from mirrorshot.reproduce.outer_loop import measure_outer_loop, outer_loop_sheet
from mirrorshot.reproduce.provenance import device_name, read_result, save_result
from mirrorshot.reproduce.request import Reproduction, Request
from mirrorshot.reproduce.runner import Say
from mirrorshot.reproduce.sheets import Record, Sheet, write_sheets
from mirrorshot.reproduce.timing import measure_times, timing_sheet
from mirrorshot.types import DataError, InvalidInputError

MEASURED_TARGETS = ("table4", "figure3", "figure4", "departures")


def measure(request: Request, say: Say) -> Reproduction:
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

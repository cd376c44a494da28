"""Experiments with one result for each data set and number of shots: table 4, figures 3 and 4, departures."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrorshot.paper import departures, figure3, figure4, table4
from mirrorshot.paper.cell_run import Say
from mirrorshot.paper.cells import budget_suffix, device_name, read_result, save_result
from mirrorshot.paper.tables import Record, Sheet
from mirrorshot.types import DataError, InvalidInputError

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure


class Experiment(NamedTuple):
    """An experiment: function of data set and number of shots, its options by budget, table and figure."""

    measure: Callable[..., Record]
    sizes: dict[str, dict[str, Any]]
    sheet: Callable[[Record], Sheet]
    figure: "Callable[[Record], matplotlib.figure.Figure] | None" = None


EXPERIMENTS: dict[str, Experiment] = {
    "table4": Experiment(table4.measure_times, table4.SIZES, table4.timing_sheet),
    "figure3": Experiment(
        figure3.measure_inner_loop, figure3.SIZES, figure3.inner_loop_sheet, figure3.inner_loop_figure
    ),
    "figure4": Experiment(
        figure4.measure_outer_loop, figure4.SIZES, figure4.outer_loop_sheet, figure4.outer_loop_figure
    ),
    "departures": Experiment(departures.measure_departures, {}, departures.departures_sheet),
}


def measured(
    target: str, data: str, n_shot: int, budget: str, folder: Path, *, again: bool, say: Say
) -> tuple[Path, Record]:
    """Measure unless there is a result; return the file of the result and its content."""
    name = target + (f"_{Path(data).stem}_{n_shot}shot" if data else "")
    name += f"_{'cpu' if device_name().startswith('CPU') else 'gpu'}" if target == "table4" else ""
    path = folder / f"{name}{budget_suffix(budget)}.json"
    if path.exists() and not again:
        record = read_result(path)
        stored = record.get("data", data)
        if data and stored != data:
            raise InvalidInputError(
                f"Expected {path} to be of --dataset {data}, but it is of {stored}. Give --results another folder, or "
                "--again to run it anew."
            )
        say(f"{path.stem}: has a result")
        return path, record
    say(f"{path.stem}: begins")
    started, experiment = time.perf_counter(), EXPERIMENTS[target]
    record = experiment.measure(*((data, n_shot) if data else ()), **experiment.sizes.get(budget, {}))
    command = f"mirrorshot reproduce {target}"
    command += f" --dataset {data} --shots {n_shot}" if data else ""
    command += "" if budget == "paper" else f" --budget {budget}"
    save_result(path, record, command=command, seed=1, started=started)
    return path, read_result(path)


def sheet_of(target: str, record: Record, path: Path) -> Sheet:
    """Return the table of an experiment; raise `DataError` if the record, read from `path`, is incomplete."""
    try:
        return EXPERIMENTS[target].sheet(record)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataError(
            f"Expected {path} to be a result of {target}, but it is not whole: {type(error).__name__} {error}. Move it "
            "away, or run the command with --again."
        ) from error

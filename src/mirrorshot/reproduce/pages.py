"""docs/results.md from the results that exist."""

import os
from collections.abc import Sequence
from pathlib import Path

from mirrorshot.checkpoint import write_atomically
from mirrorshot.plotting import save_figure
from mirrorshot.reproduce.cells import Cell, Result, read_results
from mirrorshot.reproduce.figures import inner_loop_figure, outer_loop_figure
from mirrorshot.reproduce.program import MEASURED_TARGETS, known_rows, measured_sheet
from mirrorshot.reproduce.provenance import read_result
from mirrorshot.reproduce.published import DATA, TABLE_1
from mirrorshot.reproduce.sheets import Sheet, markdown
from mirrorshot.reproduce.tables import GENERAL_NOTES, Group, accuracy_sheets, calibration_sheets, grouped, study_sheets
from mirrorshot.reproduce.targets import TARGETS
from mirrorshot.types import DataError

_INTRO = """# Results

Written by `mirrorshot reproduce tables` from the files in [`results/`]({results}); do not edit. Numbers in columns
named "paper" are those of T. Ke, H. Cao and F. Zhou, *Accelerating Convergence in Bayesian Few-Shot Classification*,
ICML 2024; all others were measured by the command in the file of the result. What differs from the paper's set-up
stands below each table. [paper.md](paper.md) has what we found on the way.
"""
_HEADS = {
    "table1": "Table 1: accuracy",
    "table2": "Table 2: calibration",
    "table3": "Table 3: step size, kernel, number of steps",
    "table4": "Table 4: running time",
    "figure3": "Figure 3: the inner loop",
    "figure4": "Figure 4: the outer loop",
}


def write_results_page(results: Path, page: Path) -> list[Path]:
    """Write the page, and its pictures into the folder `figures` beside it; returns their names.

    Raises:
        DataError: there is no result.
    """
    if not any(results.glob("*.json")):
        raise DataError(
            f"Expected results in {results}, but there are none. Run for instance: mirrorshot reproduce departures"
        )
    found = read_results(results)
    parts, pictures = [_INTRO.format(results=os.path.relpath(results, page.parent))], []
    for target, head in _HEADS.items():
        parts.append(f"## {head}\n")
        if target in MEASURED_TARGETS:
            text, drawn = _experiments(target, results, page.parent / "figures")
            pictures += drawn
        else:
            text = _cells(target, found)
        parts.append(text or f"Not run: `mirrorshot reproduce {target}`\n")
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, "\n".join(parts).encode())
    return [page, *pictures]


def _cells(target: str, found: Sequence[Result]) -> str:
    """The tables of a target, data set by data set; rows that were not run are one line with their command."""
    make = {"table1": accuracy_sheets, "table2": calibration_sheets, "table3": study_sheets}[target]
    text: list[str] = []
    general: list[str] = []
    data_sets = DATA if target != "table3" else ("cub",)
    others = [name for name in ("mini_imagenet",) if any(result.cell.data == name for result in found)]
    for data in (*data_sets, *(others if target != "table3" else ())):
        for n_shot in TARGETS[target].shots:
            groups = grouped(_columns(target, data, n_shot, found), found)
            for sheet in make(groups, show_missing=False):
                general += [note for note in sheet.notes if note in GENERAL_NOTES]
                kept = sheet._replace(notes=[note for note in sheet.notes if note not in GENERAL_NOTES])
                text.append(markdown(_traced(kept, groups), level=3))
    return "\n".join([f"{note}\n" for note in dict.fromkeys(general)] + text)


def _columns(target: str, data: str, n_shot: int, found: Sequence[Result]) -> list[Cell]:
    """The cells of the paper, then those that were run with other settings."""
    cells = [Cell(row, data, n_shot) for row in known_rows(target)]
    cells = [cell for cell in cells if target == "table3" or _is_in_paper(cell)] or cells
    more = [result.cell._replace(seed=1) for result in found if result.cell.budget != "smoke"]
    more = [cell for cell in more if (cell.data, cell.n_shot) == (data, n_shot)]
    return list(dict.fromkeys([*cells, *(more if target != "table3" else ())]))


def _is_in_paper(cell: Cell) -> bool:
    return (cell.data, cell.n_shot) in TABLE_1.get(cell.row, {})


def _traced(sheet: Sheet, groups: Sequence[Group]) -> Sheet:
    """The table with the files, devices and commits of its results."""
    rows = {record["row"] for record in sheet.records}
    used = [result for group in groups if group.cell.row in rows for result in group.results]
    traces = [
        f"`{result.path.name}` ({result.record['device']}, commit {result.record['commit'][:7]}, "
        f"{result.record['wall_time_s']:.0f} s)"
        for result in used
    ]
    return sheet._replace(notes=[*sheet.notes, *(["Results: " + ", ".join(traces) + "."] if traces else [])])


def _experiments(target: str, results: Path, folder: Path) -> tuple[str, list[Path]]:
    text, pictures = [], []
    for path in sorted(results.glob(f"{target}_*.json")):
        if "_smoke" in path.stem:
            continue
        record = read_result(path)
        sheet = measured_sheet(target, record)
        sheet.notes.append(
            f"Result: `{path.name}` ({record['device']}, commit {record['commit'][:7]}); repeat it with "
            f"`{record['command']}`."
        )
        draw = {"figure3": inner_loop_figure, "figure4": outer_loop_figure}.get(target)
        if draw:
            folder.mkdir(parents=True, exist_ok=True)
            picture = folder / f"{path.stem}.svg"
            save_figure(draw(record), picture)
            pictures.append(picture)
            sheet.notes.insert(0, f"![{sheet.title}](figures/{picture.name})")
        text.append(markdown(sheet, level=3))
    return "\n".join(text), pictures

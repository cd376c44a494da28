"""docs/results_details.md: tables and figures of all existing results, with their commands and files."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.paper import TARGETS
from mirrorshot.paper.cells import Cell, Result, read_result
from mirrorshot.paper.experiments import EXPERIMENTS, sheet_of
from mirrorshot.paper.figure2 import calibration_figure
from mirrorshot.paper.published import DATA, ROWS, STUDIES, rows_in_paper
from mirrorshot.paper.table1 import accuracy_sheets
from mirrorshot.paper.table2 import calibration_sheets
from mirrorshot.paper.table3 import study_sheets
from mirrorshot.paper.tables import Group, column_title, grouped, markdown
from mirrorshot.training.presets import PRESETS

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure

Figures = dict[str, Callable[[], "matplotlib.figure.Figure"]]
"""Functions that draw figures, by file name."""

_INTRO = """# Results in detail

Written by `mirrorshot reproduce tables` from the files in [`results/`]({results}); do not edit. [{page}]({page}) has
tables 1 and 2 at a glance. Numbers in columns named "paper" are those of T. Ke, H. Cao and F. Zhou, *Accelerating
Convergence in Bayesian Few-Shot Classification*, ICML 2024; all others were measured by the command in the file of the
result, and the [last section](#result-files) lists these files.
"""
_HEADS = {
    "table1": "Table 1: accuracy",
    "table2": "Table 2: calibration",
    "table3": "Table 3: step size, kernel, number of steps",
    "table4": "Table 4: running time",
    "figure2": "Figure 2: reliability diagrams",
    "figure3": "Figure 3: the inner loop",
    "figure4": "Figure 4: the outer loop",
}
SHEETS = {"table1": accuracy_sheets, "table2": calibration_sheets, "table3": study_sheets}
"""Functions that make tables of cells, by target."""
_RELIABILITY = (
    "MD-BFSC with the preset `{preset}`: how often predictions of a confidence are right, as predicted (left) and at "
    "one temperature, fitted on validation tasks (right). 5 shots, as in the paper, or 1 shot where the bins of 5 are "
    "not stored; data sets without stored bins are left out."
)


def details_page(results: Path, page: Path, found: Sequence[Result], marked: Sequence[str]) -> tuple[str, Figures]:
    """Return the text of the details page and its figures; `marked` are the settings of marked numbers in `page`."""
    figures: Figures = {}
    said: set[str] = set()
    parts = [_INTRO.format(results=os.path.relpath(results, page.parent), page=page.name)]
    if marked:
        listed = "".join(f"{i}. {text}.\n" for i, text in enumerate(marked, 1))
        parts.append(f"## Settings of marked numbers\n\n{listed}")
    for target, head in _HEADS.items():
        if target in SHEETS:
            text = _tables(target, found, said)
        elif target == "figure2":
            text = _reliability(found, figures)
        else:
            text = _experiments(target, results, figures)
        parts.append(f"## {head}\n\n" + (text or f"Not run: `mirrorshot reproduce {target}`\n"))
    parts.append("## Result files\n\n" + _files(found))
    return "\n".join(parts), figures


def is_in_tables(cell: Cell) -> bool:
    """Return whether a cell is in tables 1 and 2; the other cells are variants of MD-BFSC in table 3."""
    return cell.row in ROWS or not any(cell.row in rows for rows in STUDIES.values())


def _tables(target: str, found: Sequence[Result], said: set[str]) -> str:
    """Return the tables of a target; general notes are printed once per page, before the first table."""
    others = [data for data in DATASETS if data not in DATA and any(result.cell.data == data for result in found)]
    sheets = []
    for data in (*DATA, *others) if target != "table3" else ("cub",):
        for n_shot in TARGETS[target].shots:
            groups = grouped(_column(target, data, n_shot, found), found)
            sheets += SHEETS[target](groups, show_missing=False)
    general = dict.fromkeys(note for sheet in sheets for note in sheet.general if note not in said)
    said.update(general)
    listed = "".join(f"- {note}\n" for note in general)
    return "\n".join([listed] * bool(listed) + [markdown(sheet._replace(general=()), level=3) for sheet in sheets])


def _column(target: str, data: str, n_shot: int, found: Sequence[Result]) -> list[Cell]:
    """Return the cells of the paper, then those with other settings."""
    cells = [Cell(row, data, n_shot) for row in rows_in_paper(target, data, n_shot)]
    more = [result.cell for result in found if is_in_tables(result.cell) == (target != "table3")]
    more = [cell._replace(seed=1) for cell in more if (cell.data, cell.n_shot) == (data, n_shot)]
    return list(dict.fromkeys([*cells, *more]))


def _reliability(found: Sequence[Result], figures: Figures) -> str:
    """Return a figure of MD-BFSC for each preset, with a row per data set and at most one other setting."""
    text = []
    for preset in PRESETS:
        best = {data: _best_bins(found, data, preset) for data in DATA}
        shown = {column_title(data, result.cell.n_shot): result for data, result in best.items() if result}
        if shown:
            name, title = f"figure2_{preset}.svg", f"Reliability: preset {preset}"
            figures[name] = functools.partial(calibration_figure, shown)
            files = ", ".join(f"`{result.path.name}`" for result in shown.values())
            text.append(f"### {title}\n\n![{title}](figures/{name})\n")
            text.append(f"{_RELIABILITY.format(preset=preset)} Results: {files}.\n")
    return "\n".join(text)


def _best_bins(found: Sequence[Result], data: str, preset: str) -> Result | None:
    """Return the result of MD-BFSC with stored bins: 5 shots first, then the fewest other settings."""
    wanted = ("mirror_gp", data, preset, "paper", 1)
    stored = [r for r in found if (*r.cell[:2], *r.cell[3:6]) == wanted and r.evaluation["raw"].get("bins")]
    n_changes = {r.path: len(Group(r.cell, [r]).changes) for r in stored}
    usable = [r for r in stored if n_changes[r.path] < 2]
    return min(usable, key=lambda r: (r.cell.n_shot != 5, n_changes[r.path]), default=None)


def _experiments(target: str, results: Path, figures: Figures) -> str:
    text = []
    for path in sorted(results.glob(f"{target}_*.json")):
        if "_smoke" in path.stem:
            continue
        record, draw = read_result(path), EXPERIMENTS[target].figure
        sheet = sheet_of(target, record, path)
        if draw:
            figures[f"{path.stem}.svg"] = functools.partial(draw, record)
            sheet.notes.insert(0, f"![{sheet.title}](figures/{path.stem}.svg)")
        sheet.notes.append(
            f"Result: `{path.name}` ({record['device']}, commit {record['commit'][:7]}); repeat it with "
            f"`{record['command']}`."
        )
        text.append(markdown(sheet, level=3))
    return "\n".join(text)


def _files(found: Sequence[Result]) -> str:
    by_note: dict[str, list[str]] = {}
    for result in found:
        record = result.record
        trace = f"{record['device']}, {record['commit'][:7]}, {record['wall_time_s']:.0f} s"
        by_note.setdefault(record.get("note", ""), []).append(f"- `{result.path.name}`: {trace}\n")
    text = ["File, device, commit, and seconds for training and test. Figures name their files themselves.\n"]
    for note, lines in sorted(by_note.items()):
        text += [f"{note}\n"] * bool(note) + ["".join(lines)]
    return "\n".join(text)

"""docs/results.md from the results that exist."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from mirrorshot.checkpoint import write_atomically
from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.presets import PRESETS
from mirrorshot.reproduce.cells import Cell, Result, read_results
from mirrorshot.reproduce.figures import calibration_figure, inner_loop_figure, outer_loop_figure
from mirrorshot.reproduce.measured import measured_sheet
from mirrorshot.reproduce.overview import accuracy_overview, calibration_overview
from mirrorshot.reproduce.program import CELL_SHEETS
from mirrorshot.reproduce.provenance import read_result
from mirrorshot.reproduce.published import DATA, ROWS, STUDIES, rows_in_paper
from mirrorshot.reproduce.sheets import markdown
from mirrorshot.reproduce.tables import Group, column_title, grouped
from mirrorshot.reproduce.targets import TARGETS
from mirrorshot.types import DataError
from mirrorshot.views import save_figure

_INTRO = """# Results

Written by `mirrorshot reproduce tables` from the files in [`results/`]({results}); do not edit. Numbers in brackets and
in columns named "paper" are those of T. Ke, H. Cao and F. Zhou, *Accelerating Convergence in Bayesian Few-Shot
Classification*, ICML 2024; all others were measured by the command in the file of the result, and the
[last section](#result-files) lists these files. [paper.md](paper.md) has what we found on the way.
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
_RELIABILITY = (
    "MD-BFSC with the preset `{preset}`: how often predictions of a confidence are right, as predicted (left) and at "
    "one temperature, fitted on validation tasks (right). 5 shots, as in the paper, or 1 shot where the bins of 5 are "
    "not stored; data sets without stored bins are left out."
)


def write_results_page(results: Path, page: Path) -> list[Path]:
    """Write the page, and its pictures into the folder `figures` beside it; returns their names.

    Raises:
        DataError: there is no result.
    """
    if not any(results.glob("*.json")):
        raise DataError(
            f"Expected results in {results}, but there are none. Run for instance: mirrorshot reproduce departures"
        )
    found = [result for result in read_results(results) if result.cell.budget != "smoke"]
    parts = [_INTRO.format(results=os.path.relpath(results, page.parent)), _overview(found)]
    pictures: list[Path] = []
    said: set[str] = set()
    for target, head in _HEADS.items():
        if target in CELL_SHEETS:
            text = _cells(target, found, said)
        elif target == "figure2":
            text = _reliability(found, page.parent / "figures", pictures)
        else:
            text = _experiments(target, results, page.parent / "figures", pictures)
        parts.append(f"## {head}\n\n" + (text or f"Not run: `mirrorshot reproduce {target}`\n"))
    parts.append("## Result files\n\n" + _files(found))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, _unbroken("\n".join(part for part in parts if part)).encode())
    return [page, *pictures]


def _unbroken(page: str) -> str:
    """The page with spaces that do not break a line within the numbers of its tables."""
    within = re.compile(r"(?<=\d) ([±/]) (?=\d)|(?<=\d\.\d\d) (\()(?=\d)")
    lines = page.split("\n")
    return "\n".join(within.sub(_joined, line) if line.startswith("| ") else line for line in lines)


def _joined(found: re.Match[str]) -> str:
    return found[0].replace(" ", "\N{NO-BREAK SPACE}")


def _overview(found: Sequence[Result]) -> str:
    groups = grouped([result.cell for result in found if _is_in_tables(result.cell)], found)
    sheets = [sheet for sheet in (accuracy_overview(groups), calibration_overview(groups)) if sheet]
    text = "\n".join(markdown(sheet, level=3) for sheet in sheets)
    return f"## At a glance\n\n{text}" if sheets else ""


def _is_in_tables(cell: Cell) -> bool:
    """Whether it is a cell of tables 1 and 2; the others are variants of MD-BFSC in table 3."""
    return cell.row in ROWS or not any(cell.row in rows for rows in STUDIES.values())


def _cells(target: str, found: Sequence[Result], said: set[str]) -> str:
    """The tables of a target; what holds for many of them stands once on the page, before the first one."""
    others = [data for data in DATASETS if data not in DATA and any(result.cell.data == data for result in found)]
    sheets = []
    for data in (*DATA, *others) if target != "table3" else ("cub",):
        for n_shot in TARGETS[target].shots:
            groups = grouped(_column(target, data, n_shot, found), found)
            sheets += CELL_SHEETS[target](groups, show_missing=False)
    general = dict.fromkeys(note for sheet in sheets for note in sheet.general if note not in said)
    said.update(general)
    listed = "".join(f"- {note}\n" for note in general)
    return "\n".join([listed] * bool(listed) + [markdown(sheet._replace(general=()), level=3) for sheet in sheets])


def _column(target: str, data: str, n_shot: int, found: Sequence[Result]) -> list[Cell]:
    """The cells of the paper, then those that were run with other settings."""
    cells = [Cell(row, data, n_shot) for row in rows_in_paper(target, data, n_shot)]
    more = [result.cell for result in found if _is_in_tables(result.cell) == (target != "table3")]
    more = [cell._replace(seed=1) for cell in more if (cell.data, cell.n_shot) == (data, n_shot)]
    return list(dict.fromkeys([*cells, *more]))


def _files(found: Sequence[Result]) -> str:
    """A list of the results of cells; those with the same remark stand together."""
    by_note: dict[str, list[Result]] = {}
    for result in found:
        by_note.setdefault(result.record.get("note", ""), []).append(result)
    text = ["File, device, commit, and seconds for training and test. Figures name their files themselves.\n"]
    for note, results in sorted(by_note.items(), key=lambda item: item[0]):
        text.append(f"{note}\n" if note else "")
        text.append("".join(f"- `{r.path.name}`: {_trace(r)}\n" for r in results))
    return "\n".join(part for part in text if part)


def _trace(result: Result) -> str:
    record = result.record
    return f"{record['device']}, {record['commit'][:7]}, {record['wall_time_s']:.0f} s"


def _reliability(found: Sequence[Result], folder: Path, pictures: list[Path]) -> str:
    """A picture of MD-BFSC for each preset: a row for each data set, with one other setting at the most."""
    text = []
    for preset in PRESETS:
        shown = {}
        for data in DATA:
            wanted = ("mirror_gp", data, preset, "paper", 1)
            stored = [r for r in found if (r.cell.row, r.cell.data, *r.cell[3:6]) == wanted]
            stored = [r for r in stored if r.evaluation["raw"].get("bins") and len(Group(r.cell, [r]).changes) < 2]
            if stored:
                best = min(stored, key=lambda r: (r.cell.n_shot != 5, len(Group(r.cell, [r]).changes)))
                shown[column_title(data, best.cell.n_shot)] = best
        if shown:
            path = folder / f"figure2_{preset}.svg"
            folder.mkdir(parents=True, exist_ok=True)
            save_figure(calibration_figure(shown), path)
            pictures.append(path)
            names = ", ".join(f"`{result.path.name}`" for result in shown.values())
            text.append(f"### Reliability: preset {preset}\n\n![Reliability: preset {preset}](figures/{path.name})\n")
            text.append(f"{_RELIABILITY.format(preset=preset)} Results: {names}.\n")
    return "\n".join(text)


def _experiments(target: str, results: Path, folder: Path, pictures: list[Path]) -> str:
    text = []
    for path in sorted(results.glob(f"{target}_*.json")):
        if "_smoke" in path.stem:
            continue
        record = read_result(path)
        sheet = measured_sheet(target, record, path)
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
    return "\n".join(text)

"""docs/results.md, with one of our results for each number of tables 1 and 2, and the page of details."""

import re
from collections.abc import Sequence
from pathlib import Path

from mirrorshot.files.writing import write_atomically
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.cells import Result, read_results
from mirrorshot.paper.details import Figures, details_page, is_in_tables
from mirrorshot.paper.published import DATA, DATA_TITLES, FITTED_ROWS, ROWS, TABLE_1, TABLE_2
from mirrorshot.paper.table2 import calibration_record
from mirrorshot.paper.tables import Group, Sheet, by_column, column_title, grouped, markdown, with_spread
from mirrorshot.types import DataError
from mirrorshot.views import save_figure

_INTRO = """# Results

The paper is T. Ke, H. Cao and F. Zhou, *Accelerating Convergence in Bayesian Few-Shot Classification*, ICML 2024. Each
number of ours is one trained model on {n_seeds} x {n_tasks} test tasks, or with ± the mean and standard deviation of
several, with the preset `default` unless a mark says otherwise ([settings]({details}#settings-of-marked-numbers)); the
paper's is in brackets; - was not run. On photographs MD-BFSC alone is trained with an auxiliary classifier over all
training classes, worth two to five points; on characters alone with distorted images and, at one shot, on tasks of five
examples, worth up to five points, to DKT too ([notes](research.md#characters)); in all columns with a temperature rule.
[{details}]({details}) has intervals, commands, tables 3 and 4 and the figures, [paper.md](paper.md) what we found.
"""
_RERUN = """## Rerun

```bash
export MIRRORSHOT_DATA=FOLDER    # `mirrorshot list data` says which data are there
mirrorshot reproduce table1 --dataset cub --shots 1 --preset default --method mirror_gp    # 7 min on a shared H200
mirrorshot reproduce table2 --preset default    # all cells that have no result yet
mirrorshot reproduce tables                     # writes this page and {details}; do not edit them
```
"""
_KINDS = {"raw": "raw", "one_temperature": "one temperature"}
_CALIBRATION = (
    "Raw: as predicted. One temperature: fitted on validation tasks. The paper's number stands with the closer "
    "protocol: the released code fits two temperatures for MD-BFSC and CDKT, none for the other rows."
)
Chosen = dict[str, dict[tuple[str, int], Group]]
"""The shown result for each row of the paper in each column."""


def mark(group: Group, footnotes: list[str]) -> str:
    """Return the footnote mark of settings that differ from the preset `default`; equal settings share a mark."""
    parts = [f"preset {group.cell.preset}"] * (group.cell.preset != "default") + group.changes
    if group.cell.tag and not group.changes:
        parts.append(f"tag {group.cell.tag.removeprefix('_')}")
    if not parts:
        return ""
    text = "; ".join(parts)
    footnotes += [text] * (text not in footnotes)
    return f"<sup>{footnotes.index(text) + 1}</sup>"


def write_results(results: Path, page: Path) -> list[Path]:
    """Write the page, the page of details, and figures in the folder `figures`; return their paths."""
    pages, figures = results_pages(results, page)
    (page.parent / "figures").mkdir(parents=True, exist_ok=True)
    for path, text in pages.items():
        write_atomically(path, text.encode())
    paths = [page.parent / "figures" / name for name in figures]
    for path, draw in zip(paths, figures.values(), strict=True):
        save_figure(draw(), path)
    return [*pages, *paths]


def results_pages(results: Path, page: Path) -> tuple[dict[Path, str], Figures]:
    """Return the texts of both pages by file, and functions that draw their figures by name."""
    if not any(results.glob("*.json")):
        raise DataError(
            f"Expected results in {results}, but there are none. Run for instance: mirrorshot reproduce departures"
        )
    found = [result for result in read_results(results) if result.cell.budget != "smoke"]
    footnotes: list[str] = []
    details = page.with_name(f"{page.stem}_details.md")
    overview = overview_page(found, footnotes, details.name)
    text, figures = details_page(results, page, found, footnotes)
    return {page: _unbroken(overview), details: _unbroken(text)}, figures


def _unbroken(page: str) -> str:
    """Replace spaces within the numbers of tables by no-break spaces."""
    within = re.compile(r"(?<=\d) [±/] (?=\d)|(?<=\d\.\d\d) \((?=\d)|(?<=\d\.\d\d\d) \((?=\d)")

    def joined(found: re.Match[str]) -> str:
        return found[0].replace(" ", "\N{NO-BREAK SPACE}")

    return "\n".join(within.sub(joined, line) if line.startswith("| ") else line for line in page.split("\n"))


def overview_page(found: Sequence[Result], footnotes: list[str], details: str) -> str:
    """Return overviews of tables 1 and 2, and the commands that make them."""
    rows = chosen_results(grouped([result.cell for result in found if is_in_tables(result.cell)], found))
    sheets = [accuracy_overview(rows, footnotes), calibration_overview(rows, footnotes)] if rows else []
    paper = BUDGETS["paper"]
    intro = _INTRO.format(details=details, n_seeds=len(paper.seeds), n_tasks=paper.n_tasks)
    return "\n".join([intro, *map(markdown, sheets), _RERUN.format(details=details)])


def chosen(groups: Sequence[Group]) -> Group | None:
    """Return the result to show for a row, at the paper's budget: preset `default` first, then fewest changes."""
    run = [group for group in groups if group.first and group.cell.budget == "paper"]
    return min(run, key=lambda g: (g.cell.preset != "default", len(g.changes), g.cell.tag), default=None)


def chosen_results(groups: Sequence[Group]) -> Chosen:
    """Return the chosen results of the paper's rows by column; rows without results are left out."""
    columns = {column: part for column, part in by_column(groups).items() if column[0] in DATA}
    found: Chosen = {}
    for row in ROWS:
        of_row = {column: chosen([g for g in part if g.cell.row == row]) for column, part in columns.items()}
        cells = {column: group for column, group in of_row.items() if group}
        found |= {row: cells} if cells else {}
    return found


def accuracy_overview(rows: Chosen, footnotes: list[str]) -> Sheet:
    """Return table 1 as one matrix: our numbers, with the paper's in brackets."""
    columns = [(data, n_shot) for data in DATA for n_shot in (1, 5)]

    def text(row: str, column: tuple[str, int]) -> str:
        group, paper = rows[row].get(column), TABLE_1[row].get(column)
        if group is None or group.first is None:
            return "-"
        bracket = f" ({paper.mean:.2f})" if paper else ""
        return f"{with_spread(*group.accuracy)}{bracket}{mark(group, footnotes)}"

    lines = [[ROWS[row].title, *(text(row, column) for column in columns)] for row in rows]
    heads = ("method", *(column_title(*column) for column in columns))
    missing = ", ".join(about.title for row, about in ROWS.items() if row not in rows)
    return Sheet("Table 1: accuracy, %", heads, lines, [], [f"Not run: {missing}."] if missing else [])


def calibration_overview(rows: Chosen, footnotes: list[str]) -> Sheet:
    """Return the expected calibration errors of table 2 as one matrix, raw and at one temperature."""

    def text(row: str, data: str, kind: str) -> str:
        group = rows[row].get((data, 5))
        record = calibration_record(group) if group else {}
        if group is None or record[f"ece_{kind}"] is None:
            return "-"
        is_closest = (kind == "one_temperature") == (row in FITTED_ROWS) and record["ece_paper"] is not None
        bracket = f" ({record['ece_paper']:.3f})" if is_closest else ""
        return f"{record[f'ece_{kind}']:.3f}{bracket}{mark(group, footnotes)}"

    cells = {row: [text(row, data, kind) for data in DATA for kind in _KINDS] for row in rows if row in TABLE_2}
    lines = [[ROWS[row].title, *texts] for row, texts in cells.items() if set(texts) != {"-"}]
    heads = ("method", *(f"{DATA_TITLES[data]}, {kind}" for data in DATA for kind in _KINDS.values()))
    return Sheet("Table 2: expected calibration error, 5 shots", heads, lines, [], [_CALIBRATION])

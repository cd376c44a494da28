"""Tables as Markdown, CSV and JSON, and groups of results for the rows of tables 1 to 3."""

import csv
import io
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.files.texts import count
from mirrorshot.files.writing import write_atomically, write_json
from mirrorshot.paper.cells import Cell, Result, different_settings, row_of
from mirrorshot.paper.published import DATA_TITLES, ROWS, STUDIES, rows_in_paper
from mirrorshot.training.config import field_types, from_dict

NOT_RUN = "not run"
Record = dict[str, Any]


class Sheet(NamedTuple):
    """A table: rows of text for Markdown, records of numbers for CSV and JSON, and notes below it.

    `general` notes hold for all tables of its kind; a page shows them once. A part belongs to the previous table.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    records: list[Record]
    notes: list[str]
    general: tuple[str, ...] = ()
    is_part: bool = False


def markdown(sheet: Sheet, *, level: int = 2) -> str:
    """Format a table as Markdown, with its title and notes.

    Example:
        >>> print(markdown(Sheet("Times", ("method", "seconds"), [["MD", "0.1"]], [], ["On a CPU."])))
        ## Times
        <BLANKLINE>
        | method | seconds |
        |---|---|
        | MD | 0.1 |
        <BLANKLINE>
        On a CPU.
        <BLANKLINE>
    """
    lines = [f"{'#' * (level + sheet.is_part)} {sheet.title}", ""]
    if sheet.rows:
        lines += ["| " + " | ".join(sheet.columns) + " |", "|" + "---|" * len(sheet.columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in sheet.rows]
        lines.append("")
    for note in (*sheet.general, *sheet.notes):
        lines += [note, ""]
    return "\n".join(lines)


def as_json(sheet: Sheet) -> Record:
    """Return the numbers of a table for JSON."""
    return {"title": sheet.title, "records": sheet.records, "notes": [*sheet.general, *sheet.notes]}


def write_sheets(name: str, sheets: Sequence[Sheet], folder: Path) -> list[Path]:
    """Write tables as one Markdown, one CSV and one JSON file; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [{"table": sheet.title, **record} for sheet in sheets for record in sheet.records]
    paths = [folder / f"{name}{suffix}" for suffix in (".md", ".csv", ".json")]
    write_atomically(paths[0], "\n".join(map(markdown, sheets)).encode())
    write_atomically(paths[1], _csv(records).encode())
    write_json(paths[2], [as_json(sheet) for sheet in sheets], indent=1)
    return paths


def _csv(records: Sequence[Record]) -> str:
    buffer = io.StringIO()
    names = dict.fromkeys(name for record in records for name in record)
    writer = csv.DictWriter(buffer, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def with_spread(mean: float | None, spread: float | None, digits: int = 2) -> str:
    """Format a number and its spread, if known: "65.45 ± 0.42", "1.00", "-"."""
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def place(record: Record) -> Record:
    """Return data set and number of shots of an experiment."""
    return {"data": record["data"], "n_shot": record["n_shot"]}


class Group(NamedTuple):
    """Results of a cell that differ only in the seed of training; empty if the cell was not run.

    `others` are further seeds with other settings than the first, for instance of an earlier preset.
    """

    cell: Cell
    results: list[Result]
    others: Sequence[Result] = ()

    @property
    def first(self) -> Result | None:
        """Return the result of the first seed, which the paper's protocol uses."""
        return min(self.results, key=lambda result: result.cell.seed, default=None)

    @property
    def accuracy(self) -> tuple[float, float | None]:
        """Return mean and standard deviation of the accuracy over training seeds, in percent; None for one seed."""
        means = [100 * result.evaluation["accuracy"] for result in self.results]
        return statistics.mean(means), statistics.stdev(means) if len(means) > 1 else None

    @property
    def title(self) -> str:
        """Return the title of the row; a row of table 3 names its study."""
        name, title = self.cell.row, row_of(self.cell.row).title
        study = next((study for study, rows in STUDIES.items() if name in rows and name not in ROWS), None)
        return f"{ROWS['mirror_gp'].title}, {study} {title}" if study else title

    @property
    def preset(self) -> str:
        """Return the name of the preset, with the budget if it is not the paper's."""
        cell = self.cell
        return cell.preset if cell.budget == "paper" else f"{cell.preset} (budget {cell.budget})"

    @property
    def changes(self) -> list[str]:
        """List the settings that differ from the preset: `name = value (preset: its value)`."""
        if not self.first and not self.cell.changes:
            return []
        preset = self.cell._replace(changes=()).config()
        stored = self.first.record["config"] if self.first else self.cell.config().to_dict()
        return [text.removeprefix("method_options.") for text in different_settings(preset, stored, "preset")]

    @property
    def about(self) -> Record:
        """Return data set, row, preset and tag: the first fields of a record."""
        cell = self.cell
        head = {"data": cell.data, "n_shot": cell.n_shot, "row": cell.row, "method": self.title}
        return head | {"preset": cell.preset, "budget": cell.budget, "tag": cell.tag.removeprefix("_")}

    def origin(self, target: str) -> Record:
        """Return command and settings: the last fields of a record."""
        return {"command": self.cell.command(target), "settings": "; ".join(self.changes)}


def grouped(cells: Sequence[Cell], results: Sequence[Result]) -> list[Group]:
    """Group the results of each cell over all training seeds."""
    found: dict[str, list[Result]] = {_key(cell): [] for cell in cells}
    for result in sorted(results, key=lambda result: result.cell.seed):
        if _key(result.cell) in found:
            found[_key(result.cell)].append(result)
    first = {_key(cell): cell._replace(seed=1) for cell in cells}
    return [Group(first[key], *_by_settings(runs)) for key, runs in found.items()]


def _by_settings(runs: list[Result]) -> tuple[list[Result], list[Result]]:
    """Return the runs with the settings of the first, and the others, which must not enter the same mean."""
    if not runs:
        return [], []
    settings = from_dict({k: v for k, v in runs[0].record["config"].items() if k in field_types()})
    same, others = list[Result](), list[Result]()
    for run in runs:
        is_same = not different_settings(settings, {**run.record["config"], "seed": settings.seed})
        (same if is_same else others).append(run)
    return same, others


def untagged_cells(cells: Sequence[Cell], results: Sequence[Result]) -> list[Cell]:
    """Return the untagged counterparts of tagged cells, if they have a result."""
    wanted = {_key(cell._replace(tag="")) for cell in cells if cell.tag}
    return [result.cell for result in results if _key(result.cell) in wanted]


def _key(cell: Cell) -> str:
    """Return a key that ignores the seed and the folder of the data; results know only the name of their data."""
    return cell._replace(seed=1).name


def by_column(groups: Sequence[Group]) -> dict[tuple[str, int], list[Group]]:
    """Return the rows of each data set and number of shots, in the order of the paper, other methods last."""
    place = {row: i for i, row in enumerate(ROWS)}

    def order(group: Group) -> tuple[int, str, bool, bool, str]:
        cell = group.cell
        return place.get(cell.row, len(place)), cell.row, cell.budget != "paper", cell.preset != "paper", cell.tag

    columns: dict[tuple[str, int], list[Group]] = {}
    for group in sorted(groups, key=order):
        columns.setdefault((group.cell.data, group.cell.n_shot), []).append(group)
    return columns


def columns_of(groups: Sequence[Group]) -> Iterator[tuple[str, list[Group], list[Group]]]:
    """Yield the title of each data set and number of shots, its rows without a tag, and its rows with a tag."""
    for column, part in by_column(groups).items():
        yield column_title(*column), [g for g in part if not g.cell.tag], [g for g in part if g.cell.tag]


def column_title(data: str, n_shot: int) -> str:
    """Return a title such as "CUB, 5 shots"."""
    return f"{DATA_TITLES.get(data, data)}, {count(n_shot, 'shots')}"


def general_notes(groups: Sequence[Group], *notes: str) -> tuple[str, ...]:
    """Return the notes and deviations of data and rows from the paper's set-up; empty if nothing was run."""
    run = [group.cell for group in groups if group.first]
    found = list(notes) if run else []
    for data in dict.fromkeys(cell.data for cell in run):
        if data in DATASETS and DATASETS[data].deviations:
            found.append(f"{DATA_TITLES.get(data, data)}: {'. '.join(DATASETS[data].deviations)}.")
    rows = {cell.row for cell in run}
    return (*found, *(f"{row.title}: {row.note}" for name, row in ROWS.items() if name in rows and row.note))


def run_notes(groups: Sequence[Group], target: str) -> list[str]:
    """Return notes on budgets, on settings that differ from the preset, and on cells that were not run."""
    run, notes = [group for group in groups if group.first], []
    if run and all(group.cell.budget != "paper" for group in run):
        notes.append(f"Budget: {run[0].cell.budget}, not the paper's; these numbers are no reproduction.")
    for group in run:
        if group.changes and not group.cell.tag:
            notes.append(f"{group.title}, preset {group.preset}, was run with {'; '.join(group.changes)}.")
        if group.others:
            seeds = ", ".join(str(result.cell.seed) for result in group.others)
            notes.append(
                f"{group.title}, preset {group.preset}: left out of the mean over seeds, for other settings than those "
                f"of seed {group.results[0].cell.seed}: {seeds}."
            )
    return notes + _waiting_note(groups, target)


def _waiting_note(groups: Sequence[Group], target: str) -> list[str]:
    """Return a note with the command of cells that were not run; for a whole table it names no rows."""
    waiting = [group.cell for group in groups if not group.first]
    if not waiting:
        return []
    first, rows = waiting[0], [cell.row for cell in waiting]
    whole = set(rows_in_paper(target, first.data, first.n_shot))
    is_short = len(rows) > 3 and set(rows) <= whole <= {group.cell.row for group in groups}
    command = first._replace(row="" if is_short else ",".join(rows)).command(target)
    what = f", {len(rows)} of {len(whole)} rows of the paper" if is_short else ""
    return [f"Not run with the preset {first.preset}{what}: `{command}`"]

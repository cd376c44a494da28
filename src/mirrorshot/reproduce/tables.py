"""What the tables of cells have in common: the results of a row, its settings, and what is said below a table."""

from collections.abc import Sequence
from typing import NamedTuple

from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.reproduce.cells import Cell, Result, different_settings, row_of
from mirrorshot.reproduce.published import DATA_TITLES, ROWS, STUDIES, rows_in_paper

NOT_RUN = "not run"


class Group(NamedTuple):
    """Results of a cell that differ in the seed of training only; none: the cell was not run."""

    cell: Cell
    results: list[Result]

    @property
    def first(self) -> Result | None:
        """The one that the paper's protocol takes."""
        return min(self.results, key=lambda result: result.cell.seed, default=None)

    @property
    def title(self) -> str:
        """Name of the row; a row of table 3 says what it studies."""
        name, title = self.cell.row, row_of(self.cell.row).title
        study = next((study for study, rows in STUDIES.items() if name in rows and name not in ROWS), None)
        return f"{ROWS['mirror_gp'].title}, {study} {title}" if study else title

    @property
    def preset(self) -> str:
        """Name of the preset, and of the budget if it is not the paper's."""
        cell = self.cell
        return cell.preset if cell.budget == "paper" else f"{cell.preset} (budget {cell.budget})"

    @property
    def changes(self) -> list[str]:
        """Settings that are not those of the preset: `name = value (preset: its value)`."""
        if not self.first and not self.cell.changes:
            return []
        preset = self.cell._replace(changes=()).config()
        stored = self.first.record["config"] if self.first else self.cell.config().to_dict()
        return [text.removeprefix("method_options.") for text in different_settings(preset, stored, "preset")]


def grouped(cells: Sequence[Cell], results: Sequence[Result]) -> list[Group]:
    """The results of each of the cells, of all training seeds."""
    groups = {_key(cell): Group(cell._replace(seed=1), []) for cell in cells}
    for result in results:
        if _key(result.cell) in groups:
            groups[_key(result.cell)].results.append(result)
    return list(groups.values())


def untagged_cells(cells: Sequence[Cell], results: Sequence[Result]) -> list[Cell]:
    """Cells with the unchanged settings of those that have a tag, as far as they have a result."""
    wanted = {_key(cell._replace(tag="")) for cell in cells if cell.tag}
    return [result.cell for result in results if _key(result.cell) in wanted]


def _key(cell: Cell) -> str:
    """The same for cells that differ in the seed only; results know the name of their data, not the path."""
    return cell._replace(seed=1).name


def by_column(groups: Sequence[Group]) -> dict[tuple[str, int], list[Group]]:
    """Rows of each data set and number of shots, in the order of the paper, other methods last."""
    place = {row: i for i, row in enumerate(ROWS)}

    def order(group: Group) -> tuple[int, str, bool, bool, str]:
        cell = group.cell
        return place.get(cell.row, len(place)), cell.row, cell.budget != "paper", cell.preset != "paper", cell.tag

    columns: dict[tuple[str, int], list[Group]] = {}
    for group in sorted(groups, key=order):
        columns.setdefault((group.cell.data, group.cell.n_shot), []).append(group)
    return columns


def split_by_tag(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Rows with the settings of a preset, and rows with other settings."""
    return [g for g in groups if not g.cell.tag], [g for g in groups if g.cell.tag]


def column_title(data: str, n_shot: int) -> str:
    """A data set and a number of shots, in words.

    Example:
        >>> column_title("cub", 5)
        'CUB, 5 shots'
    """
    return f"{DATA_TITLES.get(data, data)}, {n_shot} shot{'s' if n_shot > 1 else ''}"


def set_up_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """In what data and rows that were run differ from the paper's set-up, or may."""
    run = [group for group in groups if group.first]
    notes = []
    for data in dict.fromkeys(group.cell.data for group in run):
        if data in DATASETS and DATASETS[data].deviations:
            notes.append(f"{DATA_TITLES.get(data, data)}: {'. '.join(DATASETS[data].deviations)}.")
    rows = dict.fromkeys(group.cell.row for group in run if group.cell.row in ROWS)
    notes += [f"{ROWS[row].title}: {ROWS[row].note}" for row in rows if ROWS[row].note]
    return tuple(notes)


def run_notes(groups: Sequence[Group], target: str) -> list[str]:
    """What does not hold of results that pass for those of a preset, and how the rest is run."""
    run, notes = [group for group in groups if group.first], []
    if run and all(group.cell.budget != "paper" for group in run):
        notes.append(f"Budget: {run[0].cell.budget}, not the paper's; these numbers are no reproduction.")
    for group in run:
        if group.changes and not group.cell.tag:
            notes.append(f"{group.title}, preset {group.preset}, was run with {'; '.join(group.changes)}.")
    return notes + _waiting_note(groups, target)


def _waiting_note(groups: Sequence[Group], target: str) -> list[str]:
    """What was not run, and its command; a command that names no rows leaves out what has a result."""
    waiting = [group.cell for group in groups if not group.first]
    if not waiting:
        return []
    first, rows = waiting[0], [cell.row for cell in waiting]
    whole = set(rows_in_paper(target, first.data, first.n_shot))
    is_short = len(rows) > 3 and set(rows) <= whole <= {group.cell.row for group in groups}
    command = first._replace(row="" if is_short else ",".join(rows)).command(target)
    what = f", {len(rows)} of {len(whole)} rows of the paper" if is_short else ""
    return [f"Not run with the preset {first.preset}{what}: `{command}`"]

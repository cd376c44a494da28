"""Table 3: step size, kernel and number of steps of MD-BFSC."""

from collections.abc import Sequence

from mirrorshot.paper.cells import Cell
from mirrorshot.paper.published import STUDIES, TABLE_3, Value
from mirrorshot.paper.table1 import INSIDE, compared, comparison, other_settings_sheet
from mirrorshot.paper.tables import Group, Record, Sheet, columns_of, general_notes, run_notes, with_spread

_COLUMNS = ("preset", "paper", "ours", "difference", "inside", "seconds of training")
_SECONDS = "Seconds of training: - where it took several sessions. Runs may have shared a GPU; the result files say so."
_OPTIONS = {"rho": ("step_size", 1.0), "kernel": ("kernel", "cosine"), "steps": ("n_steps", 3)}  # the paper's


def study_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Return a table of each study for each data set and number of shots, and tables of other settings."""
    sheets = []
    for title, plain, tagged in columns_of(groups):
        for study, rows in STUDIES.items():
            part = [group for row in rows for group in plain if group.cell.row == row]
            sheets += [_study_sheet(study, title, part, show_missing)] if part else []
        sheets += [other_settings_sheet(title, plain, tagged)] if tagged else []
    return sheets


def _study_sheet(study: str, column: str, groups: Sequence[Group], show_missing: bool) -> Sheet:
    values = dict(zip(STUDIES[study], TABLE_3[study], strict=True))
    records = [_record(study, values[group.cell.row], group) for group in groups]
    rows = [
        [r["value"], group.preset, *comparison(r), with_spread(r["seconds"], None, 0)]
        for r, group in zip(records, groups, strict=True)
        if show_missing or group.first
    ]
    title, general = f"Study of {study}, accuracy, %: {column}", general_notes(groups, INSIDE, _SECONDS)
    return Sheet(title, (study, *_COLUMNS), rows, records, run_notes(groups, "table3"), general)


def _record(study: str, value: Value, group: Group) -> Record:
    cell, first = group.cell, group.first
    title, is_in_paper = _studied(study, cell)
    is_whole = first is not None and not first.record.get("is_resumed")
    return {
        "study": study,
        "value": title,
        "row": cell.row,
        "preset": cell.preset,
        "budget": cell.budget,
        "tag": cell.tag,
        **compared(value if is_in_paper else None, first),
        "seconds": float(first.record["training_time_s"]) if first and is_whole else None,
        **group.origin("table3"),
    }


def _studied(study: str, cell: Cell) -> tuple[str, bool]:
    """Return the studied value, and whether it is in the paper: a preset may have another value for MD-BFSC."""
    option, usual = _OPTIONS[study]
    value = cell.config().method_options.get(option, usual)
    if cell.row == "mirror_gp" and value != usual:
        return f"{value}, of the preset", False
    return STUDIES[study][cell.row].title, (cell.data, cell.n_shot) == ("cub", 1)

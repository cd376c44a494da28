"""Table 3 from the results of cells: step size, kernel and number of steps of MD-BFSC."""

from collections.abc import Sequence

from mirrorshot.reproduce.accuracy import INSIDE, compared, comparison, other_settings_sheet, preset_results
from mirrorshot.reproduce.cells import Cell
from mirrorshot.reproduce.published import STUDIES, TABLE_3, Value
from mirrorshot.reproduce.sheets import Record, Sheet, with_spread
from mirrorshot.reproduce.tables import Group, by_column, column_title, run_notes, set_up_notes, split_by_tag

_COLUMNS = ("preset", "paper", "ours", "difference", "inside", "seconds of training")
_SECONDS = "Seconds of training: - where it took several sessions. Runs may have shared a GPU; the result files say so."
_OPTIONS = {
    "rho": ("step_size", 1.0),
    "kernel": ("kernel", "cosine"),
    "steps": ("n_steps", 3),
}  # MD-BFSC's in the paper


def study_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Table 3: for each data set and number of shots a table of each study, and one of other settings."""
    sheets = []
    for (data, n_shot), part in by_column(groups).items():
        plain, tagged = split_by_tag(part)
        studies = [_study_sheet(study, plain, show_missing) for study in STUDIES]
        sheets += [sheet for sheet in studies if sheet.records]
        if tagged:
            sheets.append(other_settings_sheet(column_title(data, n_shot), tagged, preset_results(plain)))
    return sheets


def _study_sheet(study: str, groups: Sequence[Group], show_missing: bool) -> Sheet:
    values = dict(zip(STUDIES[study], TABLE_3[study], strict=True))
    part = [group for row in values for group in groups if group.cell.row == row]
    records = [_record(study, values[group.cell.row], group) for group in part]
    rows = [
        [r["value"], group.preset, *comparison(r), with_spread(r["seconds"], None, 0)]
        for r, group in zip(records, part, strict=True)
        if show_missing or group.first
    ]
    general = (INSIDE, _SECONDS) if any(group.first for group in part) else ()
    title = f"Study of {study}, accuracy, %: {column_title(*part[0].cell[1:3])}" if part else ""
    notes = run_notes(part, "table3")
    return Sheet(title, (study, *_COLUMNS), rows, records, notes, (*general, *set_up_notes(part)))


def _record(study: str, value: Value, group: Group) -> Record:
    cell = group.cell
    title, is_in_paper = _studied(study, cell)
    return {
        "study": study, "value": title, "row": cell.row, "preset": cell.preset, "budget": cell.budget, "tag": cell.tag,
        **compared(value if is_in_paper else None, group.first),
        "seconds": _seconds(group),
        "command": cell.command("table3"), "settings": "; ".join(group.changes),
    }  # fmt: skip


def _seconds(group: Group) -> float | None:
    if group.first is None or group.first.record.get("is_resumed"):
        return None
    return float(group.first.record["training_time_s"])


def _studied(study: str, cell: Cell) -> tuple[str, bool]:
    """What is studied, and whether it is a cell of the paper: MD-BFSC as a preset has it may be another one."""
    option, usual = _OPTIONS[study]
    value = cell.config().method_options.get(option, usual)
    if cell.row == "mirror_gp" and value != usual:
        return f"{value}, of the preset", False
    return STUDIES[study][cell.row].title, (cell.data, cell.n_shot) == ("cub", 1)

"""Table 2 from the results of cells: calibration errors, raw and with temperatures."""

from collections.abc import Sequence
from typing import Any

from mirrorshot.reproduce.published import FITTED_ROWS, TABLE_2
from mirrorshot.reproduce.sheets import Record, Sheet
from mirrorshot.reproduce.tables import (
    NOT_RUN,
    Group,
    by_column,
    column_title,
    run_notes,
    set_up_notes,
    split_by_tag,
)

_KINDS = ("raw", "one_temperature", "two_temperatures")
_KIND_COLUMNS = ("ours, raw", "one temperature", "two temperatures")
_COLUMNS = ("method", "preset", "paper", "its protocol", *_KIND_COLUMNS)
_OTHER_COLUMNS = ("method", "preset", "tag", "what was changed", *_KIND_COLUMNS)
_GENERAL = (
    "15 bins of equal width over the queries of all test tasks. One temperature: fitted by NLL on validation tasks. "
    "Two temperatures: the grid of the released code, chosen by the calibration error of validation tasks. The paper "
    "does not mention temperatures; the released code fits two for MD-BFSC and CDKT and none for the other rows."
)


def calibration_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Table 2: expected and maximum calibration error, raw, at one temperature and at two."""
    sheets = []
    for (data, n_shot), part in by_column(groups).items():
        plain, tagged = split_by_tag(part)
        title = column_title(data, n_shot)
        if plain:
            records = [calibration_record(group) for group in plain]
            rows = [_row(r, g) for r, g in zip(records, plain, strict=True) if show_missing or g.first]
            general = (*((_GENERAL,) * any(group.first for group in part)), *set_up_notes(part))
            sheets.append(
                Sheet(f"ECE / MCE: {title}", _COLUMNS, rows, records, run_notes(plain, "table2"), general)
            )  # fmt: skip
        if tagged:
            sheets.append(_other_settings_sheet(title, tagged)._replace(is_part=bool(plain)))
    return sheets


def _other_settings_sheet(title: str, groups: Sequence[Group]) -> Sheet:
    records = [calibration_record(group) for group in groups]
    rows = [
        [r["method"], group.preset, r["tag"], r["settings"] or "nothing", *_kinds(r)]
        for r, group in zip(records, groups, strict=True)
    ]
    notes = run_notes(groups, "table2")
    return Sheet(f"Other settings, ECE / MCE: {title}", _OTHER_COLUMNS, rows, records, notes)


def calibration_record(group: Group) -> Record:
    """The errors of the paper and ours; None where there are none."""
    cell, first = group.cell, group.first
    found: dict[str, Any] = first.evaluation if first else {}
    is_published = cell.n_shot == 5
    by_rule = {part["rule"]: part["calibration"] for part in found.get("tempered", ())}
    errors = {
        "paper": TABLE_2.get(cell.row, {}).get(cell.data) if is_published else None,
        **{
            kind: (found[key]["ece"], found[key]["mce"]) if found.get(key) else None
            for kind, key in (("raw", "raw"), ("one_temperature", "calibrated"))
        },
        # the released code keeps one pair of temperatures for each error
        "two_temperatures": (by_rule["ece"]["ece"], by_rule["mce"]["mce"]) if {"ece", "mce"} <= set(by_rule) else None,
    }
    record: Record = {
        "data": cell.data, "n_shot": cell.n_shot, "row": cell.row, "method": group.title, "preset": cell.preset,
        "budget": cell.budget, "tag": cell.tag.removeprefix("_"), "is_run": first is not None,
        "protocol_paper": "two temperatures" if cell.row in FITTED_ROWS else "raw",
    }  # fmt: skip
    for kind, pair in errors.items():
        record[f"ece_{kind}"], record[f"mce_{kind}"] = pair or (None, None)
    same = record["protocol_paper"].replace(" ", "_")
    ours, paper = record[f"ece_{same}"], record["ece_paper"]
    record["ece_difference_same_protocol"] = None if ours is None or paper is None else ours - paper
    return record | {"command": cell.command("table2"), "settings": "; ".join(group.changes)}


def _row(record: Record, group: Group) -> list[str]:
    protocol = "-" if record["ece_paper"] is None else record["protocol_paper"]
    return [record["method"], group.preset, errors_text(record, "paper"), protocol, *_kinds(record)]


def _kinds(record: Record) -> list[str]:
    missing = "not measured" if record["is_run"] else NOT_RUN
    return [errors_text(record, kind, missing) for kind in _KINDS]


def errors_text(record: Record, kind: str, missing: str = "-") -> str:
    """Expected and maximum calibration error of a kind ("paper", "raw", "one_temperature", "two_temperatures")."""
    if record[f"ece_{kind}"] is None:
        return missing
    return f"{record[f'ece_{kind}']:.3f} / {record[f'mce_{kind}']:.3f}"

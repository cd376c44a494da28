"""Table 2: calibration errors, raw and with temperatures."""

from collections.abc import Sequence
from typing import Any

from mirrorshot.paper.published import FITTED_ROWS, TABLE_2
from mirrorshot.paper.tables import NOT_RUN, Group, Record, Sheet, columns_of, general_notes, run_notes

_KINDS = {"raw": "ours, raw", "one_temperature": "one temperature", "two_temperatures": "two temperatures"}
_COLUMNS = ("method", "preset", "paper", "its protocol", *_KINDS.values())
_OTHER_COLUMNS = ("method", "preset", "tag", "what was changed", *_KINDS.values())
_GENERAL = (
    "15 bins of equal width over the queries of all test tasks. One temperature: fitted by NLL on validation tasks. "
    "Two temperatures: the grid of the released code, chosen by the calibration error of validation tasks. The paper "
    "does not mention temperatures; the released code fits two for MD-BFSC and CDKT and none for the other rows."
)


def calibration_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Return tables of expected and maximum calibration errors: raw, at one temperature and at two."""
    sheets = []
    for title, plain, tagged in columns_of(groups):
        if plain:
            records, notes = [calibration_record(group) for group in plain], run_notes(plain, "table2")
            rows = [_row(r, g) for r, g in zip(records, plain, strict=True) if show_missing or g.first]
            general = general_notes([*plain, *tagged], _GENERAL)
            sheets.append(Sheet(f"ECE / MCE: {title}", _COLUMNS, rows, records, notes, general))
        if tagged:
            records, notes = [calibration_record(group) for group in tagged], run_notes(tagged, "table2")
            rows = [
                [r["method"], group.preset, r["tag"], r["settings"] or "nothing", *_kinds(r)]
                for r, group in zip(records, tagged, strict=True)
            ]
            head = f"Other settings, ECE / MCE: {title}"
            sheets.append(Sheet(head, _OTHER_COLUMNS, rows, records, notes, is_part=bool(plain)))
    return sheets


def calibration_record(group: Group) -> Record:
    """Return the errors of the paper and ours; None if there are none."""
    record: Record = {
        **group.about,
        "is_run": group.first is not None,
        "protocol_paper": "two temperatures" if group.cell.row in FITTED_ROWS else "raw",
    }
    for kind, pair in _errors(group).items():
        record[f"ece_{kind}"], record[f"mce_{kind}"] = pair or (None, None)
    same = record["protocol_paper"].replace(" ", "_")
    ours, paper = record[f"ece_{same}"], record["ece_paper"]
    record["ece_difference_same_protocol"] = None if ours is None or paper is None else ours - paper
    return record | group.origin("table2")


def _errors(group: Group) -> dict[str, tuple[float, float] | None]:
    """Return ECE and MCE by kind. The released code has one pair of temperatures for each error."""
    cell, found = group.cell, group.first.evaluation if group.first else {}
    by_rule = {part["rule"]: part["calibration"] for part in found.get("tempered", ())}

    def pair(errors: dict[str, Any] | None) -> tuple[float, float] | None:
        return (errors["ece"], errors["mce"]) if errors else None

    return {
        "paper": TABLE_2.get(cell.row, {}).get(cell.data) if cell.n_shot == 5 else None,
        "raw": pair(found.get("raw")),
        "one_temperature": pair(found.get("calibrated")),
        "two_temperatures": (by_rule["ece"]["ece"], by_rule["mce"]["mce"]) if {"ece", "mce"} <= set(by_rule) else None,
    }


def _row(record: Record, group: Group) -> list[str]:
    protocol = "-" if record["ece_paper"] is None else record["protocol_paper"]
    return [record["method"], group.preset, _text(record, "paper", "-"), protocol, *_kinds(record)]


def _kinds(record: Record) -> list[str]:
    return [_text(record, kind, "not measured" if record["is_run"] else NOT_RUN) for kind in _KINDS]


def _text(record: Record, kind: str, missing: str) -> str:
    return missing if record[f"ece_{kind}"] is None else f"{record[f'ece_{kind}']:.3f} / {record[f'mce_{kind}']:.3f}"

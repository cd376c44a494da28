"""Tables that set our numbers beside the paper's, as Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.checkpoint import write_atomically

Record = dict[str, Any]


class Sheet(NamedTuple):
    """A table.

    Attributes:
        title: what it shows.
        columns: heads of the columns of the Markdown table.
        rows: its cells as text.
        records: one for each row, with numbers, for CSV and JSON; the same keys in all.
        notes: sentences below it.
        general: sentences that hold for all tables of its kind; a page of many tables says them once.
        is_part: whether it belongs to the table before it.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    records: list[Record]
    notes: list[str]
    general: tuple[str, ...] = ()
    is_part: bool = False


def markdown(sheet: Sheet, *, level: int = 2) -> str:
    """The table as Markdown, with its title and its notes.

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


def write_sheets(name: str, sheets: Sequence[Sheet], folder: Path) -> list[Path]:
    """Write tables as one Markdown, one CSV and one JSON file; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [{"table": sheet.title, **record} for sheet in sheets for record in sheet.records]
    whole = [as_json(sheet) for sheet in sheets]
    contents = {
        ".md": "\n".join(markdown(sheet) for sheet in sheets),
        ".csv": _csv(records),
        ".json": json.dumps(whole, indent=1, allow_nan=False) + "\n",
    }
    for suffix, text in contents.items():
        write_atomically(folder / f"{name}{suffix}", text.encode())
    return [folder / f"{name}{suffix}" for suffix in contents]


def as_json(sheet: Sheet) -> Record:
    """The table with its numbers, for JSON."""
    return {"title": sheet.title, "records": sheet.records, "notes": [*sheet.general, *sheet.notes]}


def _csv(records: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for record in records for name in record))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def with_spread(mean: float | None, spread: float | None, digits: int = 2) -> str:
    """A number and its spread, as far as there are any.

    Example:
        >>> with_spread(65.447, 0.42), with_spread(1.0, None, 1), with_spread(None, None)
        ('65.45 ± 0.42', '1.0', '-')
    """
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def yes_or_no(value: bool | None) -> str:
    """A truth value as a word; "-" where there is none."""
    return "-" if value is None else "yes" if value else "no"

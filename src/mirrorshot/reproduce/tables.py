"""Tables 1 to 3 from the results of cells, by the paper's protocol and by a clean one, side by side.

The paper's protocol: one trained model, the mean of 5 passes of 600 tasks, and their standard deviation, in which there
is no variance of training. The clean one: the mean and the standard deviation over training seeds, the 95 % interval
over tasks, and the difference from MD-BFSC on the same tasks, in pairs.
"""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mirrorshot.data.benchmarks import DATASETS
from mirrorshot.evaluation.results import Z_95
from mirrorshot.reproduce.cells import Cell, Result, different_settings, row_of
from mirrorshot.reproduce.published import FITTED_ROWS, ROWS, STUDIES, TABLE_1, TABLE_2, TABLE_3, Value
from mirrorshot.reproduce.sheets import Record, Sheet, with_spread, yes_or_no

_SEEDS = "One model was trained for each seed of the clean protocol; with one seed there is no spread of training."
_INSIDE = (
    "Inside: whether our number by the paper's protocol is within the spread that the paper prints, which is the "
    "standard deviation of test passes over one trained model."
)
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
        """Name of the row, and in what its settings differ from those of the preset."""
        cell = self.cell
        extra = [f"preset {cell.preset}"] * (cell.preset != "paper") + [cell.tag.strip("_")] * bool(cell.tag)
        title = row_of(cell.row).title
        return f"{title} ({', '.join(extra)})" if extra else title


def grouped(cells: Sequence[Cell], results: Sequence[Result]) -> list[Group]:
    """The results of each of the cells, of all training seeds."""
    groups = {_key(cell): Group(cell._replace(seed=1, changes=()), []) for cell in cells}
    for result in results:
        if _key(result.cell) in groups:
            groups[_key(result.cell)].results.append(result)
    return list(groups.values())


def _key(cell: Cell) -> str:
    """The same for cells that differ in the seed only; results know the name of their data, not the path."""
    return cell._replace(seed=1).name


def accuracy_sheets(groups: Sequence[Group], *, show_missing: bool = True, target: str = "table1") -> list[Sheet]:
    """Table 1: a table for each data set and number of shots."""
    columns = ("method", "paper", "ours, paper's protocol", "difference", "inside", "ours, clean protocol",
               "95 % over tasks", "minus MD-BFSC, in pairs")  # fmt: skip
    sheets = []
    for (data, n_shot), part in _by_column(groups).items():
        reference = next((g.first for g in part if g.cell.row == "mirror_gp" and g.first), None)
        records = [_accuracy_record(group, reference, target) for group in part]
        shown = [r for r in records if show_missing or r["ours"] is not None]
        rows = [
            [
                r["method"], with_spread(r["paper"], r["paper_spread"]),
                NOT_RUN if r["ours"] is None else with_spread(r["ours"], r["ours_spread"]),
                with_spread(r["difference"], None) if r["difference"] is None else f"{r['difference']:+.2f}",
                yes_or_no(r["inside_paper_spread"]),
                "-" if r["clean"] is None else f"{with_spread(r['clean'], r['clean_spread'])} (n = {r['n_seeds']})",
                "-" if r["interval_95"] is None else f"± {r['interval_95']:.2f}",
                "-" if r["paired"] is None else f"{r['paired']:+.2f} ± {r['paired_interval_95']:.2f}",
            ]
            for r in shown
        ]  # fmt: skip
        notes = [_INSIDE, _SEEDS] if any(r["ours"] is not None for r in records) else []
        notes += _about(data, part, target)
        sheets.append(Sheet(_caption("Accuracy, %", data, n_shot), columns, rows, records, notes))
    return sheets


def _accuracy_record(group: Group, reference: Result | None, target: str) -> Record:
    cell, published = group.cell, TABLE_1.get(group.cell.row, {}).get((group.cell.data, group.cell.n_shot))
    if target == "table3":
        published = None
    record: Record = {
        "data": cell.data, "n_shot": cell.n_shot, "row": cell.row, "method": group.title, "preset": cell.preset,
        "budget": cell.budget, **compared(published, group.first),
    }  # fmt: skip
    means = [100 * result.evaluation["accuracy"] for result in group.results]
    record |= {
        "clean": statistics.mean(means) if means else None,
        "clean_spread": statistics.stdev(means) if len(means) > 1 else None,
        "n_seeds": len(means),
        "interval_95": 100 * group.first.evaluation["accuracy_interval_95"] if group.first else None,
    }
    paired = _paired(group.first, reference) if cell.row != "mirror_gp" or cell.tag or cell.preset != "paper" else None
    record |= {"paired": paired and paired[0], "paired_interval_95": paired and paired[1]}
    return record | {"command": cell.command(target), "settings": "; ".join(_changed(group))}


def compared(published: Value | None, result: Result | None) -> Record:
    """The paper's number and ours, in percent, by the paper's protocol."""
    ours = None if result is None else 100 * result.evaluation["accuracy"]
    spread = None if result is None else 100 * result.evaluation["accuracy_sd"]
    difference = None if published is None or ours is None else ours - published.mean
    is_inside = None
    if published is not None and published.spread is not None and difference is not None:
        is_inside = abs(difference) <= published.spread
    return {
        "paper": published and published.mean,
        "paper_spread": published and published.spread,
        "ours": ours,
        "ours_spread": spread,
        "difference": difference,
        "inside_paper_spread": is_inside,
    }


def _paired(result: Result | None, reference: Result | None) -> tuple[float, float] | None:
    """Mean difference in percent on the same tasks, and its 95 % interval; None without stored tasks."""
    if result is None or reference is None or result is reference:
        return None
    tasks = [r.record.get("task_accuracy") for r in (result, reference)]
    if None in tasks or result.evaluation["protocol"]["episodes"] != reference.evaluation["protocol"]["episodes"]:
        return None
    a, b = (np.array([[float(x) for x in line.split()] for line in lines]) for lines in tasks if lines)
    if a.shape != b.shape:
        return None
    difference = 100 * (a - b)
    return float(difference.mean()), float(Z_95 * difference.std() / np.sqrt(difference.size))


def calibration_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Table 2: expected and maximum calibration error, raw, at one temperature and at two."""
    columns = ("method", "paper", "its protocol", "ours, raw", "one temperature", "two temperatures")
    sheets = []
    for (data, n_shot), part in _by_column(groups).items():
        records = [_calibration_record(group) for group in part]
        shown = [r for r in records if show_missing or r["is_run"]]
        rows = [
            [
                r["method"], _errors(r, "paper", "-"), "-" if r["ece_paper"] is None else r["protocol_paper"],
                *((_errors(r, kind, "not measured") if r["is_run"] else NOT_RUN)
                  for kind in ("raw", "one_temperature", "two_temperatures")),
            ]
            for r in shown
        ]  # fmt: skip
        notes = [_CALIBRATION] if any(r["is_run"] for r in records) else []
        notes += _about(data, part, "table2")
        sheets.append(Sheet(_caption("ECE / MCE", data, n_shot), columns, rows, records, notes))
    return sheets


_CALIBRATION = (
    "15 bins of equal width over the queries of all test tasks. One temperature: fitted by NLL on validation tasks. "
    "Two temperatures: the grid of the released code, chosen by the calibration error of validation tasks. The paper "
    "does not mention temperatures; the released code fits two for MD-BFSC and CDKT and none for the other rows."
)


GENERAL_NOTES = (_INSIDE, _SEEDS, _CALIBRATION)
"""Notes that are the same below every table of their kind."""


def _calibration_record(group: Group) -> Record:
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
        "budget": cell.budget, "is_run": first is not None,
        "protocol_paper": "two temperatures" if cell.row in FITTED_ROWS else "raw",
    }  # fmt: skip
    for kind, pair in errors.items():
        record[f"ece_{kind}"], record[f"mce_{kind}"] = pair or (None, None)
    same = record["protocol_paper"].replace(" ", "_")
    ours, paper = record[f"ece_{same}"], record["ece_paper"]
    record["ece_difference_same_protocol"] = None if ours is None or paper is None else ours - paper
    return record | {"command": cell.command("table2"), "settings": "; ".join(_changed(group))}


def _errors(record: Record, kind: str, missing: str) -> str:
    if record[f"ece_{kind}"] is None:
        return missing
    return f"{record[f'ece_{kind}']:.3f} / {record[f'mce_{kind}']:.3f}"


def study_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Table 3: step size, kernel and number of steps of MD-BFSC."""
    columns = ("", "paper", "ours", "difference", "inside", "seconds of training")
    by_row = {group.cell.row: group for group in groups}
    sheets = []
    for study, rows in STUDIES.items():
        records = []
        for (key, row), value in zip(rows.items(), TABLE_3[study], strict=True):
            if key not in by_row:
                continue
            group = by_row[key]
            published = value if (group.cell.data, group.cell.n_shot) == ("cub", 1) else None
            records.append(
                {
                    "study": study, "value": _value(study, row.title, group.cell), "row": key,
                    **compared(published, group.first),
                    "seconds": group.first.record["training_time_s"] if group.first else None,
                    "command": group.cell.command("table3"), "settings": "; ".join(_changed(group)),
                }
            )  # fmt: skip
        shown = [r for r in records if show_missing or r["ours"] is not None]
        texts = [
            [
                r["value"], with_spread(r["paper"], r["paper_spread"]),
                NOT_RUN if r["ours"] is None else with_spread(r["ours"], r["ours_spread"]),
                "-" if r["difference"] is None else f"{r['difference']:+.2f}", yes_or_no(r["inside_paper_spread"]),
                with_spread(r["seconds"], None, 0),
            ]
            for r in shown
        ]  # fmt: skip
        part = [by_row[r["row"]] for r in records]
        if part:
            cell = part[0].cell
            notes = [_INSIDE] * any(r["ours"] is not None for r in records) + _about(cell.data, part, "table3")
            title = _caption(f"Study of {study}: accuracy, %", cell.data, cell.n_shot)
            sheets.append(Sheet(title, (study, *columns[1:]), texts, records, notes))
    return sheets


def _value(study: str, title: str, cell: Cell) -> str:
    """What is studied; the kernel of the preset is not the paper's on characters."""
    kernel = cell.config().method_options["kernel"]
    is_other = study == "kernel" and cell.row == "mirror_gp" and kernel != "cosine"
    return f"{kernel}, of the preset" if is_other else title


def _by_column(groups: Sequence[Group]) -> dict[tuple[str, int], list[Group]]:
    columns: dict[tuple[str, int], list[Group]] = {}
    for group in groups:
        columns.setdefault((group.cell.data, group.cell.n_shot), []).append(group)
    return columns


def _caption(what: str, data: str, n_shot: int) -> str:
    return f"{what}: {data}, {n_shot} shot{'s' if n_shot > 1 else ''}"


def _changed(group: Group) -> list[str]:
    """Settings of the result that are not those of its cell, as those of a tag are."""
    return different_settings(group.cell.config(), group.first.record["config"]) if group.first else []


def _about(data: str, groups: Sequence[Group], target: str) -> list[str]:
    """What differs from the paper's set-up, and how the rest is run."""
    run = [group for group in groups if group.first]
    notes = []
    if run and data in DATASETS and DATASETS[data].deviations:
        notes.append("Data: " + ". ".join(DATASETS[data].deviations) + ".")
    if run and all(group.cell.budget != "paper" for group in run):
        notes.append(f"Budget: {run[0].cell.budget}, not the paper's; these numbers are no reproduction.")
    for group in run:
        note = row_of(group.cell.row).note if group.cell.row in ROWS else ""
        notes += [f"{group.title}: {note}"] * bool(note)
        changed = _changed(group)
        notes += [f"{group.title}: {'; '.join(changed)}."] * bool(changed)
    waiting = [group.cell for group in groups if not group.first]
    if waiting:
        names = "" if len(waiting) == len(groups) > 1 else ",".join(cell.row for cell in waiting)
        notes.append(f"Not run: `{waiting[0]._replace(row=names).command(target)}`")
    return notes

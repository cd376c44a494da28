"""Table 1: accuracy by the paper's protocol and by a clean one.

The paper's protocol is the mean and standard deviation of 5 passes of 600 tasks over one trained model, which exclude
the variance of training. The clean protocol has the mean and standard deviation over training seeds, the 95 % interval
over tasks, and paired differences on the same tasks.
"""

from collections.abc import Sequence

import torch

from mirrorshot.paper.cells import Result
from mirrorshot.paper.published import TABLE_1, Value
from mirrorshot.paper.tables import NOT_RUN, Group, Record, Sheet, columns_of, general_notes, run_notes, with_spread
from mirrorshot.training.evaluation.results import interval_95

_PRESETS = (
    "Preset: `paper` has the settings of the paper, as far as it gives them; `default` has ours, for all methods: on "
    "photographs most are trained with another optimiser and other crops, and features of an image and of its mirror "
    "image are averaged, which alone is worth about two points to MD-BFSC (design.md). MD-BFSC alone has an auxiliary "
    "classifier over the training classes of photographs, worth two to five points, which other rows could have "
    "(`auxiliary_weight`), and a temperature rule. A number above the paper's is therefore no sign that the paper's is "
    "wrong."
)
INSIDE = (
    "Inside: whether our number by the paper's protocol is within the spread that the paper prints, or above or below "
    "it; that spread is the standard deviation of test passes over one trained model."
)
_SEEDS = "Over training seeds: mean and standard deviation of n trained models; - where there is one."
_PAIRS = "In pairs: the mean difference on the same tasks and its 95 % interval; - where the tasks are not stored."
_COLUMNS = (
    "method",
    "preset",
    "paper",
    "ours, paper's protocol",
    "difference",
    "inside",
    "95 % over tasks",
    "over training seeds",
    "minus MD-BFSC, in pairs",
)
_OTHER_COLUMNS = (
    "method",
    "preset",
    "tag",
    "what was changed",
    "ours, paper's protocol",
    "95 % over tasks",
    "difference from the paper",
    "minus the preset, in pairs",
)


def accuracy_sheets(groups: Sequence[Group], *, show_missing: bool = True) -> list[Sheet]:
    """Return a table for each data set and number of shots, and one of other settings if there are any."""
    sheets = []
    for title, plain, tagged in columns_of(groups):
        if plain:
            records = [_record(group, _reference(group, plain, "mirror_gp")) for group in plain]
            rows = [_row(r, g) for r, g in zip(records, plain, strict=True) if show_missing or g.first]
            general = general_notes([*plain, *tagged], _PRESETS, INSIDE, _SEEDS, _PAIRS)
            notes = run_notes(plain, "table1")
            sheets.append(Sheet(f"Accuracy, %: {title}", _COLUMNS, rows, records, notes, general))
        if tagged:
            sheets.append(other_settings_sheet(title, plain, tagged)._replace(is_part=bool(plain)))
    return sheets


def other_settings_sheet(title: str, plain: Sequence[Group], tagged: Sequence[Group]) -> Sheet:
    """Return the rows with a tag, each compared with the row of its preset."""
    records = [_record(group, _reference(group, plain, group.cell.row)) for group in tagged]
    rows = []
    for r, group in zip(records, tagged, strict=True):
        ours, difference, interval, pair = _texts(r)
        settings = r["settings"] or "nothing"
        rows.append([r["method"], group.preset, r["tag"], settings, ours, interval, difference, pair])
    notes = run_notes(tagged, "table1")
    return Sheet(f"Other settings, accuracy: {title}", _OTHER_COLUMNS, rows, records, notes, is_part=True)


def _reference(group: Group, plain: Sequence[Group], row: str) -> Result | None:
    wanted = (row, *group.cell[3:5])
    return next((other.first for other in plain if (other.cell.row, *other.cell[3:5]) == wanted), None)


def _record(group: Group, reference: Result | None) -> Record:
    cell, first = group.cell, group.first
    clean, clean_spread = group.accuracy if group.results else (None, None)
    pair = paired(first, reference)
    return {
        **group.about,
        **compared(TABLE_1.get(cell.row, {}).get((cell.data, cell.n_shot)), first),
        "clean": clean,
        "clean_spread": clean_spread,
        "n_seeds": len(group.results),
        "interval_95": 100 * first.evaluation["accuracy_interval_95"] if first else None,
        "paired_with": reference.cell.name if pair and reference else None,
        "paired": pair and pair[0],
        "paired_interval_95": pair and pair[1],
        **group.origin("table1"),
    }


def compared(published: Value | None, result: Result | None) -> Record:
    """Compare the paper's number with ours, in percent, by the paper's protocol."""
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


def paired(result: Result | None, reference: Result | None) -> tuple[float, float] | None:
    """Return the mean difference in percent on the same tasks and its 95 % interval; None without stored tasks."""
    if result is None or reference is None or result is reference:
        return None
    tasks = [r.record.get("task_accuracy") for r in (result, reference)]
    if None in tasks or result.evaluation["protocol"]["episodes"] != reference.evaluation["protocol"]["episodes"]:
        return None
    rows = [[[float(x) for x in line.split()] for line in lines] for lines in tasks if lines]
    a, b = (torch.tensor(values, dtype=torch.float64) for values in rows)
    if a.shape != b.shape:
        return None
    return float(100 * (a - b).mean()), interval_95(100 * (a - b))


def _row(record: Record, group: Group) -> list[str]:
    is_one = record["clean_spread"] is None
    seeds = "-" if is_one else f"{with_spread(record['clean'], record['clean_spread'])} (n = {record['n_seeds']})"
    _, _, interval, paired_text = _texts(record)
    return [record["method"], group.preset, *comparison(record), interval, seeds, paired_text]


def comparison(record: Record) -> list[str]:
    """Return the paper's number, ours, their difference, and whether it is inside the paper's spread, as text."""
    is_inside, above = record["inside_paper_spread"], (record["difference"] or 0) > 0
    inside = "-" if is_inside is None else "yes" if is_inside else "above" if above else "below"
    ours, difference, *_ = _texts(record)
    return [with_spread(record["paper"], record["paper_spread"]), ours, difference, inside]


def _texts(record: Record) -> tuple[str, str, str, str]:
    ours, difference, interval, pair = (record.get(key) for key in ("ours", "difference", "interval_95", "paired"))
    return (
        NOT_RUN if ours is None else with_spread(ours, record["ours_spread"]),
        "-" if difference is None else f"{difference:+.2f}",
        "-" if interval is None else f"± {interval:.2f}",
        "-" if pair is None else f"{pair:+.2f} ± {record['paired_interval_95']:.2f}",
    )

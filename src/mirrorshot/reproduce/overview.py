"""Tables 1 and 2 at a glance: a line for each method, one of our results for each number of the paper."""

from collections.abc import Sequence

from mirrorshot.reproduce.calibration import calibration_record, errors_text
from mirrorshot.reproduce.published import DATA, DATA_TITLES, FITTED_ROWS, ROWS, TABLE_1, TABLE_2
from mirrorshot.reproduce.sheets import Sheet
from mirrorshot.reproduce.tables import Group, by_column, column_title
from mirrorshot.reproduce.targets import BUDGETS

_TASKS = f"{len(BUDGETS['paper'].seeds)} x {BUDGETS['paper'].n_tasks} test tasks"
_OURS = (
    "the settings of the preset `default` unless a mark says otherwise, one trained model, {tasks}; - where nothing "
    "was run. {section} explains each number."
)


class Footnotes:
    """Marks behind numbers, and what they stand for; the same text has the same mark."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, group: Group) -> str:
        """The mark of a result whose settings are not those of the preset `default`; nothing for others."""
        parts = [f"preset {group.cell.preset}"] * (group.cell.preset != "default") + group.changes
        if group.cell.tag and not group.changes:
            parts.append(f"tag {group.cell.tag.removeprefix('_')}")
        if not parts:
            return ""
        text = "; ".join(parts)
        self.texts += [text] * (text not in self.texts)
        return f"<sup>{self.texts.index(text) + 1}</sup>"

    @property
    def notes(self) -> list[str]:
        """The lines below the table."""
        return [f"<sup>{i}</sup> {text}." for i, text in enumerate(self.texts, 1)]


def chosen(groups: Sequence[Group]) -> Group | None:
    """The result of a row that stands for it: of the preset `default`, with as few other settings as there are.

    Budgets but the paper's do not count.
    """
    run = [group for group in groups if group.first and group.cell.budget == "paper"]
    return min(run, key=lambda g: (g.cell.preset != "default", len(g.changes), g.cell.tag), default=None)


def accuracy_overview(groups: Sequence[Group]) -> Sheet | None:
    """Table 1 as one matrix, ours with the paper's in brackets; None if nothing was run."""
    columns = [(data, n_shot) for data in DATA for n_shot in (1, 5)]
    found, footnotes = _by_row(groups), Footnotes()
    rows = []
    for row, (title, cells) in found.items():
        texts = []
        for column in columns:
            group, paper = cells.get(column), TABLE_1.get(row, {}).get(column)
            if group is None or group.first is None:
                texts.append("-")
                continue
            bracket = f" ({paper.mean:.2f})" if paper else ""
            texts.append(f"{100 * group.first.evaluation['accuracy']:.2f}{bracket}{footnotes.mark(group)}")
        rows.append([title, *texts])
    ours = _OURS.format(tasks=f"mean of {_TASKS}", section="[Table 1](#table-1-accuracy)")
    notes = [f"Accuracy in percent, ours (the paper's). Ours: {ours}", *footnotes.notes]
    heads = ("method", *(column_title(*column) for column in columns))
    return Sheet("Accuracy", heads, rows, [], notes) if any(cells for _, cells in found.values()) else None


def calibration_overview(groups: Sequence[Group]) -> Sheet | None:
    """Table 2 as one matrix of the rows that were run, raw and at one temperature; None if nothing was run."""
    found, footnotes = _by_row(groups), Footnotes()
    rows = []
    for row, (title, cells) in found.items():
        texts = []
        for data in DATA:
            group = cells.get((data, 5))
            if group is None:
                texts += ["-", "-"]
                continue
            record, mark = calibration_record(group), footnotes.mark(group)
            bracket = f" ({errors_text(record, 'paper')})" if data in TABLE_2.get(row, {}) else ""
            is_fitted = row in FITTED_ROWS
            texts.append(errors_text(record, "raw") + bracket * (not is_fitted) + mark)
            texts.append(errors_text(record, "one_temperature") + bracket * is_fitted + mark)
        if set(texts) != {"-"}:
            rows.append([title, *texts])
    ours = _OURS.format(tasks=_TASKS, section="[Table 2](#table-2-calibration)")
    notes = [
        "Expected / maximum calibration error at 5 shots, as predicted (raw) and at one temperature; ours (the "
        "paper's). The paper's stands where its protocol is closest: behind the raw errors, or, where the released "
        f"code fits two temperatures, behind those at one. Ours: {ours}",
        *footnotes.notes,
    ]
    heads = ("method", *(f"{DATA_TITLES[data]}, {kind}" for data in DATA for kind in ("raw", "one temperature")))
    return Sheet("Calibration", heads, rows, [], notes) if rows else None


def _by_row(groups: Sequence[Group]) -> dict[str, tuple[str, dict[tuple[str, int], Group]]]:
    """Title and chosen results of each row by column: the rows of the paper in its order, then other methods."""
    found: dict[str, tuple[str, dict[tuple[str, int], Group]]] = {row: (about.title, {}) for row, about in ROWS.items()}
    for column, part in by_column(groups).items():
        if column[0] not in DATA:
            continue
        for row in dict.fromkeys(group.cell.row for group in part):
            group = chosen([group for group in part if group.cell.row == row])
            if group:
                found.setdefault(row, (group.title, {}))[1][column] = group
    return found

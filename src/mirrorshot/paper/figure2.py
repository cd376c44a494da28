"""Figure 2: reliability diagrams of results with stored bins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorshot.paper.cells import Result
from mirrorshot.paper.tables import Group, column_title
from mirrorshot.training.evaluation.calibration import stored_bins
from mirrorshot.types import DataError
from mirrorshot.views import ReliabilityDisplay, reliability_figure

if TYPE_CHECKING:  # matplotlib is imported when something is drawn
    import matplotlib.figure


def figure_of_groups(groups: Sequence[Group], folder: Path) -> "matplotlib.figure.Figure":
    """Draw the rows that have stored bins; raise `DataError` if no row has any. `folder` is that of the results."""
    found = {
        f"{group.title}, {column_title(group.cell.data, group.cell.n_shot)}": group.first
        for group in groups
        if group.first and group.first.evaluation["raw"].get("bins")
    }
    if not found:
        cell = groups[0].cell
        again = " --again" if (folder / f"{cell.name}.json").exists() else ""
        raise DataError(
            f"Expected results with reliability bins in {folder}, but {cell.name} has none. Run: "
            f"{cell.command('table2')}{again}"
        )
    return calibration_figure(found)


def calibration_figure(results: Mapping[str, Result]) -> "matplotlib.figure.Figure":
    """Draw a row of diagrams for each result: as predicted, and at one temperature."""
    kinds = {"raw": "as predicted", "calibrated": "one temperature"}
    rows: list[Sequence[ReliabilityDisplay]] = []
    for title, result in results.items():
        stored = {text: (result.evaluation.get(kind) or {}).get("bins") for kind, text in kinds.items()}
        row = [ReliabilityDisplay(stored_bins(b), name=f"{title}\n{text}") for text, b in stored.items() if b]
        rows += [row] * bool(row)
    return reliability_figure(rows)

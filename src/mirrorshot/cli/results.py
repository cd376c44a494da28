"""What evaluated runs have reached: as files, as tables, and as a report."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mirrorshot.checkpoint import read_log, write_atomically
from mirrorshot.cli.terminal import package_version, print_tables
from mirrorshot.config import Config
from mirrorshot.evaluation import Evaluation, PairedDifference, paired_difference
from mirrorshot.report import (
    Picture,
    Section,
    Table,
    calibration_table,
    difference_table,
    evaluation_table,
    write_report,
)


class Results(NamedTuple):
    """Evaluations of some runs on the same tasks.

    Attributes:
        data: name or path of the data.
        checkpoint: which weights, best or last.
        configs: settings of the runs, by folder.
        found: their evaluations.
    """

    data: str
    checkpoint: str
    configs: Mapping[Path, Config]
    found: Mapping[Path, Evaluation]

    @property
    def named(self) -> dict[str, Evaluation]:
        """The evaluations by the methods of the runs if these differ, else by short names of the runs."""
        methods = [self.configs[run].method for run in self.found]
        names = methods if len(set(methods)) == len(methods) else run_names(list(self.found))
        return dict(zip(names, self.found.values(), strict=True))


def run_names(runs: Sequence[Path]) -> list[str]:
    """Short names of runs: those of their folders, if these differ.

    Example:
        >>> run_names([Path("runs/a"), Path("runs/b")]), run_names([Path("one/a"), Path("two/a")])
        (['a', 'b'], ['one/a', 'two/a'])
    """
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(runs) else [run.as_posix() for run in runs]


def file_name(results: Results, run: Path) -> str:
    """`evaluation.json` for tasks such as the run was trained on; other tasks have files of their own."""
    config, protocol = results.configs[run], results.found[run].protocol
    own = (results.data, protocol.n_way, protocol.n_shot) == (config.data, config.n_way, config.n_shot)
    other = "" if own else f"-{Path(results.data).stem}-{protocol.n_way}way-{protocol.n_shot}shot"
    return f"evaluation{other}{'' if results.checkpoint == 'best' else '-last'}.json"


def write_json(results: Results) -> dict[str, Any]:
    """Write the numbers of each run into its folder; return those of all, and their differences in pairs."""
    records = []
    for run, found in results.found.items():
        about = {"run": str(run), "method": results.configs[run].method, "data": results.data}
        record = {"mirrorshot_version": package_version(), **about, "checkpoint": results.checkpoint, **found.record()}
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
        write_atomically(run / file_name(results, run), text.encode())
        records.append(record)
    return {"evaluations": records, "differences": differences(results.named)}


def differences(found: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """All pairs of runs, task by task, ready for JSON."""
    return [
        {
            "run": a,
            "minus": b,
            "accuracy": _plain(paired_difference(found[a], found[b])),
            "nll": _plain(paired_difference(found[a], found[b], "nll")),
        }
        for a, b in itertools.combinations(found, 2)
    ]


def _plain(difference: PairedDifference) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in difference._asdict().items()}


def print_results(results: Results, report: Path | None) -> None:
    """Tables in the terminal, and where the files are."""
    print_tables(_tables(results))
    for run in results.found:
        typer.echo(f"Numbers: {run / file_name(results, run)}")
    if report is not None:
        typer.echo(f"Report:  {report}")


def _tables(results: Results) -> list[Table]:
    protocol = next(iter(results.found.values())).protocol
    caption = f"{results.data}, {protocol.n_way} classes, {protocol.n_shot} labelled of each"
    tables = [evaluation_table(results.named, caption=caption)]
    if any(found.tempered for found in results.named.values()):
        tables.append(calibration_table(results.named, caption="Calibration: raw, one temperature, two temperatures"))
    if len(results.named) > 1:
        first = next(iter(results.named))
        tables.append(difference_table(results.named, reference=first, caption="On the same tasks, in pairs"))
    return tables


def write_html(path: Path, results: Results) -> None:
    """The report of an evaluation: tables, reliability diagrams, learning curves."""
    from mirrorshot.plotting import ReliabilityDisplay, learning_curve_figure, reliability_figure

    displays = [[ReliabilityDisplay(found.raw.bins, name=name) for name, found in results.named.items()]]
    curves = reliability_figure([row[i : i + 3] for row in displays for i in range(0, len(row), 3)])
    sections = [
        Section("Results", _tables(results)),
        Section("Reliability", [Picture(curves, "Reliability diagrams of the runs.", _RELIABILITY)]),
    ]
    logs = {name: read_log(run) for name, run in zip(results.named, results.found, strict=True)}
    if any(logs.values()):
        figure = learning_curve_figure({name: log for name, log in logs.items() if log})
        sections.append(Section("Training", [Picture(figure, "Loss and validation of the runs while they trained.")]))
    title = f"Evaluation on {Path(results.data).name}"
    intro = f"{len(results.found)} trained run{'s' if len(results.found) > 1 else ''}, on classes not seen in training."
    write_report(path, title=title, intro=intro, sections=sections)


_RELIABILITY = (
    "How often predictions are right, at each confidence, before any temperature is fitted on validation classes. "
    "Bars below the diagonal: they claim too much."
)

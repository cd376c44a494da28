"""Evaluations of runs as JSON files, tables and reports."""

import hashlib
import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.cli.tables import print_tables
from mirrorshot.cli.terminal import say
from mirrorshot.files.checkpoint import load_info
from mirrorshot.files.texts import count
from mirrorshot.files.writing import write_atomically
from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import Evaluation
from mirrorshot.training.folder import read_log
from mirrorshot.views import (
    Gate,
    ReportedRun,
    Section,
    Table,
    calibration_table,
    comparison_sections,
    difference_table,
    evaluation_table,
    paired_differences,
    write_report,
)

_PROGRESS = ("step", "episodes", "val_accuracy", "val_nll")


class Results(NamedTuple):
    """Evaluations of some runs on the same tasks."""

    data: str  # name or path of the data
    checkpoint: str  # weights, "best" or "last"
    configs: Mapping[Path, Config]  # settings of the runs, by folder
    found: Mapping[Path, Evaluation]  # their evaluations
    average_flips: bool | None = None  # as given to `evaluate`; None: as the runs were trained

    @property
    def named(self) -> dict[str, Evaluation]:
        """Return the evaluations by the names of `shown_names`."""
        return dict(zip(shown_names(self.configs), self.found.values(), strict=True))


def shown_names(configs: Mapping[Path, Config]) -> list[str]:
    """Return display names of runs: their methods if these differ, else the names of their folders, else their paths.

    Example:
        >>> shown_names({Path("runs/a"): Config(), Path("runs/b"): Config()})
        ['a', 'b']
        >>> shown_names({Path("one/a"): Config(), Path("two/a"): Config()})
        ['one/a', 'two/a']
    """
    methods = [config.method for config in configs.values()]
    for names in (methods, [run.resolve().name for run in configs]):
        if len(set(names)) == len(configs):
            return names
    return [run.as_posix() for run in configs]


def file_name(results: Results, run: Path) -> str:
    """Return `evaluation.json`, with a suffix for tasks or features other than in training, or the last weights."""
    config, protocol = results.configs[run], results.found[run].protocol
    own = (results.data, protocol.n_way, protocol.n_shot) == (config.data, config.n_way, config.n_shot)
    other = "" if own else f"-{Path(results.data).stem}-{protocol.n_way}way-{protocol.n_shot}shot"
    if results.average_flips not in (None, config.average_flips):
        other += "-flips" if results.average_flips else "-one-view"
    return f"evaluation{other}{'' if results.checkpoint == 'best' else '-last'}.json"


def write_evaluations(results: Results) -> dict[str, Any]:
    """Write the numbers of each run into its folder; return all numbers and the paired differences."""
    records = []
    for run, found in results.found.items():
        config, flips = results.configs[run], results.average_flips
        record = {
            "mirrorshot_version": version("mirrorshot"),
            "run": str(run),
            "method": config.method,
            "data": results.data,
            "average_flips": config.average_flips if flips is None else flips,
            "checkpoint": results.checkpoint,
            "validated": validated(run, results.checkpoint),
            **found.record(),
        }
        tasks = found.record(with_tasks=True)
        stored = record | {name: tasks[name] for name in ("task_accuracy", "task_nll")}
        write_atomically(run / file_name(results, run), compact_json(stored).encode())
        records.append(record)
    return {"evaluations": records, "differences": paired_differences(results.named)}


def read_stored(run: Path) -> Evaluation | None:
    """Read the evaluation that `mirrorshot evaluate` wrote for the present weights; None if there is none."""
    try:
        record = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
        return Evaluation.from_record(record) if record["validated"] == validated(run, "best") else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none, or one of an older version
        return None


def validated(run: Path, checkpoint: str) -> dict[str, Any]:
    """Return training progress and hash of a checkpoint, to recognise evaluations of other weights."""
    path = run / f"{checkpoint}.safetensors"
    info = {name: value for name, value in load_info(path).items() if name in _PROGRESS}
    return info | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def compact_json(record: Mapping[str, Any]) -> str:
    """Return indented JSON with each list of numbers on one line.

    Example:
        >>> print(compact_json({"a": [1, 2]}), end="")
        {
          "a": [1, 2]
        }
    """
    text = json.dumps(record, indent=2, allow_nan=False)
    plain = re.compile(r"\[\s*((?:-?[\d.eE+-]+|null)(?:,\s*(?:-?[\d.eE+-]+|null))*)\s*\]")
    return plain.sub(lambda found: f"[{', '.join(part.strip() for part in found[1].split(','))}]", text) + "\n"


def print_results(results: Results, report: Path | None) -> None:
    """Print tables, and the paths of the files."""
    print_tables(_tables(results))
    for run in results.found:
        say(f"Numbers: {run / file_name(results, run)}")
    if report is not None:
        say(f"Report:  {report}")


def _tables(results: Results) -> list[Table]:
    named, protocol = results.named, next(iter(results.found.values())).protocol
    caption = f"{results.data}, {protocol.n_way} classes, {protocol.n_shot} labelled of each"
    tables = [evaluation_table(named, caption=caption)]
    if any(found.tempered for found in named.values()):
        tables.append(calibration_table(named, caption="Calibration: raw, one temperature, two temperatures"))
    if len(named) > 1:
        tables.append(difference_table(named, reference=next(iter(named)), caption="On the same tasks, in pairs"))
    return tables


def write_html(path: Path, results: Results) -> None:
    """Write the report of an evaluation as one HTML file."""
    runs = {
        name: ReportedRun(run, results.configs[run], results.data, results.found[run], read_log(run))
        for name, run in zip(results.named, results.found, strict=True)
    }
    write_comparison(path, f"Evaluation on {Path(results.data).name}", runs)


def write_comparison(
    path: Path, title: str, runs: Mapping[str, ReportedRun], gate: Gate | None = None
) -> list[Section]:
    """Write a report on evaluated runs, and return its sections."""
    sections = list(comparison_sections(runs, gate))
    intro = f"{count(len(runs), 'trained runs')}, on classes not seen in training."
    write_report(path, title=title, intro=intro, sections=sections)
    return sections

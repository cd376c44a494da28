"""What evaluated runs have reached: as files, as tables, and as a report."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.cli.terminal import package_version, print_tables, say
from mirrorshot.files.checkpoint import load_info, write_atomically
from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import Evaluation
from mirrorshot.training.folder import read_log
from mirrorshot.views import (
    ReportedRun,
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
    """Evaluations of some runs on the same tasks.

    Attributes:
        data: name or path of the data.
        checkpoint: which weights, best or last.
        configs: settings of the runs, by folder.
        found: their evaluations.
        average_flips: as given to `evaluate`; None: as the runs were trained.
    """

    data: str
    checkpoint: str
    configs: Mapping[Path, Config]
    found: Mapping[Path, Evaluation]
    average_flips: bool | None = None

    @property
    def named(self) -> dict[str, Evaluation]:
        """The evaluations by the methods of the runs if these differ, else by short names of the runs."""
        return dict(zip(shown_names(self.configs), self.found.values(), strict=True))


def shown_names(configs: Mapping[Path, Config]) -> list[str]:
    """Names to show runs under: their methods if these differ, else short names of the runs."""
    methods = [config.method for config in configs.values()]
    return methods if len(set(methods)) == len(methods) else run_names(list(configs))


def run_names(runs: Sequence[Path]) -> list[str]:
    """Short names of runs: those of their folders, if these differ.

    Example:
        >>> run_names([Path("runs/a"), Path("runs/b")]), run_names([Path("one/a"), Path("two/a")])
        (['a', 'b'], ['one/a', 'two/a'])
    """
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(runs) else [run.as_posix() for run in runs]


def file_name(results: Results, run: Path) -> str:
    """`evaluation.json` for tasks and features such as those of training; others have files of their own."""
    config, protocol = results.configs[run], results.found[run].protocol
    own = (results.data, protocol.n_way, protocol.n_shot) == (config.data, config.n_way, config.n_shot)
    other = "" if own else f"-{Path(results.data).stem}-{protocol.n_way}way-{protocol.n_shot}shot"
    if results.average_flips not in (None, config.average_flips):
        other += "-flips" if results.average_flips else "-one-view"
    return f"evaluation{other}{'' if results.checkpoint == 'best' else '-last'}.json"


def write_json(results: Results) -> dict[str, Any]:
    """Write the numbers of each run into its folder; return those of all, and their differences in pairs."""
    records = []
    for run, found in results.found.items():
        config, flips = results.configs[run], results.average_flips
        about: dict[str, Any] = {"run": str(run), "method": config.method, "data": results.data}
        about |= {"average_flips": config.average_flips if flips is None else flips}
        about |= {"checkpoint": results.checkpoint, "validated": validated(run, results.checkpoint)}
        record = {"mirrorshot_version": package_version(), **about, **found.record()}
        tasks = found.record(with_tasks=True)
        stored = record | {name: tasks[name] for name in ("task_accuracy", "task_nll")}
        write_atomically(run / file_name(results, run), compact_json(stored).encode())
        records.append(record)
    return {"evaluations": records, "differences": paired_differences(results.named)}


def read_stored(run: Path, checkpoint: str = "best") -> tuple[str, Evaluation] | None:
    """Data and evaluation that `mirrorshot evaluate` left for the weights of now; None if there is none that serves."""
    path = run / f"evaluation{'' if checkpoint == 'best' else '-last'}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        is_of_now = record["validated"] == validated(run, checkpoint)
        return (str(record["data"]), Evaluation.from_record(record)) if is_of_now else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none, or one of an older version
        return None


def validated(run: Path, checkpoint: str) -> dict[str, Any]:
    """How far the weights of a run had come and which they are, to know an evaluation of other ones."""
    path = run / f"{checkpoint}.safetensors"
    info = {name: value for name, value in load_info(path).items() if name in _PROGRESS}
    return info | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def compact_json(record: Mapping[str, Any]) -> str:
    """Indented JSON with lists of numbers on one line each.

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
    """Tables in the terminal, and where the files are."""
    print_tables(_tables(results))
    for run in results.found:
        say(f"Numbers: {run / file_name(results, run)}")
    if report is not None:
        say(f"Report:  {report}")


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
    """The report of an evaluation: tables, reliability diagrams, risk, learning curves, settings."""
    runs = {
        name: ReportedRun(run, results.configs[run], results.data, results.found[run], read_log(run))
        for name, run in zip(results.named, results.found, strict=True)
    }
    title = f"Evaluation on {Path(results.data).name}"
    intro = f"{len(runs)} trained run{'s' if len(runs) > 1 else ''}, on classes not seen in training."
    write_report(path, title=title, intro=intro, sections=comparison_sections(runs))

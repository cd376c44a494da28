"""Reports on runs: results, paired differences, settings, commands to repeat the runs, and the calibration gate."""

import itertools
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mirrorshot.training.config import Config
from mirrorshot.training.evaluation import Evaluation, PairedDifference, paired_difference
from mirrorshot.training.evaluation.calibration import finite
from mirrorshot.training.evaluation.results import differences
from mirrorshot.types import InvalidInputError
from mirrorshot.views.episode import EpisodeDisplay
from mirrorshot.views.learning import with_elbo
from mirrorshot.views.page import Section, Table
from mirrorshot.views.sections import (
    cards_section,
    learning_section,
    reliability_image,
    reliability_section,
    risk_section,
)
from mirrorshot.views.tables import calibration_table, difference_table, evaluation_table
from mirrorshot.views.training_command import training_command

GateOn = Literal["raw", "calibrated"]
_ALWAYS = ("method", "data", "n_way", "n_shot", "n_episodes", "seed")  # settings shown even at their defaults


class ReportedRun(NamedTuple):
    """A run with the content of its report.

    Attributes:
        folder: folder of the run.
        config: settings of the run.
        data: name or path of the test data.
        evaluation: test results.
        log: records of training.
        cards: some test tasks; none for embeddings.
        note: parts that cannot be shown, and the reason.
    """

    folder: Path
    config: Config
    data: str
    evaluation: Evaluation
    log: Sequence[Mapping[str, Any]] = ()
    cards: Sequence[EpisodeDisplay] = ()
    note: str = ""


class Gate(NamedTuple):
    """The ECE of each run, raw or "calibrated" (at the temperature fitted on validation tasks), and its limit."""

    max_ece: float
    on: GateOn
    ece: Mapping[str, float]

    @property
    def failed(self) -> list[str]:
        """Return the names of the runs that do not pass."""
        return [name for name, ece in self.ece.items() if not ece <= self.max_ece]


def check_gate(found: Mapping[str, Evaluation], max_ece: float, on: GateOn = "raw") -> Gate:
    """Compare the ECE of each run, raw or at one temperature, with the largest one allowed.

    Raises:
        InvalidInputError: `max_ece` or `on` is invalid, or a run has no temperature.
    """
    if not 0.0 < max_ece < 1.0:
        raise InvalidInputError(f"Expected the largest ECE to be between 0 and 1, but got {max_ece}.")
    if on not in ("raw", "calibrated"):
        raise InvalidInputError(f"Expected the gate to be on 'raw' or 'calibrated', but got {on!r}.")
    ece = {}
    for name, evaluation in found.items():
        calibration = evaluation.raw if on == "raw" else evaluation.calibrated
        if calibration is None:
            raise InvalidInputError(
                f"Expected {name} to have a temperature from validation classes, but its data have none. "
                "Judge the raw predictions instead."
            )
        ece[name] = calibration.ece
    return Gate(max_ece, on, ece)


def groups_of_episodes(found: Mapping[str, Evaluation]) -> list[dict[str, Evaluation]]:
    """Group evaluations by their episodes; only those of one group can be compared in pairs."""
    groups: list[dict[str, Evaluation]] = []
    for name, evaluation in found.items():
        alike = (g for g in groups if not differences(next(iter(g.values())).protocol, evaluation.protocol))
        group = next(alike, None)
        if group is None:
            groups.append({name: evaluation})
        else:
            group[name] = evaluation
    return groups


def paired_differences(found: Mapping[str, Evaluation]) -> list[dict[str, Any]]:
    """Return the paired differences of all pairs of runs for JSON; unpaired runs have a reason instead."""
    rows: list[dict[str, Any]] = []
    for a, b in itertools.combinations(found, 2):
        try:
            accuracy, nll = (paired_difference(found[a], found[b], m) for m in ("accuracy", "nll"))
        except InvalidInputError as error:
            rows.append({"run": a, "minus": b, "not_paired": str(error)})
        else:
            rows.append({"run": a, "minus": b, "accuracy": _plain(accuracy), "nll": _plain(nll)})
    return rows


def comparison_sections(runs: Mapping[str, ReportedRun], gate: Gate | None = None) -> list[Section]:
    """Return the sections of a report on `runs`, which are given by display name."""
    from matplotlib import rc_context

    found = {name: run.evaluation for name, run in runs.items()}
    notes = [f"{name}: {run.note}" for name, run in runs.items() if run.note]
    with rc_context({"text.parse_math": False}):  # names of runs and classes may contain dollars
        return [
            Section("Results", [*_gate_words(gate), *_result_blocks(groups_of_episodes(found), runs)]),
            reliability_section(reliability_image(found)),
            risk_section(found),
            *cards_section({name: run.cards for name, run in runs.items()}),
            *learning_section({name: _history(run) for name, run in runs.items()}),
            Section("Settings, and how to run it again", [*notes, *_setting_blocks(runs)]),
        ]


def comparison_record(runs: Mapping[str, ReportedRun], gate: Gate | None = None) -> dict[str, Any]:
    """Return all numbers of the report for JSON."""
    return {
        "mirrorshot_version": version("mirrorshot"),
        "runs": [
            {
                "name": name,
                "folder": str(run.folder),
                "data": run.data,
                "config": run.config.to_dict(),
                "command": training_command(run.config),
                "evaluation": run.evaluation.record(),
            }
            for name, run in runs.items()
        ],
        "differences": paired_differences({name: run.evaluation for name, run in runs.items()}),
        "gate": None if gate is None else {**gate._asdict(), "failed": gate.failed},
    }


def _result_blocks(groups: Sequence[Mapping[str, Evaluation]], runs: Mapping[str, ReportedRun]) -> list[str | Table]:
    blocks: list[str | Table] = []
    for group in groups:
        first = next(iter(group))
        protocol = group[first].protocol
        caption = f"{Path(runs[first].data).name}, {protocol.n_way} classes, {protocol.n_shot} labelled of each"
        blocks.append(evaluation_table(group, caption=caption))
        blocks.append(calibration_table(group, caption=f"Calibration: {caption}"))
        if len(group) > 1:
            blocks.append(difference_table(group, reference=first, caption=f"On the same tasks, in pairs: {caption}"))
    if len(groups) > 1:
        why = [row["not_paired"] for row in paired_differences({next(iter(g)): next(iter(g.values())) for g in groups})]
        blocks.append("Runs in different tables are not compared in pairs.\n\n" + "\n\n".join(dict.fromkeys(why)))
    return blocks


def _gate_words(gate: Gate | None) -> list[str]:
    if gate is None:
        return []
    where = "as the predictions are" if gate.on == "raw" else "at one temperature"
    verdict = f"Not passed: {', '.join(gate.failed)}." if gate.failed else "All runs pass."
    return [f"Gate: an ECE of at most {gate.max_ece:g}, {where}. {verdict}"]


def _setting_blocks(runs: Mapping[str, ReportedRun]) -> list[str | Table]:
    configs = {name: _flat(run.config) for name, run in runs.items()}
    default = _flat(Config())
    every = dict.fromkeys(key for config in configs.values() for key in config)
    names = [key for key in every if key in _ALWAYS or any(c.get(key) != default.get(key) for c in configs.values())]
    rows = [[key, *(str(config.get(key, "\N{EN DASH}")) for config in configs.values())] for key in names]
    table = Table("Settings", ["setting", *configs], rows, {"not shown": "settings that all have their defaults"})
    again = {name: run.folder.resolve().name + "-again" for name, run in runs.items()}
    commands = [
        f"{name}\n\n$ {training_command(run.config, run.folder.parent / again[name])}" for name, run in runs.items()
    ]
    return [table, "Each line trains a run again, into a folder beside the first.", *commands]


def _history(run: ReportedRun) -> Sequence[Mapping[str, Any]]:
    """Return the log, with the bound instead of the loss if training maximised the bound."""
    objective = run.config.method_options.get("objective", "ml")
    is_bound = run.config.method in ("mirror_gp", "gd_gp") and objective == "ml"
    return with_elbo(run.log) if is_bound else run.log


def _flat(config: Config) -> dict[str, Any]:
    settings = config.to_dict()
    options = settings.pop("method_options")
    return settings | {f"method_options.{name}": value for name, value in options.items()}


def _plain(difference: PairedDifference) -> dict[str, float | None]:
    return {**difference._asdict(), "mean": finite(difference.mean), "interval": finite(difference.interval)}

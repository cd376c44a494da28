"""`mirrorshot report`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mirrorshot.cli.evaluate_command import parse_seeds, read_configs
from mirrorshot.cli.terminal import check_page, errors_as_messages, print_tables, progress_bar, refuse, say, wrong_usage

if TYPE_CHECKING:
    from mirrorshot.data.benchmarks import Dataset
    from mirrorshot.training.config import Config
    from mirrorshot.training.evaluation import Evaluation
    from mirrorshot.training.runs import Run
    from mirrorshot.views import EpisodeDisplay, Gate, ReportedRun

REPORT_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot report runs/a runs/b -o comparison.html[/cyan]
Tables, pictures and differences in pairs of two runs, in one file; the numbers in comparison.json.

[cyan]mirrorshot report runs/a --max-ece 0.05[/cyan]
Exit code 3 if the ECE of the predictions is above 0.05.

[cyan]mirrorshot report runs/a --max-ece 0.02 --gate-on calibrated --two-temperatures[/cyan]
Judge at the temperature fitted on validation classes; also show the paper's two temperatures.
"""

GATE_EXIT_CODE = 3
_OUTPUT = Path("report.html")


class _Wanted(NamedTuple):
    """What the user asked of the evaluations; None: whatever is stored, else the defaults."""

    n_query: int | None
    n_tasks: int | None
    seeds: tuple[int, ...] | None
    two_temperatures: bool

    def is_met_by(self, found: "Evaluation") -> bool:
        given = {"n_query": self.n_query, "n_tasks": self.n_tasks, "seeds": self.seeds}
        has_all = all(value is None or getattr(found.protocol, name) == value for name, value in given.items())
        return has_all and (bool(found.tempered) or not self.two_temperatures)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN", readable=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.", metavar="FILE.html")] = _OUTPUT,
    max_ece: Annotated[
        float | None, typer.Option(help="Exit with code 3 if a run has a larger ECE.", show_default="no gate")
    ] = None,
    gate_on: Annotated[str, typer.Option(help="Which ECE: raw, or calibrated (at one temperature).")] = "raw",
    n_query: Annotated[int | None, typer.Option(help="Items of each class to classify.", min=1)] = None,
    n_tasks: Annotated[int | None, typer.Option(help="Tasks for each seed.", min=1)] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds of the tasks.", show_default="1,2,3,4,5")] = None,
    two_temperatures: Annotated[
        bool, typer.Option("--two-temperatures", help="Also calibrate as the paper's released code does.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Evaluate also what has been evaluated.")] = False,
    cards: Annotated[int, typer.Option(help="Test tasks of each run to draw.", min=0, max=20)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Write a report on trained runs: one HTML file that needs nothing else, and a JSON file beside it.

    A run that `mirrorshot evaluate` has evaluated is not evaluated again, unless the options ask for other tasks.
    """
    wanted = _Wanted(n_query, n_tasks, None if seeds is None else tuple(parse_seeds(seeds)), two_temperatures)
    if max_ece is not None and not 0.0 < max_ece < 1.0:
        refuse(f"Expected --max-ece to be between 0 and 1, but got {max_ece}.")
    if gate_on not in ("raw", "calibrated"):
        refuse(f"Expected --gate-on to be raw or calibrated, but got {gate_on!r}.")
    check_page("--output", output)
    with errors_as_messages():
        from mirrorshot.files.checkpoint import write_atomically
        from mirrorshot.views import check_gate, comparison_record, comparison_sections, write_report

        shown = _collect(runs, wanted, again=again, n_cards=cards, device=device, quiet=quiet)
        found = {name: run.evaluation for name, run in shown.items()}
        gate = None if max_ece is None else check_gate(found, max_ece, gate_on)  # type: ignore[arg-type]
        sections = comparison_sections(shown, gate)
        output.parent.mkdir(parents=True, exist_ok=True)
        intro = f"{len(shown)} trained run{'s' if len(shown) > 1 else ''}, on classes not seen in training."
        write_report(output, title=" and ".join(_few(list(shown))), intro=intro, sections=sections)
        record = comparison_record(shown, gate)
        text = json.dumps(record, indent=2, allow_nan=False) + "\n"
        write_atomically(output.with_suffix(".json"), text.encode())
    if as_json:
        typer.echo(text, nl=False)
    else:
        from mirrorshot.views import Table

        print_tables([block for block in sections[0].blocks if isinstance(block, Table)])
        for line in (row["not_paired"] for row in record["differences"] if "not_paired" in row):
            say(f"Not paired: {line}")
        say(f"Report:  {output}\nNumbers: {output.with_suffix('.json')}")
    _judge(gate)


def _judge(gate: "Gate | None") -> None:
    """Say which runs do not pass, and exit."""
    if gate is None or not gate.failed:
        return
    for name in gate.failed:
        kind = "ECE" if gate.on == "raw" else "ECE at its temperature"
        say(f"Gate: {name} has an {kind} of {gate.ece[name]:.4f}, above {gate.max_ece:g}.", err=True)
    raise typer.Exit(GATE_EXIT_CODE)


def _few(names: Sequence[str]) -> list[str]:
    return [*names] if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]


def _collect(
    folders: Sequence[Path], wanted: _Wanted, *, again: bool, n_cards: int, device: str, quiet: bool
) -> dict[str, "ReportedRun"]:
    """All runs with their evaluations, stored or made now."""
    from mirrorshot.cli.results import read_stored, shown_names
    from mirrorshot.training.folder import read_log
    from mirrorshot.training.world import choose_device
    from mirrorshot.views import ReportedRun

    configs = read_configs(folders)
    with wrong_usage():
        place = choose_device(device)
    shown = {}
    with progress_bar(quiet=quiet) as stage:
        loader = _Loader(stage, place)
        for name, (folder, config) in zip(shown_names(configs), configs.items(), strict=True):
            stored = None if again else read_stored(folder)
            if stored is not None and wanted.is_met_by(stored[1]):
                evaluation = stored[1]
            else:
                evaluation = _evaluate(folder, config, wanted, loader, stage(f"Evaluating {folder.name}"))
            cards, note = _cards(folder, config, evaluation, loader, n_cards)
            shown[name] = ReportedRun(folder, config, config.data, evaluation, read_log(folder), cards, note)
    return shown


class _Loader:
    """Loads data and runs once."""

    def __init__(self, stage: Any, device: Any) -> None:
        self.stage, self.device = stage, device
        self.datasets: dict[str, Dataset] = {}
        self.runs: dict[Path, Run] = {}

    def data(self, name: str) -> "Dataset":
        from mirrorshot.training.runs import load_test_data

        if name not in self.datasets:
            self.datasets[name] = load_test_data(name, progress=self.stage("Loading data"))
        return self.datasets[name]

    def run(self, folder: Path, data: str) -> "Run":
        from mirrorshot.training.runs import load_run

        if folder not in self.runs:
            self.runs[folder] = load_run(folder, self.data(data), device=self.device)
        return self.runs[folder]


def _evaluate(folder: Path, config: "Config", wanted: _Wanted, loader: _Loader, progress: Any) -> "Evaluation":
    """Evaluate a run as `mirrorshot evaluate` does, and leave the result in its folder."""
    from mirrorshot.cli.results import Results, write_json
    from mirrorshot.training.runs import evaluate_run

    given: Mapping[str, Any] = {
        name: value for name, value in wanted._asdict().items() if value is not None and name != "two_temperatures"
    }
    found = evaluate_run(
        loader.run(folder, config.data), loader.data(config.data), two_temperatures=wanted.two_temperatures,
        progress=progress, **given,
    )  # fmt: skip
    write_json(Results(config.data, "best", {folder: config}, {folder: found}))
    return found


def _cards(
    folder: Path, config: "Config", evaluation: "Evaluation", loader: _Loader, n_cards: int
) -> tuple[list["EpisodeDisplay"], str]:
    """The first test tasks as pictures; none, and why, where there are no pictures."""
    from mirrorshot.data import EpisodeSampler
    from mirrorshot.training import build_preprocess
    from mirrorshot.types import DataError
    from mirrorshot.views import EpisodeDisplay

    if n_cards == 0:
        return [], ""
    try:
        dataset = loader.data(config.data)
    except DataError as error:
        return [], f"Its tasks are not drawn, because its data are not there. {error}"
    preprocess = build_preprocess(dataset, augment=False)
    if preprocess is None or dataset.test is None:
        return [], "Its tasks are not drawn, because its data are embeddings and not pictures."
    run, protocol = loader.run(folder, config.data), evaluation.protocol
    sampler = EpisodeSampler(dataset.test, protocol.n_way, protocol.n_shot, protocol.n_query, seed=protocol.seeds[0])
    prepare = lambda items: preprocess(items.to(run.device))  # noqa: E731
    numbers = range(min(n_cards, protocol.n_tasks))
    return EpisodeDisplay.from_method(run.method, sampler, numbers, prepare=prepare), ""

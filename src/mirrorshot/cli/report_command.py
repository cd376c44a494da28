"""`mirrorshot report`."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorshot.cli import options
from mirrorshot.cli.assessment import is_of_model
from mirrorshot.cli.evaluate_command import read_configs
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import (
    FINDINGS,
    errors_as_messages,
    prepare_page,
    refuse,
    say,
    say_json,
    wrong_usage,
)
from mirrorshot.files.texts import few

if TYPE_CHECKING:
    from mirrorshot.data.benchmarks import Dataset
    from mirrorshot.training.evaluation import Evaluation
    from mirrorshot.training.runs import Run
    from mirrorshot.views import EpisodeDisplay, Gate, ReportedRun


@options.examples(
    {
        "mirrorshot report model.mirrorshot test/ -o model.html": "A model of `mirrorshot fit` on labelled images: the "
        "verdict first, then the mistakes as images, and the images to label next.",
        "mirrorshot report runs/a runs/b -o comparison.html": "Tables, figures and paired differences of two runs, in "
        "one file; the numbers in comparison.json.",
        "mirrorshot report runs/a --max-ece 0.05": "Exit code 3 if the ECE of the predictions is above 0.05.",
        "mirrorshot report runs/a --max-ece 0.02 --gate-on calibrated --two-temperatures": "Judge at the temperature "
        "fitted on validation classes; also show the paper's two temperatures.",
    }
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="A model and labelled images; or folders of runs.", metavar="RUN", readable=False),
    ],
    given: options.Reading,
    wanted: options.Evaluating,
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.", metavar="FILE.html")] = Path(
        "report.html"
    ),
    max_ece: Annotated[
        float | None, options.of_runs(help="Exit with code 3 if a run has a larger ECE.", show_default="no gate")
    ] = None,
    gate_on: Annotated[str, options.of_runs(help="Which ECE: raw, or calibrated (at one temperature).")] = "raw",
    again: Annotated[bool, options.of_runs("--again", help="Evaluate evaluated runs again.")] = False,
    cards: Annotated[int, options.of_runs(help="Test tasks of each run to draw.", min=0, max=20)] = 1,
    pool: Annotated[
        Path | None,
        typer.Option(
            help="Unlabelled images, for those to label next.",
            metavar="FOLDER",
            show_default="the labelled",
            rich_help_panel=options.OF_MODELS,
        ),
    ] = None,
    keep_copies: options.KeepCopies = False,
) -> None:
    """Write a report on a model or on trained runs: one self-contained HTML file, and a JSON file beside it.

    A model of `fit` is a file; a run is a folder. A run that `mirrorshot evaluate` has evaluated is not evaluated
    again, unless the options ask for other tasks.
    """
    if is_of_model(runs, context):
        prepare_page("--output", output)
        from mirrorshot.cli.model_report import report_model

        report_model(runs, output, pool, given, keep_copies=keep_copies)
        return
    wanted.protocol()  # refuses wrong seeds
    if max_ece is not None and not 0.0 < max_ece < 1.0:
        refuse(f"Expected --max-ece to be between 0 and 1, but got {max_ece}.")
    if gate_on not in ("raw", "calibrated"):
        refuse(f"Expected --gate-on to be raw or calibrated, but got {gate_on!r}.")
    prepare_page("--output", output)
    with errors_as_messages():
        from mirrorshot.cli.results import write_comparison
        from mirrorshot.files.writing import write_json
        from mirrorshot.views import Table, check_gate, comparison_record

        shown = _collect(runs, wanted, again=again, n_cards=cards, quiet=given.quiet)
        found = {name: run.evaluation for name, run in shown.items()}
        gate = None if max_ece is None else check_gate(found, max_ece, gate_on)  # type: ignore[arg-type]
        sections = write_comparison(output, few(list(shown)), shown, gate)
        record = comparison_record(shown, gate)
        write_json(output.with_suffix(".json"), record)
    if given.as_json:
        say_json(record)
    else:
        from mirrorshot.cli.tables import print_tables

        print_tables([block for block in sections[0].blocks if isinstance(block, Table)])
        for line in dict.fromkeys(row["not_paired"] for row in record["differences"] if "not_paired" in row):
            say(f"Not paired: {line}")
        say(f"Report:  {output}\nNumbers: {output.with_suffix('.json')}")
    _judge(gate)


def _judge(gate: "Gate | None") -> None:
    if gate is None or not gate.failed:
        return
    for name in gate.failed:
        kind = "ECE" if gate.on == "raw" else "ECE at its temperature"
        say(f"Gate: {name} has an {kind} of {gate.ece[name]:.4f}, above {gate.max_ece:g}.", err=True)
    raise typer.Exit(FINDINGS)


def _collect(
    folders: Sequence[Path], wanted: options.Evaluating, *, again: bool, n_cards: int, quiet: bool
) -> dict[str, "ReportedRun"]:
    """Load runs with their evaluations; evaluate runs without a suitable one."""
    from mirrorshot.cli.results import Results, read_stored, shown_names, write_evaluations
    from mirrorshot.training.folder import read_log
    from mirrorshot.training.runs import evaluate_run, load_run, load_test_data
    from mirrorshot.training.world import choose_device
    from mirrorshot.views import ReportedRun

    configs = read_configs(folders)
    with wrong_usage():
        place = choose_device(wanted.device)
    shown = {}
    with progress_bar(quiet=quiet) as stage:
        load_data = cache(lambda name: load_test_data(name, progress=stage("Loading data")))
        load = cache(lambda folder: load_run(folder, load_data(configs[folder].data), device=place))
        for name, (folder, config) in zip(shown_names(configs), configs.items(), strict=True):
            evaluation = None if again else read_stored(folder)
            if evaluation is None or not _serves(evaluation, wanted):
                protocol = wanted.protocol() | {"two_temperatures": wanted.two_temperatures}
                progress = stage(f"Evaluating {folder.name}")
                evaluation = evaluate_run(load(folder), load_data(config.data), progress=progress, **protocol)
                write_evaluations(Results(config.data, "best", {folder: config}, {folder: evaluation}))
            cards, note = _cards(partial(load_data, config.data), partial(load, folder), evaluation, n_cards)
            shown[name] = ReportedRun(folder, config, config.data, evaluation, read_log(folder), cards, note)
    return shown


def _serves(found: "Evaluation", wanted: options.Evaluating) -> bool:
    has_all = all(getattr(found.protocol, name) == value for name, value in wanted.protocol().items())
    return has_all and (bool(found.tempered) or not wanted.two_temperatures)


def _cards(
    load_data: "Callable[[], Dataset]", load: "Callable[[], Run]", evaluation: "Evaluation", n_cards: int
) -> tuple[list["EpisodeDisplay"], str]:
    """Return cards of the first test tasks, or the reason why they cannot be drawn."""
    from mirrorshot.types import DataError
    from mirrorshot.views import EpisodeDisplay

    if n_cards == 0:
        return [], ""
    try:
        dataset = load_data()
    except DataError as error:
        return [], f"Its tasks are not drawn, because its data are not there. {error}"
    if not dataset.image_size or dataset.test is None:
        return [], "Its tasks are not drawn, because its data are embeddings and not images."
    protocol = evaluation.protocol
    n_tasks = min(n_cards, protocol.n_tasks)
    return EpisodeDisplay.of_run(load(), dataset, protocol[:3], seed=protocol.seeds[0], n_tasks=n_tasks), ""

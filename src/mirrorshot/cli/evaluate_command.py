"""`mirrorshot evaluate`."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mirrorshot.cli.evaluate_model import evaluate_model
from mirrorshot.cli.model_options import Download, Trust
from mirrorshot.cli.names import complete_data
from mirrorshot.cli.terminal import (
    check_page,
    errors_as_messages,
    progress_bar,
    refuse,
    say,
    wrong_usage,
)

if TYPE_CHECKING:
    from mirrorshot.training.config import Config
    from mirrorshot.training.evaluation import Evaluation

EVALUATE_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot evaluate runs/glyphs-mirror_gp-1shot[/cyan]
By the paper's protocol: 600 tasks for each of 5 seeds, classes that training never saw.

[cyan]mirrorshot evaluate runs/a runs/b --report comparison.html[/cyan]
Two runs on the same tasks, compared in pairs, with reliability diagrams.

[cyan]mirrorshot evaluate model.mirrorshot test/[/cyan]
A model of `mirrorshot fit`, on a folder of labelled pictures (or what else `fit` takes).

[cyan]mirrorshot evaluate runs/glyphs-mirror_gp-1shot --n-shot 5 --n-tasks 100 --json[/cyan]
The same weights with five examples per class, in less time, as JSON.

[cyan]mirrorshot evaluate runs/cub-mirror_gp-1shot --two-temperatures[/cyan]
With a column for the paper's two temperatures, chosen by validation ECE and MCE, beside the raw numbers.
"""


class _Sizes(NamedTuple):
    """What is evaluated, the same for all runs."""

    data: str
    n_way: int
    n_shot: int


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs; several are compared. Or a model and labelled pictures.",
            metavar="RUN",
            readable=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Name or path of other data.",
            show_default="those of the run",
            autocompletion=complete_data,
            metavar="NAME",
        ),
    ] = None,
    n_way: Annotated[int | None, typer.Option(help="Classes of a task.", min=2, show_default="as trained")] = None,
    n_shot: Annotated[
        int | None, typer.Option(help="Labelled items of each class.", min=1, show_default="as trained")
    ] = None,
    n_query: Annotated[int, typer.Option(help="Items of each class to classify.", min=1)] = 15,
    n_tasks: Annotated[int, typer.Option(help="Tasks for each seed.", min=1)] = 600,
    seeds: Annotated[str, typer.Option(help="Seeds of the tasks, a pass for each.")] = "1,2,3,4,5",
    checkpoint: Annotated[str, typer.Option(help="Weights to use: best or last.")] = "best",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    two_temperatures: Annotated[
        bool, typer.Option("--two-temperatures", help="Also calibrate as the paper's released code does.")
    ] = False,
    average_flips: Annotated[
        bool | None,
        typer.Option(
            "--average-flips/--one-view",
            help="Features are the mean over a picture and its mirror image: for photographs, not for characters.",
            show_default="as trained",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write a report.", metavar="FILE.html")] = None,
    skip_corrupt: Annotated[bool, typer.Option("--skip-corrupt", help="Leave out pictures that are damaged.")] = False,
    trust_encoder: Trust = False,
    download: Download = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Evaluate trained runs on classes they have never seen: accuracy, and what their probabilities are worth.

    The temperature is fitted on validation classes, never on the test. Writes evaluation.json into each run. With the
    file of a model and labelled pictures in place of runs, it evaluates that model.
    """
    if runs[0].is_file():
        evaluate_model(runs, trust_encoder=trust_encoder, download=download, quiet=quiet, as_json=as_json)
        return
    numbers = parse_seeds(seeds)
    if checkpoint not in ("best", "last"):
        refuse(f"Expected --checkpoint to be best or last, but got {checkpoint!r}.")
    if report is not None:
        check_page("--report", report)
    with errors_as_messages():
        from mirrorshot.cli.results import Results, print_results, write_html, write_json

        configs = read_configs(runs)
        sizes = _common_sizes(configs, data, n_way, n_shot)
        weights = {"checkpoint": checkpoint, "average_flips": average_flips}
        found = _evaluate(
            runs, sizes, weights, device, skip_corrupt, quiet, n_query=n_query, n_tasks=n_tasks, seeds=numbers,
            two_temperatures=two_temperatures,
        )  # fmt: skip
        results = Results(sizes.data, checkpoint, configs, found, average_flips)
        record = write_json(results)
        if report is not None:
            write_html(report, results)
    if as_json:
        say(json.dumps(record, indent=2, allow_nan=False))
    else:
        print_results(results, report)


def parse_seeds(text: str) -> list[int]:
    """Seeds from `1,2,3`."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        refuse(f"Expected --seeds to be numbers with commas, for instance 1,2,3, but got {text!r}.")
    if min(seeds) < 0 or len(set(seeds)) < len(seeds):
        refuse(f"Expected --seeds to be distinct and not negative, but got {text!r}.")
    return seeds


def read_configs(runs: Sequence[Path]) -> dict[Path, "Config"]:
    """Settings of the runs, each of which must be there once, in a folder that can be written."""
    from mirrorshot.training.config import from_dict
    from mirrorshot.training.folder import read_config

    if len(set(runs)) < len(runs):
        refuse("Expected every RUN once, but got one twice.")
    configs = {run: from_dict(read_config(run)) for run in runs}
    for run in runs:
        if not os.access(run, os.W_OK | os.X_OK):
            refuse(f"Expected to write evaluation.json into {run}, but got: no permission. Copy the run.")
    return configs


def _common_sizes(configs: Mapping[Path, "Config"], data: str | None, n_way: int | None, n_shot: int | None) -> _Sizes:
    """Data and size of the tasks: as given, else as the runs were trained, if all were trained alike."""
    sizes = {_Sizes(data or config.data, n_way or config.n_way, n_shot or config.n_shot) for config in configs.values()}
    if len(sizes) > 1:
        shown = " and ".join(f"{s.data} ({s.n_way} ways, {s.n_shot} shots)" for s in sorted(sizes))
        refuse(f"Expected runs to compare on the same tasks, but got {shown}. Give --data, --n-way and --n-shot.")
    return sizes.pop()


def _evaluate(
    runs: Sequence[Path],
    sizes: _Sizes,
    weights: Mapping[str, Any],
    device: str,
    skip_corrupt: bool,
    quiet: bool,
    **protocol: Any,
) -> dict[Path, "Evaluation"]:
    from mirrorshot.training.runs import evaluate_run, load_run, load_test_data
    from mirrorshot.training.world import choose_device

    with wrong_usage():
        place = choose_device(device)
    with progress_bar(quiet=quiet) as stage:
        dataset = load_test_data(sizes.data, skip_corrupt=skip_corrupt, progress=stage("Loading data"))
        loaded = {run: load_run(run, dataset, device=place, **weights) for run in runs}
        return {
            path: evaluate_run(
                run, dataset, n_way=sizes.n_way, n_shot=sizes.n_shot, progress=stage(f"Evaluating {path.name}"),
                **protocol,
            )
            for path, run in loaded.items()
        }  # fmt: skip

"""`mirrorshot evaluate`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from mirrorshot.cli import options
from mirrorshot.cli.assessment import assess, is_of_model, print_assessment
from mirrorshot.cli.models import end_with_damaged
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import (
    errors_as_messages,
    prepare_page,
    refuse,
    say_json,
    short_work,
    wrong_usage,
)

if TYPE_CHECKING:
    from mirrorshot.training.config import Config
    from mirrorshot.training.evaluation import Evaluation


class _Sizes(NamedTuple):
    """Data and task sizes, the same for all runs."""

    data: str
    n_way: int
    n_shot: int


@options.examples(
    {
        "mirrorshot evaluate model.mirrorshot test/": "A model of `mirrorshot fit`, on a folder of labelled images, or "
        "on a table as for `fit`.",
        "mirrorshot evaluate model.mirrorshot test/ --keep-copies": "Also on images that the model has learned from.",
        "mirrorshot evaluate runs/glyphs-mirror_gp-1shot": "A run, by the paper's protocol: 600 tasks for each of 5 "
        "seeds, classes that training never saw.",
        "mirrorshot evaluate runs/a runs/b --report comparison.html": "Two runs on the same tasks, compared in pairs, "
        "with reliability diagrams.",
        "mirrorshot evaluate runs/glyphs-mirror_gp-1shot --n-shot 5 --n-tasks 100 --json": "The same weights with five "
        "examples per class, in less time, as JSON.",
        "mirrorshot evaluate runs/cub-mirror_gp-1shot --two-temperatures": "With a column for the paper's two "
        "temperatures, chosen by validation ECE and MCE, beside the raw numbers.",
    }
)
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="A model and labelled images; or folders of runs, several of which are compared.",
            metavar="RUN",
            readable=False,
        ),
    ],
    given: options.Reading,
    wanted: options.Evaluating,
    context: typer.Context,
    data: Annotated[
        str | None,
        options.data_option(
            help="Name or path of other data.", show_default="those of the run", rich_help_panel=options.OF_RUNS
        ),
    ] = None,
    n_way: Annotated[int | None, options.of_runs(help="Classes of a task.", min=2, show_default="as trained")] = None,
    n_shot: Annotated[
        int | None, options.n_shot_option(min=1, show_default="as trained", rich_help_panel=options.OF_RUNS)
    ] = None,
    checkpoint: Annotated[str, options.of_runs(help="Weights to use: best or last.")] = "best",
    average_flips: Annotated[
        bool | None,
        options.of_runs(
            "--average-flips/--one-view",
            help="Features are the mean over an image and its mirror image: for photographs, not for characters.",
            show_default="as trained",
        ),
    ] = None,
    report: Annotated[Path | None, options.of_runs(help="Also write a report.", metavar="FILE.html")] = None,
    skip_corrupt: options.SkipCorrupt = False,
    keep_copies: options.KeepCopies = False,
) -> None:
    """Evaluate a model on labelled images, or trained runs on classes they have never seen.

    A model of `fit` is a file. Images that it has learned from are left out.

    A run is a folder and gets the file evaluation.json. Its temperature is fitted on validation classes.
    """
    if is_of_model(runs, context):
        _evaluate_model(runs, given, keep_copies=keep_copies)
        return
    protocol = wanted.protocol() | {"two_temperatures": wanted.two_temperatures}
    if checkpoint not in ("best", "last"):
        refuse(f"Expected --checkpoint to be best or last, but got {checkpoint!r}.")
    if report is not None:
        prepare_page("--report", report)
    with errors_as_messages():
        from mirrorshot.cli.results import Results, print_results, write_evaluations, write_html

        configs = read_configs(runs)
        sizes = _common_sizes(configs, data, n_way, n_shot)
        weights = {"checkpoint": checkpoint, "average_flips": average_flips}
        protocol |= {"n_way": sizes.n_way, "n_shot": sizes.n_shot}
        found = _evaluate_runs(
            runs, sizes.data, weights, protocol, device=wanted.device, skip_corrupt=skip_corrupt, quiet=given.quiet
        )
        results = Results(sizes.data, checkpoint, configs, found, average_flips)
        record = write_evaluations(results)
        if report is not None:
            write_html(report, results)
    if given.as_json:
        say_json(record)
    else:
        print_results(results, report)


def read_configs(runs: Sequence[Path]) -> dict[Path, "Config"]:
    """Read the settings of runs; refuse duplicates and folders that cannot be written."""
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
    """Return data and task sizes: as given, else those of training, which must agree between runs."""
    sizes = {_Sizes(data or config.data, n_way or config.n_way, n_shot or config.n_shot) for config in configs.values()}
    if len(sizes) > 1:
        listed = " and ".join(f"{s.data} ({s.n_way} ways, {s.n_shot} shots)" for s in sorted(sizes))
        refuse(f"Expected runs to compare on the same tasks, but got {listed}. Give --data, --n-way and --n-shot.")
    return sizes.pop()


def _evaluate_runs(
    runs: Sequence[Path],
    data: str,
    weights: Mapping[str, Any],
    protocol: Mapping[str, Any],
    *,
    device: str,
    skip_corrupt: bool,
    quiet: bool,
) -> dict[Path, "Evaluation"]:
    from mirrorshot.training.runs import evaluate_run, load_run, load_test_data
    from mirrorshot.training.world import choose_device

    with wrong_usage():
        place = choose_device(device)
    with progress_bar(quiet=quiet) as stage:
        dataset = load_test_data(data, skip_corrupt=skip_corrupt, progress=stage("Loading data"))
        loaded = {run: load_run(run, dataset, device=place, **weights) for run in runs}
        return {
            path: evaluate_run(run, dataset, progress=stage(f"Evaluating {path.name}"), **protocol)
            for path, run in loaded.items()
        }


def _evaluate_model(paths: list[Path], given: options.Reading, *, keep_copies: bool) -> None:
    with short_work():
        found = assess(paths, given, keep_copies=keep_copies)
    if given.as_json:
        say_json(found.record())
    else:
        print_assessment(found)
    end_with_damaged(found.encoded)

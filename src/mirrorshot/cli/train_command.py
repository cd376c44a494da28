"""`mirrorshot train`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli import options
from mirrorshot.cli.completion import complete_method
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import (
    check_folder,
    errors_as_messages,
    is_first_process,
    quoted,
    refuse,
    say,
    say_json,
    wrong_usage,
)

if TYPE_CHECKING:
    from mirrorshot.training import TrainResult
    from mirrorshot.training.config import Config

_task = partial(typer.Option, rich_help_panel="Tasks")
_training = partial(typer.Option, rich_help_panel="Training")
_run = partial(typer.Option, rich_help_panel="Run")


@options.examples(
    {
        "mirrorshot train --episodes 2000": "On the glyphs, which need no download; some minutes on two cores.",
        "mirrorshot train --data cub --n-shot 5 --preset paper": "As in the paper, with the images in the folder "
        "MIRRORSHOT_DATA.",
        "mirrorshot train --data my/images --set lr=3e-4 --set method_options.kernel=rbf": "Own images, in the "
        "folders train, val and test, with a folder for each class.",
        "mirrorshot train --resume runs/glyphs-mirror_gp-1shot": "Resume a run that was stopped, exactly as if it had "
        "not been.",
        "torchrun --nproc-per-node 2 -m mirrorshot train --set tasks_per_step=2": "On two GPUs, or two processes of a "
        "CPU.",
        "mirrorshot list settings": "All settings. Later sources win: defaults, preset, TOML file, command line.",
    }
)
def train(
    data: Annotated[
        str | None,
        options.data_option(help="Name of a data set, or a path.", show_default="glyphs", rich_help_panel="Tasks"),
    ] = None,
    n_way: Annotated[int | None, _task(help="Classes of a task.", show_default="5")] = None,
    n_shot: Annotated[int | None, options.n_shot_option(show_default="1", rich_help_panel="Tasks")] = None,
    n_query: Annotated[int | None, options.n_query_option(show_default="16", rich_help_panel="Tasks")] = None,
    method: Annotated[
        str | None,
        _training(help="Method.", metavar="NAME", show_default="mirror_gp", autocompletion=complete_method),
    ] = None,
    preset: Annotated[
        str, options.preset_option(help="Settings to begin with: default or paper.", rich_help_panel="Training")
    ] = "default",
    config: Annotated[Path | None, _training(help="TOML file of settings.", metavar="FILE")] = None,
    episodes: Annotated[int | None, _training(help="Tasks to train on.", show_default="by preset")] = None,
    seed: Annotated[int | None, _training(help="Seed of weights, tasks, augmentation.", show_default="1")] = None,
    overrides: Annotated[
        list[str] | None, options.set_option(help="Any other setting; may be repeated.", rich_help_panel="Training")
    ] = None,
    output: Annotated[
        Path | None,
        _run(help="Folder of the run.", metavar="FOLDER", show_default="runs/<data>-<method>-<n>shot"),
    ] = None,
    resume: Annotated[Path | None, _run(help="Run to resume.", metavar="FOLDER")] = None,
    device: Annotated[str | None, options.device_option(show_default="auto", rich_help_panel="Run")] = None,
    skip_corrupt: options.SkipCorrupt = False,
    tensorboard: Annotated[bool, _run("--tensorboard", help="Also write TensorBoard files.")] = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Meta-train a method on many small tasks, and keep the weights that are best on validation tasks."""
    flags = {
        "data": data, "method": method, "n_way": n_way, "n_shot": n_shot, "n_query": n_query,
        "n_episodes": episodes, "seed": seed, "device": device, "tensorboard": tensorboard or None,
    }  # fmt: skip
    if resume is None:
        settings, folder = _new_run(preset, config, flags, overrides or [], output)
    else:
        given = {name for name, value in flags.items() if value is not None} - {"device"}
        if given or preset != "default" or config or overrides or output:
            refuse("Expected --resume without other settings, which are those of the run; only --device may change.")
        settings, folder = _old_run(resume, device), resume
    with errors_as_messages(), _resumable(folder):
        result = _train(settings, folder, resume is not None, skip_corrupt, quiet)
    if is_first_process():
        _print(result, settings, folder, as_json)


def _new_run(
    preset: str, file: Path | None, flags: dict[str, Any], overrides: list[str], output: Path | None
) -> tuple["Config", Path]:
    from mirrorshot.cli.settings import check_names, compose, run_folder

    with wrong_usage():
        settings = compose(preset, file, flags, overrides)
        check_names(settings)
    folder = output or run_folder(settings)
    check_folder("--output", folder)
    if is_first_process() and (folder / "config.json").exists():
        refuse(
            f"Expected --output to be a folder without a run, but got {folder}, which has one. Resume it with "
            f"{_command('train --resume', folder)}, or choose another folder."
        )
    return settings, folder


def _old_run(folder: Path, device: str | None) -> "Config":
    with errors_as_messages():
        from mirrorshot.training.config import from_dict
        from mirrorshot.training.folder import read_config

        settings = from_dict(read_config(folder))
    return settings.replace(device=device) if device else settings


def _train(settings: "Config", folder: Path, resume: bool, skip_corrupt: bool, quiet: bool) -> "TrainResult":
    from mirrorshot.data.benchmarks import load_dataset
    from mirrorshot.files.freed_memory import keep_freed_memory
    from mirrorshot.training import train as train_run
    from mirrorshot.training.world import choose_device

    keep_freed_memory()
    if "RANK" not in os.environ:  # check before the data are read; under torchrun each process has its own device
        choose_device(settings.device)
    with progress_bar(quiet=quiet) as stage:
        dataset = load_dataset(
            settings.data, splits=("train", "val"), progress=stage("Loading data"), skip_corrupt=skip_corrupt
        )
        return train_run(settings, folder, resume=resume, progress=stage("Training"), dataset=dataset)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """On Ctrl-C, print how to resume the run and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        if is_first_process():
            has_run = (folder / "config.json").exists()
            how = f"Resume with: {_command('train --resume', folder)}" if has_run else "Nothing was written yet."
            say(f"Stopped. {how}", err=True)
        raise typer.Exit(130) from None


def _print(result: "TrainResult", settings: "Config", folder: Path, as_json: bool) -> None:
    following = _command("evaluate", folder)
    if as_json:
        say_json({"folder": str(folder), **result._asdict(), "config": settings.to_dict(), "next": following})
        return
    best = result.best
    # the log stores infinity as null: the right class of a validation query had probability zero
    nll = "infinite" if best["val_nll"] is None else f"{best['val_nll']:.3f}"
    say(
        f"Best validation accuracy {best['val_accuracy']:.1%}, NLL {nll}, "
        f"after {best['episodes']:,} of {result.n_episodes:,} episodes "
        f"({result.seconds:,.0f} s, {result.episodes_per_second:,.0f} episodes/s)."
    )
    say(f"Files: {folder}  (best.safetensors, last.safetensors, log.jsonl, config.json)")
    say(f"Next:  {following}")


def _command(command: str, folder: Path) -> str:
    return f"mirrorshot {command} {quoted(folder)}"

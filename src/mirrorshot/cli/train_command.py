"""`mirrorshot train`."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli.names import complete_data, complete_method, complete_preset, complete_setting
from mirrorshot.cli.terminal import (
    check_folder,
    errors_as_messages,
    is_first_process,
    progress_bar,
    quoted,
    refuse,
    say,
    wrong_usage,
)

if TYPE_CHECKING:
    from mirrorshot.training import TrainResult
    from mirrorshot.training.config import Config

TRAIN_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot train --episodes 2000[/cyan]
On the glyphs, which need no download; some minutes on two cores.

[cyan]mirrorshot train --data cub --n-shot 5 --preset paper[/cyan]
As in the paper. The pictures are looked for in the folder MIRRORSHOT_DATA.

[cyan]mirrorshot train --data my/pictures --set lr=3e-4 --set method_options.kernel=rbf[/cyan]
Own pictures, in the folders train, val and test, with a folder for each class.

[cyan]mirrorshot train --resume runs/glyphs-mirror_gp-1shot[/cyan]
Go on with a run that was stopped, exactly as if it had not been.

[cyan]torchrun --nproc-per-node 2 -m mirrorshot train --set tasks_per_step=2[/cyan]
On two GPUs, or two processes of a CPU.

[cyan]mirrorshot list settings[/cyan]
All settings. What comes later wins: defaults, preset, TOML file, command line.
"""


_TASKS, _TRAINING, _RUN = "Tasks", "Training", "Run"  # panels of the help


def train(
    data: Annotated[
        str | None,
        typer.Option(
            help="Name of a data set, or a path. [dim]\\[glyphs][/dim]",
            autocompletion=complete_data,
            metavar="NAME",
            rich_help_panel=_TASKS,
        ),
    ] = None,
    n_way: Annotated[
        int | None, typer.Option(help="Classes of a task. [dim]\\[5][/dim]", rich_help_panel=_TASKS)
    ] = None,
    n_shot: Annotated[
        int | None, typer.Option(help="Labelled items of each class. [dim]\\[1][/dim]", rich_help_panel=_TASKS)
    ] = None,
    n_query: Annotated[
        int | None, typer.Option(help="Items of each class to classify. [dim]\\[16][/dim]", rich_help_panel=_TASKS)
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="What to train. [dim]\\[mirror_gp][/dim]",
            autocompletion=complete_method,
            metavar="NAME",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings to begin with: default or paper.",
            autocompletion=complete_preset,
            metavar="NAME",
            rich_help_panel=_TRAINING,
        ),
    ] = "default",
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings.", metavar="FILE", rich_help_panel=_TRAINING)
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Tasks to train on. [dim]\\[by preset][/dim]", rich_help_panel=_TRAINING)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of weights, tasks, augmentation. [dim]\\[1][/dim]", rich_help_panel=_TRAINING),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any other setting; may be repeated.",
            metavar="NAME=VALUE",
            autocompletion=complete_setting,
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run. [dim]\\[runs/<data>-<method>-<n>shot][/dim]",
            metavar="FOLDER",
            rich_help_panel=_RUN,
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Run to go on with.", metavar="FOLDER", rich_help_panel=_RUN)
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda or cuda:N. [dim]\\[auto][/dim]", metavar="NAME", rich_help_panel=_RUN),
    ] = None,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out pictures that are damaged.", rich_help_panel=_RUN)
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard files.", rich_help_panel=_RUN)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.", rich_help_panel=_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_RUN)] = False,
) -> None:
    """Meta-train a method on many small tasks, and keep the weights that are best on validation tasks."""
    flags = {
        "data": data, "method": method, "n_way": n_way, "n_shot": n_shot, "n_query": n_query,
        "n_episodes": episodes, "seed": seed, "device": device, "tensorboard": tensorboard or None,
    }  # fmt: skip
    if resume is None:
        settings, folder = _new_run(preset, config, flags, overrides or [], output)
    else:
        settings, folder = _old_run(resume, preset, config, flags, overrides or [], output), resume
    with errors_as_messages(), _stopped_by_hand(folder):
        result = _train(settings, folder, resume is not None, skip_corrupt, quiet)
    if is_first_process():
        _print_result(result, settings, folder, as_json)


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
            f"Expected --output to be a folder without a run, but got {folder}, which has one. Go on with it: "
            f"{_command('train --resume', folder)}; or choose another folder."
        )
    return settings, folder


def _old_run(
    folder: Path, preset: str, file: Path | None, flags: dict[str, Any], overrides: list[str], output: Path | None
) -> "Config":
    """The settings of a run; only the device may be another one."""
    given = {name for name, value in flags.items() if value is not None} - {"device"}
    if given or preset != "default" or file or overrides or output:
        refuse("Expected --resume without other settings, which are those of the run; only --device may change.")
    with errors_as_messages():
        from mirrorshot.training.config import from_dict
        from mirrorshot.training.folder import read_config

        settings = from_dict(read_config(folder))
    return settings.replace(device=flags["device"]) if flags["device"] else settings


def _train(settings: "Config", folder: Path, resume: bool, skip_corrupt: bool, quiet: bool) -> "TrainResult":
    from mirrorshot.data.benchmarks import load_dataset
    from mirrorshot.training import train as train_run
    from mirrorshot.training.world import choose_device

    if "RANK" not in os.environ:  # before the data are read; under torchrun each process has its own
        choose_device(settings.device)
    with progress_bar(quiet=quiet) as stage:
        dataset = load_dataset(
            settings.data, splits=("train", "val"), progress=stage("Loading data"), skip_corrupt=skip_corrupt
        )
        return train_run(settings, folder, resume=resume, progress=stage("Training"), dataset=dataset)


@contextmanager
def _stopped_by_hand(folder: Path) -> Iterator[None]:
    """Ctrl-C: say how to go on, and exit as other programs do."""
    try:
        yield
    except KeyboardInterrupt:
        if is_first_process():
            has_run = (folder / "config.json").exists()
            how = f"Go on with: {_command('train --resume', folder)}" if has_run else "Nothing was written yet."
            say(f"Stopped. {how}", err=True)
        raise typer.Exit(130) from None


def _print_result(result: "TrainResult", settings: "Config", folder: Path, as_json: bool) -> None:
    following = _command("evaluate", folder)
    if as_json:
        record = {"folder": str(folder), **result._asdict(), "config": settings.to_dict(), "next": following}
        say(json.dumps(record, indent=2))
        return
    best = result.best
    # a log has null for infinity: a validation query whose class had probability zero
    nll = "infinite" if best["val_nll"] is None else f"{best['val_nll']:.3f}"
    say(
        f"Best validation accuracy {best['val_accuracy']:.1%}, NLL {nll}, "
        f"after {best['episodes']:,} of {result.n_episodes:,} episodes "
        f"({result.seconds:,.0f} s, {result.episodes_per_second:,.0f} episodes/s)."
    )
    say(f"Files: {folder}  (best.safetensors, last.safetensors, log.jsonl, config.json)")
    say(f"Next:  {following}")


def _command(command: str, folder: Path) -> str:
    """A command line to copy."""
    return f"mirrorshot {command} {quoted(folder)}"

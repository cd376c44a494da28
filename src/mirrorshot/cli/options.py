"""Shared options and arguments of commands, and the examples in their help."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from mirrorshot.cli.completion import complete_data, complete_encoder, complete_preset, complete_setting
from mirrorshot.cli.terminal import numbers, refuse

Command = Callable[..., None]
EPILOGS: dict[Command, str] = {}
"""The text below the help of each command."""


def examples(shown: Mapping[str, str], note: str = "", before: str = "") -> Callable[[Command], Command]:
    """Decorate a command to show example command lines below its help."""

    def keep(command: Command) -> Command:
        EPILOGS[command] = before + in_help(shown, note)
        return command

    return keep


def in_help(shown: Mapping[str, str], note: str = "") -> str:
    """Format command lines, each with an explanation, and a note for the end of a help text.

    Example:
        >>> print(in_help({"mirrorshot demo": "Two minutes."}).rstrip())
        [bold]Examples[/bold]
        <BLANKLINE>
        [cyan]mirrorshot demo[/cyan]
        Two minutes.
    """
    parts = [
        "\n".join([*(f"[cyan]{line}[/cyan]" for line in commands.splitlines()), about])
        for commands, about in shown.items()
    ]
    return "\n\n".join(["[bold]Examples[/bold]", *parts, note])


# Panels of the help, which `refuse_other_options` also uses
READING, OF_MODELS, OF_RUNS = "How items are read", "For models", "For runs"

# Partial options; commands add for instance a panel
data_option = partial(typer.Option, autocompletion=complete_data, metavar="NAME")
preset_option = partial(typer.Option, autocompletion=complete_preset, metavar="NAME")
set_option = partial(typer.Option, "--set", metavar="NAME=VALUE", autocompletion=complete_setting)
output_option = partial(typer.Option, "--output", "-o", metavar="FILE", readable=False)
n_shot_option = partial(typer.Option, help="Labelled items of each class.")
n_query_option = partial(typer.Option, help="Items of each class to classify.")
device_option = partial(typer.Option, help="auto, cpu, cuda or cuda:N.", metavar="NAME")
labelled_argument = partial(
    typer.Argument,
    help="Folder with a folder of images for each class; or a table: .csv, .jsonl, .parquet, .npz.",
    readable=False,
)
_reading = partial(typer.Option, rich_help_panel=READING)
of_runs = partial(typer.Option, rich_help_panel=OF_RUNS)

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no notes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkipCorrupt = Annotated[bool, typer.Option("--skip-corrupt", help="Leave out damaged images.")]
KeepCopies = Annotated[
    bool,
    typer.Option(
        "--keep-copies",
        help="Keep images that the model has as examples; they say nothing.",
        rich_help_panel=OF_MODELS,
    ),
]
Contradictions = Annotated[bool, typer.Option("--allow-contradictions", help="Take the same image under two classes.")]

ModelFile = Annotated[Path, typer.Argument(help="File of the model, from `fit`.", metavar="MODEL", readable=False)]
EditedFile = Annotated[Path | None, output_option(help="File to write.", show_default="the model itself")]
Queries = Annotated[
    list[str],
    typer.Argument(
        help="Images, folders, patterns, one table (.csv, .jsonl, .parquet, .npz, .npy, .txt), or - for paths on "
        "standard input.",
        metavar="QUERY",
    ),
]
EncoderName = Annotated[
    str,
    _reading(
        "--encoder",
        "-e",
        help="Encoder, from images or texts to embeddings: auto, glyphs, pixels, efficientnet-lite2, wordllama, "
        "minilm, tfidf, the folder of a run, timm:NAME, open_clip:NAME, transformers:NAME, sentence-transformers:NAME, "
        "or your own module:function.",
        metavar="NAME",
        autocompletion=complete_encoder,
    ),
]
Download = Annotated[bool, _reading("--download", help="Allow to fetch the weights of the encoder.")]
Trust = Annotated[
    bool, _reading("--trust-encoder", help="Allow to run the function that the model names as its encoder.")
]
TextColumn = Annotated[str | None, _reading(help="Column of texts of a table.", show_default="text", metavar="NAME")]
LabelColumn = Annotated[str | None, _reading(help="Column of labels of a table.", show_default="label", metavar="NAME")]


class Reading(NamedTuple):
    """Options of commands that use the encoder of a model."""

    download: Download = False
    trust_encoder: Trust = False
    text_column: TextColumn = None
    label_column: LabelColumn = None
    quiet: Quiet = False
    as_json: AsJson = False


class Encoding(NamedTuple):
    """Options of commands that let the user choose an encoder."""

    encoder: EncoderName = "auto"
    download: Download = False
    text_column: TextColumn = None
    label_column: LabelColumn = None
    quiet: Quiet = False
    as_json: AsJson = False


class Evaluating(NamedTuple):
    """Options of commands that evaluate runs."""

    n_query: Annotated[int | None, n_query_option(min=1, show_default="15", rich_help_panel=OF_RUNS)] = None
    n_tasks: Annotated[int | None, of_runs(help="Tasks for each seed.", min=1, show_default="600")] = None
    seeds: Annotated[str | None, of_runs(help="Seeds of the tasks, a pass for each.", show_default="1,2,3,4,5")] = None
    two_temperatures: Annotated[
        bool, of_runs("--two-temperatures", help="Also calibrate as the paper's released code does.")
    ] = False
    device: Annotated[str, device_option(rich_help_panel=OF_RUNS)] = "auto"

    def protocol(self) -> dict[str, Any]:
        """Return the given values as keyword arguments of `evaluate_run`, which has defaults for the others."""
        seeds = None if self.seeds is None else numbers("--seeds", self.seeds)
        given = {"n_query": self.n_query, "n_tasks": self.n_tasks, "seeds": seeds}
        return {name: value for name, value in given.items() if value is not None}


def refuse_other_options(context: typer.Context, *, is_model: bool) -> None:
    """Refuse options for runs if the command got a model, and options for models otherwise."""
    panels = (OF_RUNS,) if is_model else (OF_MODELS, READING)
    typed = [
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(parameter, "rich_help_panel", None) in panels
        and getattr(context.get_parameter_source(parameter.name or ""), "name", "") == "COMMANDLINE"
    ]
    one, other = ("a model", "runs") if is_model else ("runs", "models")
    if typed:
        refuse(f"Expected options for {one}, but got {', '.join(typed)}, for {other} only. Leave it out; -h says more.")


def unfolded(command: Command) -> Command:
    """Return a command for typer, in which the fields of `Reading`, `Encoding` and `Evaluating` are options.

    Lines of a paragraph of the help are joined, so that they fill any width.
    """
    own = inspect.signature(command).parameters.values()
    groups = {p.name: p.annotation for p in own if p.annotation in (Reading, Encoding, Evaluating)}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=group._field_defaults[name], annotation=hint)
        for group in groups.values()
        for name, hint in get_type_hints(group, include_extras=True).items()
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        folded = {name: group(**{key: given.pop(key) for key in group._fields}) for name, group in groups.items()}
        command(**given, **folded)

    shown = [*(p for p in own if p.name not in groups), *options]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in shown}
    run.__doc__ = "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(command) or "").split("\n\n"))
    return run

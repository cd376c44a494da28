"""Options and arguments that several commands have, and the examples in their help."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from mirrorshot.cli.completion import complete_data, complete_encoder, complete_preset, complete_setting


def examples(shown: Mapping[str, str], note: str = "") -> str:
    """Text below the help of a command: command lines, each with an explanation, and a note.

    Example:
        >>> print(examples({"mirrorshot demo": "Two minutes."}).rstrip())
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


# Options to complete where they are used, for instance with a panel: `quiet_option(rich_help_panel="Run")`
quiet_option = partial(typer.Option, "--quiet", "-q", help="No progress bar, no notes.")
json_option = partial(typer.Option, "--json", help="Print JSON.")
skip_corrupt_option = partial(typer.Option, "--skip-corrupt", help="Leave out damaged images.")
device_option = partial(typer.Option, help="auto, cpu, cuda or cuda:N.")
data_option = partial(typer.Option, autocompletion=complete_data, metavar="NAME")
preset_option = partial(typer.Option, autocompletion=complete_preset, metavar="NAME")
set_option = partial(typer.Option, "--set", metavar="NAME=VALUE", autocompletion=complete_setting)
output_option = partial(typer.Option, "--output", "-o", metavar="FILE", readable=False)
n_shot_option = partial(typer.Option, help="Labelled items of each class.")
n_query_option = partial(typer.Option, help="Items of each class to classify.")

Quiet = Annotated[bool, quiet_option()]
AsJson = Annotated[bool, json_option()]
SkipCorrupt = Annotated[bool, skip_corrupt_option()]
KeepCopies = Annotated[
    bool, typer.Option("--keep-copies", help="Keep images that the model has as examples; they say nothing.")
]
Contradictions = Annotated[bool, typer.Option("--allow-contradictions", help="Take the same image under two classes.")]
Device = Annotated[str, device_option()]
TwoTemperatures = Annotated[
    bool, typer.Option("--two-temperatures", help="Also calibrate as the paper's released code does.")
]

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
    typer.Option(
        "--encoder",
        "-e",
        help="Encoder, from images or texts to embeddings: auto, glyphs, pixels, efficientnet-lite2, wordllama, "
        "minilm, tfidf, the folder of a run, timm:NAME, open_clip:NAME, transformers:NAME, sentence-transformers:NAME, "
        "or your own module:function.",
        metavar="NAME",
        autocompletion=complete_encoder,
    ),
]
TextColumn = Annotated[
    str | None, typer.Option("--text-column", help="Column of texts of a table.", show_default="text", metavar="NAME")
]
LabelColumn = Annotated[
    str | None,
    typer.Option("--label-column", help="Column of labels of a table.", show_default="label", metavar="NAME"),
]
labelled_argument = partial(
    typer.Argument,
    help="Folder with a folder of images for each class; or a table: .csv, .jsonl, .parquet, .npz.",
    readable=False,
)
Download = Annotated[bool, typer.Option("--download", help="Allow to fetch the weights of the encoder.")]
Trust = Annotated[
    bool, typer.Option("--trust-encoder", help="Allow to run the function that the model names as its encoder.")
]


class Reading(NamedTuple):
    """Options of commands that read items with the encoder of a model."""

    download: Download = False
    trust_encoder: Trust = False
    text_column: TextColumn = None
    label_column: LabelColumn = None
    quiet: Quiet = False


class Encoding(NamedTuple):
    """Options of commands that read items with an encoder that the user names."""

    encoder: EncoderName = "auto"
    download: Download = False
    text_column: TextColumn = None
    label_column: LabelColumn = None
    quiet: Quiet = False


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: a parameter of type `Reading` or `Encoding` becomes its options, after the others."""
    own = inspect.signature(command).parameters.values()
    groups = {p.name: p.annotation for p in own if p.annotation in (Reading, Encoding)}
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
    return run

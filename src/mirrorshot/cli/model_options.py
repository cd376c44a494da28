"""What the commands for models share: their options, and reading models and items."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from mirrorshot.cli.names import complete_encoder
from mirrorshot.cli.terminal import errors_as_messages, progress_bar, say
from mirrorshot.files.texts import harmless

if TYPE_CHECKING:
    from mirrorshot.encoders import Encoder
    from mirrorshot.tool import Encoded, Items, Model

FINDINGS = 3
"""Exit code: done, but some pictures could not be read, or the doctor found errors."""

ModelFile = Annotated[Path, typer.Argument(help="File of the model, from `fit`.", metavar="MODEL", readable=False)]
EncoderName = Annotated[
    str,
    typer.Option(
        "--encoder",
        "-e",
        help="What turns pictures into embeddings: auto, glyphs, pixels, the folder of a run, timm:NAME, "
        "open_clip:NAME, transformers:NAME, sentence-transformers:NAME, or your own module:function.",
        metavar="NAME",
        autocompletion=complete_encoder,
    ),
]
Download = Annotated[bool, typer.Option("--download", help="Allow to fetch the weights of the encoder.")]
Trust = Annotated[
    bool, typer.Option("--trust-encoder", help="Allow to run the function that the model names as its encoder.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no notes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkipCorrupt = Annotated[bool, typer.Option("--skip-corrupt", help="Leave out pictures that are damaged.")]


@contextmanager
def work() -> Iterator[None]:
    """Failures within the block are one line; torch is imported there, with threads that wait without spinning.

    Design note: the work is a second of imports and some small products. Threads that spin between these take the
    processor from other programs, and on a busy machine from this one. OpenMP reads the setting when torch is imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with errors_as_messages():
        yield


def load_model(path: Path, *, trust_encoder: bool = False, download: bool = False) -> "Model":
    """The model in a file."""
    from mirrorshot.tool import Model

    return Model.load(path, trust_encoder=trust_encoder, download=download)


def pick_encoder(name: str, items: "Items", *, download: bool, quiet: bool) -> "Encoder":
    """The encoder of that name; `auto` is decided by the items, and the user is told."""
    from mirrorshot.encoders import make_encoder
    from mirrorshot.tool import decide

    if name == "auto" or items.kind == "embedding":
        choice = decide(items)
        name = choice.name
        if items.kind != "embedding":
            note(f"Encoder {name}: {choice.reason}.", quiet=quiet)
    return make_encoder(name, download=download)


def read_queries(
    path: Path, arguments: Sequence[str], *, label: str, trust_encoder: bool, download: bool, quiet: bool
) -> "tuple[Model, Encoded]":
    """The model in a file, and items as it sees them; `-` is standard input, `label` names the progress bar."""
    from mirrorshot.tool import encode_items, read_unlabelled

    model = load_model(path, trust_encoder=trust_encoder, download=download)
    items = read_unlabelled(arguments, sys.stdin if "-" in arguments else ())
    with progress_bar(quiet=quiet) as stage:
        return model, encode_items(model.encoder, items, progress=stage(label))


def note(text: str, *, quiet: bool = False) -> None:
    """A line for the user, apart from the results."""
    if not quiet:
        say(text, err=True)


def tell_damaged(found: "Encoded") -> None:
    """A line for each picture that could not be read."""
    for name, why in found.damaged.items():
        say(f"Warning: {shown(name)} cannot be read and is left out: {why}", err=True)


def end_with_findings() -> NoReturn:
    """Exit with the code for results that are not all there."""
    raise typer.Exit(FINDINGS)


def shown(name: Any) -> str:
    """A name on one line, whatever characters a file name holds."""
    return harmless(str(name), keep="")

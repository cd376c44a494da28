"""`mirrorshot fit`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli.model_options import AsJson, Download, EncoderName, Quiet, SkipCorrupt, note, pick_encoder, work
from mirrorshot.cli.terminal import check_folder, progress_bar, quoted, refuse, say

if TYPE_CHECKING:
    from mirrorshot.tool import Model

FIT_EXAMPLES = """[bold]Examples[/bold]

[cyan]mirrorshot fit letters/[/cyan]
A folder for each class with a few pictures each. Writes model.mirrorshot.

[cyan]mirrorshot fit birds/ -e timm:vit_small_patch14_dinov2.lvd142m --download -o birds.mirrorshot[/cyan]
Photographs, with a network of timm (pip install timm), whose weights are fetched once.

[cyan]mirrorshot fit embeddings.npz -o model.mirrorshot[/cyan]
Embeddings X and labels y that you have; or a CSV file with a column label.

Then: [cyan]mirrorshot predict model.mirrorshot new-pictures/[/cyan]
"""


def fit(
    support: Annotated[
        Path,
        typer.Argument(
            help="Folder with a folder of pictures for each class; or a .csv, .npz or .parquet file.",
            metavar="SUPPORT",
            readable=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.", metavar="FILE")] = Path(
        "model.mirrorshot"
    ),
    encoder: EncoderName = "auto",
    kernel: Annotated[str, typer.Option(help="cosine, rbf, matern, linear or polynomial.")] = "cosine",
    thumbnails: Annotated[bool, typer.Option(help="Keep small pictures of the examples in the model.")] = True,
    download: Download = False,
    skip_corrupt: SkipCorrupt = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn classes from a few labelled pictures each, and write a model. No training: it takes seconds.

    One picture of each class is enough; with five or more, "none of these" and sets of labels become useful.
    """
    started = time.perf_counter()
    if output.is_dir():
        refuse(f"Expected --output to be a file, but got the folder {output}. Name a file in it.")
    check_folder("--output", output.parent)
    with work():
        from mirrorshot.tool import Model, read_labelled

        items = read_labelled(support)
        chosen = pick_encoder(encoder, items, download=download, quiet=quiet)
        with progress_bar(quiet=quiet) as stage:
            model = Model.fit(
                items,
                chosen,
                parameters={"kernel": kernel},
                thumbnails=thumbnails,
                skip_corrupt=skip_corrupt,
                progress=stage("Fitting"),
            )
        n_left_out = len(items.names) - len(model.names)
        note(f"Warning: {n_left_out} pictures cannot be read and are left out.", quiet=n_left_out == 0)
        output.parent.mkdir(parents=True, exist_ok=True)
        model.save(output)
    _print(model, output, time.perf_counter() - started, as_json)


def _print(model: "Model", output: Path, seconds: float, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"model": str(output), **summary(model)}, indent=2))
        return
    counts = summary(model)["classes"]
    shown = ", ".join(f"{label} ({n})" for label, n in list(counts.items())[:8])
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    say(f"{len(model.names)} examples of {len(counts)} classes: {shown}{more}. It took {seconds:.1f} s.")
    say(f"Model: {output}")
    say(f"Next:  mirrorshot predict {quoted(output)} PICTURES")


def summary(model: "Model") -> dict[str, Any]:
    """What a model is, as JSON."""
    return {
        "encoder": model.encoder.name,
        "n_examples": len(model.names),
        "classes": {label: model.labels.count(label) for label in model.classes},
        "temperature": model.head.temperature_,
        "loo_log_likelihood": model.head.loo_log_likelihood_,
    }

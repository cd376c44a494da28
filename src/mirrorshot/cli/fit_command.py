"""`mirrorshot fit`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli.models import pick_encoder, report_copies, summary
from mirrorshot.cli.options import (
    AsJson,
    Contradictions,
    Download,
    EncoderName,
    LabelColumn,
    Quiet,
    SkipCorrupt,
    TextColumn,
    examples,
    output_option,
)
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import check_folder, note, quoted, refuse, say, say_json, short_work

if TYPE_CHECKING:
    from mirrorshot.classifier.prior import Prior
    from mirrorshot.tool import Model

FIT_EXAMPLES = examples(
    {
        "mirrorshot fit letters/": "A folder for each class with a few images each. Writes model.mirrorshot.",
        "mirrorshot fit texts.csv --text-column body --label-column topic": "A table of texts: CSV, JSON Lines or "
        "Parquet.",
        "mirrorshot fit birds/ -e timm:vit_small_patch14_dinov2.lvd142m --download": "Photographs, with a network of "
        "timm (pip install timm), whose weights are fetched once.",
        "mirrorshot fit embeddings.npz -o model.mirrorshot": "Embeddings X and labels y that you have; or a CSV file "
        "with a column label.",
    },
    "Then: [cyan]mirrorshot predict model.mirrorshot new-images/[/cyan]",
)


def fit(
    support: Annotated[
        Path,
        typer.Argument(
            help="Folder with a folder of images for each class; or a table: .csv, .jsonl, .parquet, .npz.",
            metavar="SUPPORT",
            readable=False,
        ),
    ],
    output: Annotated[Path, output_option(help="File to write.")] = Path("model.mirrorshot"),
    encoder: EncoderName = "auto",
    kernel: Annotated[
        str, typer.Option(help="auto, cosine, rbf, matern, linear or polynomial. auto is cosine, or chosen for tables.")
    ] = "auto",
    prior: Annotated[
        Path | None,
        typer.Option(
            help="What `mirrorshot prior` learned of the encoder.", metavar="FILE", show_default="broad rules"
        ),
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    thumbnails: Annotated[bool, typer.Option(help="Keep small images of the examples in the model.")] = True,
    download: Download = False,
    skip_corrupt: SkipCorrupt = False,
    allow_contradictions: Contradictions = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Learn classes from a few labelled images, texts or embeddings each, and write a model. It takes seconds.

    One example of each class is enough; with five or more, "none of these" and sets of labels become useful.
    """
    started = time.perf_counter()
    if output.is_dir():
        refuse(f"Expected --output to be a file, but got the folder {output}. Name a file in it.")
    check_folder("--output", output.parent)
    with short_work():
        from mirrorshot.tool import Model, read_labelled
        from mirrorshot.tool.copies import copies_in_model

        items = read_labelled(support, text_column=text_column, label_column=label_column)
        chosen = pick_encoder(encoder, items, download=download, quiet=quiet)
        parameters: dict[str, Any] = {} if kernel == "auto" else {"kernel": kernel}
        if prior is not None:
            parameters = {"kernel": "cosine", **parameters, "prior": _read_prior(prior, chosen.name)}
        with progress_bar(quiet=quiet) as stage:
            model = Model.fit(
                items, chosen, parameters=parameters, thumbnails=thumbnails, skip_corrupt=skip_corrupt,
                progress=stage("Fitting"),
            )  # fmt: skip
        n_left_out = len(items.names) - len(model.names)
        note(f"Warning: {n_left_out} items cannot be read and are left out.", quiet=n_left_out == 0)
        report_copies(
            copies_in_model(model), model.names, model.labels, model,
            allow_contradictions=allow_contradictions, quiet=quiet,
        )  # fmt: skip
        output.parent.mkdir(parents=True, exist_ok=True)
        model.save(output)
    _print(model, output, time.perf_counter() - started, as_json)


def _read_prior(path: Path, encoder: str) -> "Prior":
    from mirrorshot.classifier.prior import Prior
    from mirrorshot.types import DataError

    found = Prior.load(path)
    if found.encoder not in ("", encoder):
        raise DataError(
            f"Expected a prior of the encoder {encoder}, but {path} is of {found.encoder}. Use --encoder "
            f"{found.encoder}, or learn a prior of {encoder} with `mirrorshot prior`."
        )
    return found


def _print(model: "Model", path: Path, seconds: float, as_json: bool) -> None:
    record = summary(model, path)
    if as_json:
        say_json(record)
        return
    counts = record["classes"]
    listed = ", ".join(f"{label} ({n})" for label, n in list(counts.items())[:8])
    more = f" and {len(counts) - 8} more" if len(counts) > 8 else ""
    say(f"{len(model.names)} examples of {len(counts)} classes: {listed}{more}. It took {seconds:.1f} s.")
    say(f"Model: {path}")
    kinds = {"picture": "IMAGES", "text": "TEXTS.csv", "embedding": "TABLE"}
    say(f"Next:  mirrorshot predict {quoted(path)} {kinds[model.encoder.kind]}")

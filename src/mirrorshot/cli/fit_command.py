"""`mirrorshot fit` and `mirrorshot prior`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorshot.cli.models import read_examples, report_copies, summary
from mirrorshot.cli.options import (
    Contradictions,
    Encoding,
    SkipCorrupt,
    examples,
    labelled_argument,
    output_option,
)
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import note, prepare_file, quoted, refuse, say, say_json, say_result, short_work, shown
from mirrorshot.files.texts import few

if TYPE_CHECKING:
    from mirrorshot.classifier.prior import Prior
    from mirrorshot.tool import Model

_KERNELS = ("auto", "cosine", "rbf", "matern", "linear", "polynomial")


@examples(
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
    support: Annotated[Path, labelled_argument(metavar="SUPPORT")],
    given: Encoding,
    output: Annotated[Path, output_option(help="File to write.")] = Path("model.mirrorshot"),
    kernel: Annotated[str, typer.Option(help=f"{', '.join(_KERNELS)}. auto is cosine, or chosen for tables.")] = "auto",
    prior: Annotated[
        Path | None,
        typer.Option(
            help="What `mirrorshot prior` learned of the encoder.", metavar="FILE", show_default="broad rules"
        ),
    ] = None,
    thumbnails: Annotated[bool, typer.Option(help="Keep small images of the examples in the model.")] = True,
    skip_corrupt: SkipCorrupt = False,
    allow_contradictions: Contradictions = False,
) -> None:
    """Learn classes from a few labelled images, texts or embeddings each, and write a model. It takes seconds.

    One example of each class is enough; with five or more, "none of these" and sets of labels become useful.
    """
    started = time.perf_counter()
    if kernel not in _KERNELS:
        refuse(f"Expected --kernel to be one of {', '.join(_KERNELS)}, but got {kernel!r}.")
    prepare_file("--output", output, inputs=(support, prior))
    with short_work():
        from mirrorshot.tool import Model
        from mirrorshot.tool.copies import copies_in_model

        items, chosen = read_examples(support, given)
        parameters: dict[str, Any] = {} if kernel == "auto" else {"kernel": kernel}
        if prior is not None:
            parameters = {"kernel": "cosine", **parameters, "prior": _read_prior(prior, chosen.name)}
        with progress_bar(quiet=given.quiet) as stage:
            options: dict[str, Any] = {
                "thumbnails": thumbnails,
                "skip_corrupt": skip_corrupt,
                "progress": stage("Fitting"),
            }
            model = Model.fit(items, chosen, parameters=parameters, **options)
        kept = set(model.names)
        left_out = [name for name in items.names if name not in kept]
        note(
            f"Warning: left out, because they cannot be read: {few([shown(name) for name in left_out])}.",
            quiet=not left_out,
        )
        copies, quiet = copies_in_model(model), given.quiet
        report_copies(copies, model.names, model.labels, model, allow_contradictions=allow_contradictions, quiet=quiet)
        model.save(output)
    _print(model, output, time.perf_counter() - started, given.as_json)


def _read_prior(path: Path, encoder: str) -> "Prior":
    from mirrorshot.classifier.prior import Prior
    from mirrorshot.types import DataError

    found = Prior.load(path)
    if found.encoder not in ("", encoder):
        is_table = "embeddings" in (encoder, found.encoder)
        raise DataError(
            f"Expected a prior of the encoder {encoder}, but {path} is of {found.encoder}. "
            f"{'Learn' if is_table else f'Use --encoder {found.encoder}, or learn'} one with `mirrorshot prior`."
        )
    return found


def _print(model: "Model", path: Path, seconds: float, as_json: bool) -> None:
    record = summary(model, path)
    if as_json:
        say_json(record)
        return
    counts = record["classes"]
    listed = few([f"{label} ({n})" for label, n in counts.items()], 8)
    say(f"{len(model.names)} examples of {len(counts)} classes: {listed}. It took {seconds:.1f} s.")
    say(f"Model: {path}")
    kinds = {"picture": "IMAGES", "text": "TEXTS.csv", "embedding": "TABLE"}
    say(f"Next:  mirrorshot predict {quoted(path)} {kinds[model.encoder.kind]}")


@examples(
    {
        "mirrorshot prior background/ -e efficientnet-lite2 -o photos.prior": "A folder for each of ten classes or "
        "more, with ten images or more each; other classes than those you will classify.",
        "mirrorshot prior embeddings.npz -o mine.prior": "Embeddings X and labels y of an encoder of your own.",
    },
    "Then: [cyan]mirrorshot fit support/ --prior photos.prior[/cyan], or in Python "
    "[cyan]FewShotClassifier(prior=Prior.load('photos.prior'))[/cyan]",
)
def prior(
    background: Annotated[Path, labelled_argument(metavar="BACKGROUND")],
    given: Encoding,
    output: Annotated[Path, output_option(help="File to write.")] = Path("background.prior"),
) -> None:
    """Learn a prior for an encoder from many labelled images, for classifiers of other classes.

    Images are also encoded blurred and in grey, so that the prior also fits images of lower quality.
    """
    prepare_file("--output", output, inputs=(background,))
    with short_work():
        from mirrorshot.tool.background import background_prior

        items, chosen = read_examples(background, given)
        with progress_bar(quiet=given.quiet) as stage:
            found = background_prior(items, chosen, learned_on=background.name, progress=stage("Encoding"))
        found.save(output)
    record = {"output": str(output), "encoder": found.encoder, "centre": found.centre, **found.temperature._asdict()}
    say_result(record, f"Prior of {found.encoder}: {output}", as_json=given.as_json)

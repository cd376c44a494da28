"""`mirrorshot evaluate MODEL LABELLED`: accuracy and calibration of a fitted model on labelled images."""

from pathlib import Path
from typing import TYPE_CHECKING

from mirrorshot.cli.models import end_with_damaged, load_model
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import refuse, say, say_json, short_work, shown

if TYPE_CHECKING:
    from mirrorshot.tool.scores import Scores


def evaluate_model(paths: list[Path], *, trust_encoder: bool, download: bool, quiet: bool, as_json: bool) -> None:
    """Evaluate a model; `paths` are its file and labelled items as `fit` takes them."""
    if len(paths) != 2:
        refuse(f"Expected a model and a folder of labelled images, but got {len(paths)} paths.")
    with short_work():
        from mirrorshot.tool import encode_items, read_labelled
        from mirrorshot.tool.scores import score

        model = load_model(paths[0], trust_encoder=trust_encoder, download=download)
        items = read_labelled(paths[1])
        with progress_bar(quiet=quiet) as stage:
            found = encode_items(model.encoder, items, progress=stage("Evaluating"))
        scores = score(model, found)
    if as_json:
        say_json(scores._asdict())
    else:
        _print(scores)
    end_with_damaged(found)


def _print(scores: "Scores") -> None:
    from mirrorshot.cli.tables import print_rows

    say(
        f"{scores.n_items} items: accuracy {scores.accuracy:.1%}, NLL {scores.nll:.3f}, calibration error "
        f"{scores.ece:.3f}; {scores.novel_known:.1%} were called none of these."
    )
    if scores.novel_unknown is not None:
        say(
            f"{scores.n_unknown} items of classes that the model does not know: {scores.novel_unknown:.1%} were called "
            "none of these."
        )
    rows = [(shown(label), f"{accuracy:.1%}") for label, accuracy in scores.accuracy_of.items()]
    print_rows(["class", "accuracy"], rows, numbers=(1,))
    for right, answer, n in scores.confusions:
        say(f"{n} of {shown(right)} were taken for {shown(answer)}.")

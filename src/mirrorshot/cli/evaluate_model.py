"""`mirrorshot evaluate MODEL LABELLED`: what a fitted model is worth on labelled pictures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorshot.cli.model_options import end_with_findings, load_model, shown, tell_damaged, work
from mirrorshot.cli.terminal import make_console, plain_table, progress_bar, refuse, say

if TYPE_CHECKING:
    from mirrorshot.tool import Scores


def evaluate_model(paths: list[Path], *, trust_encoder: bool, download: bool, quiet: bool, as_json: bool) -> None:
    """Evaluate a model on labelled items.

    Args:
        paths: the file of the model, and what `fit` takes.
        trust_encoder: whether a function that the file names may be imported.
        download: whether weights may be fetched.
        quiet: no progress bar.
        as_json: print JSON.
    """
    if len(paths) != 2:
        refuse(f"Expected a model and a folder of labelled pictures, but got {len(paths)} paths.")
    with work():
        from mirrorshot.tool import encode_items, read_labelled

        model = load_model(paths[0], trust_encoder=trust_encoder, download=download)
        items = read_labelled(paths[1])
        with progress_bar(quiet=quiet) as stage:
            found = encode_items(model.encoder, items, progress=stage("Evaluating"))
        scores = model.score(found)
    if as_json:
        say(json.dumps(scores._asdict(), indent=2))
    else:
        _print(scores)
    if found.damaged:
        tell_damaged(found)
        end_with_findings()


def _print(scores: "Scores") -> None:
    from rich.text import Text

    say(
        f"{scores.n_items} items: accuracy {scores.accuracy:.1%}, NLL {scores.nll:.3f}, calibration error "
        f"{scores.ece:.3f}; {scores.novel_known:.1%} were called none of these."
    )
    if scores.novel_unknown is not None:
        say(
            f"{scores.n_unknown} items of classes that the model does not know: {scores.novel_unknown:.1%} were called "
            "none of these."
        )
    table = plain_table("", ["class", "accuracy"], numbers=(1,))
    for label, accuracy in scores.accuracy_of.items():
        table.add_row(Text(shown(label)), f"{accuracy:.1%}")
    make_console().print(table)
    for right, answer, n in scores.confusions:
        say(f"{n} of {shown(right)} were taken for {shown(answer)}.")

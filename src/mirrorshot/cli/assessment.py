"""Scores of a model on labelled items, without items that are examples of the model."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from mirrorshot.cli.models import load_model
from mirrorshot.cli.options import Reading, refuse_other_options
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import note, refuse, say, shown
from mirrorshot.files.texts import count, few

if TYPE_CHECKING:
    from mirrorshot.tool import Encoded, Model, Scores

_MAX_MATRIX, _LEAST_NAME = 12, 12  # classes of a confusion matrix on the terminal, columns for their names


class Assessment(NamedTuple):
    """A model and its scores on labelled items."""

    model: "Model"
    encoded: "Encoded"  # the items that were scored
    shared: list[tuple[str, str]]  # names of items that are examples of the model, with the names of the examples
    near: int  # number of near-copies among them
    are_kept: bool  # whether the shared items were scored too
    scores: "Scores"

    @property
    def items(self) -> str:
        """Return "images" or "items", for messages."""
        return "images" if self.encoded.items.kind == "picture" else "items"

    def record(self) -> dict[str, Any]:
        """Return the scores and the shared items for JSON."""
        pairs = [{"name": shown(name), "example": shown(example)} for name, example in self.shared]
        return self.scores.record() | {"shared": pairs, "shared_are_kept": self.are_kept}

    def leak_in_words(self) -> str:
        """Return a sentence about the shared items, or an empty string."""
        if not self.shared:
            return ""
        are = "is an example" if len(self.shared) == 1 else "are examples"
        some = f"{count(len(self.shared), self.items)} {are} of the model"
        some += f" ({self.near} nearly the same)" if self.near else ""
        named = few([shown(name) for name, _ in self.shared])
        if self.are_kept:
            return f"{some}, which makes these numbers too good: {named}."
        return f"{some}, left out: {named}. --keep-copies keeps them."


def is_of_model(paths: Sequence[Path], context: typer.Context) -> bool:
    """Return whether the first path is a model, not a run; refuse a missing model and options of the other kind."""
    path, *others = paths
    before_items = len(others) == 1 and os.path.exists(others[0]) and not (others[0] / "config.json").exists()
    if not os.path.exists(path) and (path.suffix == ".mirrorshot" or before_items):
        refuse(f"Expected a model at {path}, but there is none. Make one with `mirrorshot fit`, or check the path.")
    is_model = os.path.isfile(path)
    refuse_other_options(context, is_model=is_model)
    return is_model


def assess(paths: Sequence[Path], given: Reading, *, keep_copies: bool) -> Assessment:
    """Score a model on labelled items; items that are its examples are left out unless `keep_copies`.

    Raises:
        DataError: there are no labelled items, or all are examples of the model.
    """
    if len(paths) != 2:
        refuse(f"Expected a model and labelled items (a folder or a table), but got {count(len(paths), 'paths')}.")
    path, folder = paths
    from mirrorshot.tool import encode_items, read_labelled
    from mirrorshot.tool.copies import copies_of_examples, without
    from mirrorshot.types import DataError

    model = load_model(path, given)
    columns = {"text_column": given.text_column, "label_column": given.label_column}
    items = read_labelled(folder, numbers=model.columns, **columns)
    with progress_bar(quiet=given.quiet) as stage:
        found = encode_items(model.encoder, items, thumbnails=True, progress=stage("Evaluating"))
    model.check_embeddings(found.embeddings)
    copies = copies_of_examples(model, found)
    shared = [(found.items.names[copy.row], model.names[copy.other]) for copy in copies]
    if copies and not keep_copies:
        if len(copies) == len(found.embeddings):
            raise DataError(
                f"Expected items that the model has not learned from, but all {len(copies)} in {folder} are its "
                "examples. Test on others, or keep them with --keep-copies."
            )
        found = without(found, [copy.row for copy in copies])
    near = sum(not copy.is_exact for copy in copies)
    return Assessment(model, found, shared, near, keep_copies, model.score(found))


def print_assessment(found: Assessment) -> None:
    """Print the verdict, the numbers with their intervals, and the confusion matrix."""
    from mirrorshot.cli.tables import print_rows, print_text
    from mirrorshot.tool.scores import calibration_in_words, verdict

    scores = found.scores
    note(f"Warning: {found.leak_in_words()}", quiet=not found.shared)
    print_text(verdict(scores, found.items))
    print_rows(["", "value", "95 % interval"], score_rows(scores), numbers=(1, 2))
    print_text(calibration_in_words(scores))
    print_text(novelty_in_words(scores, found.items))
    _print_confusion(scores)


def score_rows(scores: "Scores") -> list[tuple[str, str, str]]:
    """Return names, values and intervals of the scores as text."""
    rows = []
    names = (("accuracy", "accuracy"), ("confidence", "mean confidence"), ("nll", "NLL, nats"), ("ece", "ECE, 15 bins"))
    for key, name in names:
        form = ".1%" if key in ("accuracy", "confidence") else ".3f"
        low, high = scores.intervals[key]
        rows.append((name, f"{getattr(scores, key):{form}}", f"{low:{form}} to {high:{form}}"))
    return rows


def novelty_in_words(scores: "Scores", items: str) -> str:
    """Return the shares of "none of these" among items of known and of other classes, as text."""
    text = f"{scores.novel_known:.1%} of the {items} of known classes were called none of these."
    if scores.novel_unknown is not None:
        text += (
            f" {scores.n_unknown} {items} of classes that the model does not know do not count above; "
            f"{scores.novel_unknown:.1%} of them were called none of these."
        )
    return text


def _print_confusion(scores: "Scores") -> None:
    """Print the confusion matrix or, if it does not fit, the most frequent mistakes."""
    from mirrorshot.cli.tables import print_rows, terminal_width

    columns = ["class \\ answer", *(f"({i + 1})" for i in range(len(scores.classes))), "right"]
    rows = [
        [f"({i + 1}) {shown(label)}", *map(str, counts), f"{scores.accuracy_of[label]:.1%}"]
        for i, (label, counts) in enumerate(zip(scores.classes, scores.confusion, strict=True))
        if label in scores.accuracy_of
    ]
    needed = sum(max(map(len, cells)) + 3 for cells in list(zip(columns, *rows, strict=True))[1:])
    if len(scores.classes) > _MAX_MATRIX or needed + _LEAST_NAME > terminal_width():
        for right, answer, n in scores.confusions:
            say(f"{n} of {shown(right)} were taken for {shown(answer)}.")
        return
    print_rows(columns, rows, title="Confusion matrix", numbers=range(1, len(columns)))

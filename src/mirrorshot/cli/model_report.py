"""`mirrorshot report MODEL FOLDER`: the report on a model as one HTML file, and its numbers as JSON."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrorshot.cli.assessment import Assessment, assess, novelty_in_words, score_rows
from mirrorshot.cli.models import end_with_damaged, read_unlabelled
from mirrorshot.cli.options import Reading
from mirrorshot.cli.progress import progress_bar
from mirrorshot.cli.terminal import note, say_result, short_work, shown

if TYPE_CHECKING:
    from mirrorshot.tool import Encoded, Model, Prediction
    from mirrorshot.views import Card, ModelResults

_SHOWN, _SUGGESTED = 24, 12  # mistakes and suggestions
_SIDE = 160  # pixels of an image


def report_model(paths: Sequence[Path], output: Path, pool: Path | None, given: Reading, *, keep_copies: bool) -> None:
    """Write the report on a model; `paths` are the model and the labelled items."""
    with short_work():
        from mirrorshot.files.writing import write_json
        from mirrorshot.tool.scores import verdict
        from mirrorshot.views import model_sections, write_report

        found = assess(paths, given, keep_copies=keep_copies)
        note(f"Warning: {found.leak_in_words()}", quiet=not found.shared)
        intro = f"{verdict(found.scores, found.items)}\n\n{found.leak_in_words()}"
        title = f"{paths[0].name} on {paths[1].name}"
        unlabelled = None if pool is None else _read_pool(found.model, pool, given)
        write_report(output, title=title, intro=intro, sections=model_sections(_results(found, paths, unlabelled)))
        numbers = output.with_suffix(".json")
        write_json(numbers, found.record())
    text = f"{verdict(found.scores, found.items)}\nReport:  {output}\nNumbers: {numbers}"
    say_result(found.record(), text, as_json=given.as_json)
    end_with_damaged(found.encoded, *([] if unlabelled is None else [unlabelled]))


def _read_pool(model: "Model", pool: Path, given: Reading) -> "Encoded":
    from mirrorshot.tool import encode_items
    from mirrorshot.tool.copies import copies_of_examples, without

    with progress_bar(quiet=given.quiet) as stage:
        items = read_unlabelled([str(pool)], given, model)
        encoded = encode_items(model.encoder, items, thumbnails=True, progress=stage("Reading the pool"))
    return without(encoded, [copy.row for copy in copies_of_examples(model, encoded)])


def _results(found: Assessment, paths: Sequence[Path], pool: "Encoded | None") -> "ModelResults":
    from mirrorshot.tool.scores import calibration_in_words
    from mirrorshot.views import ModelResults

    model, items = found.model, found.encoded.items
    predictions = model.predict_encoded(found.encoded)
    labels = items.labels or []
    known = [i for i, label in enumerate(labels) if label in model.classes]
    wrong = [i for i in known if predictions[i].label != labels[i]]
    wrong.sort(key=lambda i: -predictions[i].probability)
    about, suggestions = _suggestions(found, pool)
    return ModelResults(
        scores=score_rows(found.scores),
        notes=[calibration_in_words(found.scores), novelty_in_words(found.scores, found.items)],
        protocol={
            "model": paths[0].name,
            "examples": f"{len(model.names)} of {len(model.classes)} classes",
            "encoder": model.encoder.name,
            f"labelled {found.items}": f"{found.scores.n_items} of {paths[1].name}",
            "left out": "0" if found.are_kept else str(len(found.shared)),
            "unreadable": str(len(found.encoded.damaged)),
        },
        classes=model.classes,
        confusion=found.scores.confusion,
        prob=np.array([[predictions[i].probabilities[c] for c in model.classes] for i in known]),
        y=np.array([model.classes.index(labels[i]) for i in known]),
        mistakes=_cards(found.encoded, wrong[:_SHOWN], [_mistake(predictions[i], labels[i]) for i in wrong[:_SHOWN]]),
        n_mistakes=len(wrong),
        suggestions=suggestions,
        about_suggestions=about,
    )


def _mistake(answer: "Prediction", label: str) -> list[str]:
    sure = f"says {answer.label}, {answer.probability:.0%} sure"
    return [f"{label}", sure, *(["and calls it none of these"] if answer.is_novel else [])]


def _suggestions(found: Assessment, pool: "Encoded | None") -> "tuple[str, list[Card]]":
    """Return a text and the items whose labels would help most, from the pool or the test items."""
    model, encoded = found.model, found.encoded if pool is None else pool
    if pool is None:
        about = (
            f"Of these {found.items}, the ones whose labels would teach the model most, the most useful first. Test on "
            "others after they are added, or name unlabelled ones with --pool."
        )
    else:
        about = f"Of the {len(pool.embeddings)} in the pool, the ones whose labels would teach the model most."
    if not len(encoded.embeddings):
        return "", []
    rows = model.suggest_rows(encoded.embeddings, _SUGGESTED)
    predictions = model.predict_encoded(encoded)
    lines = [_answer(predictions[i]) for i in rows]
    return about, _cards(encoded, rows, lines)


def _answer(answer: "Prediction") -> list[str]:
    told = "none of these" if answer.is_novel else " or ".join(answer.labels or ()) or f"perhaps {answer.label}"
    return [told, f"{answer.probability:.0%}" if told == answer.label else f"{answer.label} {answer.probability:.0%}"]


def _cards(encoded: "Encoded", rows: Sequence[int], lines: Sequence[Sequence[str]]) -> "list[Card]":
    from mirrorshot.views import Card

    names = [shown(encoded.items.names[i]) for i in rows]
    pictures = (
        [_picture(encoded.items.content[i]) for i in rows] if encoded.items.kind == "picture" else [None] * len(rows)
    )
    texts = [[shown(line) for line in part] for part in lines]
    if encoded.items.kind == "text":
        names = [f"{name}: {shown(encoded.items.content[i])[:160]}" for name, i in zip(names, rows, strict=True)]
    return [Card(picture, name, text) for picture, name, text in zip(pictures, names, texts, strict=True)]


def _picture(content: Any) -> bytes | None:
    """Return an image as a small PNG file, or None if it can no longer be read."""
    from PIL import Image

    from mirrorshot.data.decoding import read_pictures

    (image,) = read_pictures([content])
    if not isinstance(image, Image.Image):
        return None
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()

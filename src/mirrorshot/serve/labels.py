"""Files of labels: CSV, JSON, and the JSON of Label Studio.

The files identify images by name and, if possible, by a hash of the preview; they do not contain images.
"""

import csv
import io
import json
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mirrorshot.files.tables import decode_text, delimiter_of
from mirrorshot.files.texts import csv_cell, harmless
from mirrorshot.serve.errors import RequestError
from mirrorshot.serve.forms import NONE, Answer, checked_label, is_none
from mirrorshot.serve.records import Contents, Picture
from mirrorshot.tool.encoding import unique_names
from mirrorshot.types import InvalidInputError

Format = Literal["json", "csv", "label-studio"]
How = Literal["example", "accepted", "none", ""]
MEDIA = {"json": "application/json", "csv": "text/csv", "label-studio": "application/json"}
FILES = {"json": "labels.json", "csv": "labels.csv", "label-studio": "label-studio.json"}
_COLUMNS = ("name", "label", "how", "answer", "probability", "digest")
_KIND, _VERSION = "mirrorshot-labels", 1
_MAX_LINES = 2000
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # prefix of Label Studio for the names of uploaded files


class Label(NamedTuple):
    """Label of an image: name, hash of the preview or "", class, and kind of the label ("": unknown)."""

    name: str
    digest: str
    label: str
    how: How


def write_labels(form: Format, contents: Contents, digests: Mapping[int, str], answers: Mapping[int, Answer]) -> bytes:
    """Return a file of all images with their labels and the answers of the classifier."""
    names = unique_names([picture.name for picture in contents.pictures])
    rows = [
        _row(picture, name, contents.classes, digests.get(picture.id, ""), answers.get(picture.id))
        for picture, name in zip(contents.pictures, names, strict=True)
    ]
    if form == "csv":
        return _csv(rows)
    record: Any = [_task(i, row) for i, row in enumerate(rows, start=1)]
    if form == "json":
        record = {"format": _KIND, "version": _VERSION, "classes": list(contents.classes.values()), "labels": rows}
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def _row(picture: Picture, name: str, classes: Mapping[int, str], digest: str, answer: Answer | None) -> dict[str, Any]:
    chosen = picture.class_id or picture.accepted_id
    how = "example" if picture.class_id else "accepted" if picture.accepted_id else "none" if picture.is_none else ""
    label = classes[chosen] if chosen else NONE if picture.is_none else ""
    told, share = ("", None) if answer is None else (answer.label, round(answer.probability, 6))
    return dict(zip(_COLUMNS, (name, label, how, told, share, digest), strict=True))


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        writer.writerow(["" if row[c] is None else csv_cell(harmless(str(row[c]), keep="")) for c in _COLUMNS])
    return file.getvalue().encode()


def _task(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Task of Label Studio, for a labelling interface with `Image name="image"` and `Choices name="choice"`."""

    def result(label: str) -> list[dict[str, Any]]:
        return [{"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": [label]}}]

    annotations = [{"result": result(row["label"])}] if row["label"] else []
    predictions = [{"result": result(row["answer"]), "score": row["probability"]}] if row["answer"] else []
    data = {"image": row["name"], "digest": row["digest"], "how": row["how"]}
    return {"id": number, "data": data, "annotations": annotations, "predictions": predictions}


def read_labels(content: bytes, kind: str) -> list[Label]:
    """Read a file of labels: CSV if `kind` is `text/csv`, else JSON of this program or of Label Studio."""
    try:
        text = decode_text(content)
        found = _from_csv(text) if kind == "text/csv" else _from_json(json.loads(text))
        labels = [_checked(*fields) for fields in found if fields[2]]
    except UnicodeDecodeError as error:
        raise _other_file("it is not text in UTF-8. Save it as UTF-8") from error
    except (ValueError, csv.Error) as error:
        raise _other_file(str(error)[:160].rstrip(".")) from error
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _other_file("parts of it are missing") from error
    if len(labels) > _MAX_LINES:
        raise RequestError(422, f"Expected at most {_MAX_LINES} labels, but got {len(labels)}. Split the file.")
    return labels


def _other_file(reason: str) -> RequestError:
    return RequestError(
        422,
        "Expected a file of labels (CSV with columns name and label, JSON of this page or of Label Studio), "
        f"but got something else: {reason}.",
    )


def _checked(name: Any, digest: Any, label: Any, how: Any) -> Label:
    if how not in ("example", "accepted", "none", "") or not all(isinstance(part, str) for part in (name, digest)):
        raise ValueError(f"a line of {str(name)[:60]!r} cannot be read")
    try:
        if is_none(label):
            return Label(name, digest, NONE, "none")
        return Label(name, digest, checked_label(label), "" if how == "none" else how)  # the label was edited
    except InvalidInputError as error:
        raise ValueError(str(error)) from error


def _from_csv(text: str) -> Iterable[tuple[Any, Any, Any, Any]]:
    rows = csv.DictReader(io.StringIO(text), delimiter=delimiter_of(text))
    rows.fieldnames = [column.strip().lower() for column in rows.fieldnames or ()]
    if not {"name", "label"} <= set(rows.fieldnames):
        raise ValueError("the columns name and label are missing")
    return [
        (_plain(row["name"]), row.get("digest") or "", _plain(row["label"] or ""), row.get("how") or "") for row in rows
    ]


def _plain(cell: str) -> str:
    """Remove the apostrophe that `csv_cell` puts before text that looks like a formula."""
    return cell[1:] if cell.startswith("'") and csv_cell(cell[1:]) == cell else cell


def _from_json(record: Any) -> Iterable[tuple[Any, Any, Any, Any]]:
    if isinstance(record, dict):
        if record.get("format") != _KIND:
            raise ValueError(f"`format` is not {_KIND}")
        if record.get("version", _VERSION) != _VERSION:
            raise ValueError(f"it has version {str(record.get('version'))[:20]}, and this server reads {_VERSION}")
        return [(row["name"], row.get("digest", ""), row["label"], row.get("how", "")) for row in record["labels"]]
    return [_from_task(task) for task in record]


def _from_task(task: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    if "data" not in task:  # JSON-MIN
        return _last(task["image"]), "", task.get("choice", ""), ""
    data = task["data"]
    results = [result for part in task.get("annotations", []) for result in part["result"]]
    choices = [result["value"]["choices"][0] for result in results if result.get("type") == "choices"]
    return _last(data["image"]), data.get("digest", ""), choices[0] if choices else "", data.get("how", "")


def _last(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def match(
    labels: Sequence[Label], pictures: Sequence[Picture], digests: Mapping[int, str]
) -> tuple[dict[int, Label], list[str]]:
    """Find the image of each label by hash, by name, or by name without the prefix of Label Studio.

    Return labels by the ids of their images, and the names of labels without an image.
    """
    names = unique_names([picture.name for picture in pictures])
    by_name = {name: picture.id for picture, name in zip(pictures, names, strict=True)}
    by_digest: dict[str, deque[int]] = defaultdict(deque)
    for picture in pictures:
        by_digest[digests.get(picture.id, "")].append(picture.id)
    found: dict[int, Label] = {}
    unmatched = []
    for label in labels:
        same = by_digest[label.digest] if label.digest else deque()
        number = same.popleft() if same else by_name.get(label.name, by_name.get(_UPLOADED.sub("", label.name)))
        if number is None:
            unmatched.append(label.name)
        else:
            found[number] = label
    return found, unmatched

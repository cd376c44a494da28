"""Checks of the doctor. Each yields its findings with advice."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from mirrorshot.classifier import Learned
from mirrorshot.classifier.decide import suspects
from mirrorshot.files.texts import count, few, first
from mirrorshot.tool.doctor.images import Seen

Severity = Literal["error", "warning", "note"]
Pair = tuple[int, int]

_TINY = 16  # pixels of a side
_RARE = 0.2  # largest share of grey images among colour images, or the reverse, that is reported
_IMBALANCE = 5.0  # ratio of the largest class to the smallest
_NEAR_HASH = 0.85  # agreeing minus disagreeing entries of two hashes, as a share of the entries that are not 0
_NEAR_COSINE = 0.98
_CONFUSED = 0.5  # share of the images of two classes that are taken for the other class
_SUSPECT = 0.1  # probability of its label below which an image is reported
_CHUNK = 1024


class Finding(NamedTuple):
    """A problem, or a possible one."""

    severity: Severity  # "error": results will be wrong; "warning": they may be; "note": good to know
    check: str  # name of the check, one word
    message: str  # what is wrong
    advice: str  # what to do
    items: list[str]  # the images or classes


def check_files(seen: Seen) -> Iterator[Finding]:
    """Images that are unreadable, tiny, blank, or of other colours than the rest; empty classes."""
    if seen.damaged:
        reasons = [f"{name} ({why})" for name, why in seen.damaged.items()]
        message = f"{count(len(seen.damaged), seen.noun)} cannot be read: {few(reasons)}."
        yield Finding("error", "unreadable", message, "Delete them or save them again.", list(seen.damaged))
    if seen.empty:
        message = f"No images in {count(len(seen.empty), 'class folders')}: {first(seen.empty)}."
        yield Finding("error", "empty", message, "Add images or remove the folders.", seen.empty)
    tiny = [name for name, size in zip(seen.names, seen.sizes, strict=True) if min(size) < _TINY]
    if tiny:
        message = f"{count(len(tiny), seen.noun)} less than {_TINY} pixels wide or high: {first(tiny)}."
        yield Finding("warning", "tiny", message, "Use larger ones if you have them: there is little to see.", tiny)
    blank = [name for name, is_blank in zip(seen.names, seen.is_blank, strict=True) if is_blank]
    if blank and seen.noun == "images":
        message = f"{count(len(blank), 'blank images')}: {first(blank)}."
        yield Finding("warning", "blank", message, "Delete them: they show nothing.", blank)
    yield from _odd_colours(seen)


def _odd_colours(seen: Seen) -> Iterator[Finding]:
    for is_odd, odd, usual in ((False, "grey", "in colour"), (True, "coloured", "grey")):
        names = [name for name, has in zip(seen.names, seen.has_colour, strict=True) if has == is_odd]
        if 0 < len(names) <= _RARE * len(seen.names):
            message = f"{count(len(names), f'{odd} images')}, but the others are {usual}: {first(names)}."
            advice = "Convert them all alike: otherwise colour tells classes apart that it should not."
            yield Finding("warning", "colour", message, advice, names)


def check_counts(seen: Seen) -> Iterator[Finding]:
    """Classes of very different sizes or with one example; a single class."""
    counts = Counter(label for label in seen.labels if label)
    if len(counts) == 1:
        message = f"There is only one class: {first(list(counts))}."
        yield Finding("error", "classes", message, "Add examples of another class.", list(counts))
    if len(counts) < 2:
        return
    (large, most), (small, least) = counts.most_common()[0], counts.most_common()[-1]
    if most / least >= _IMBALANCE:
        message = f"Class {large!r} has {most} {seen.noun}, but {small!r} only {least}."
        yield Finding("warning", "imbalance", message, f"Add {seen.noun} of {small!r}.", [large, small])
    single = [label for label, n in counts.items() if n == 1]
    if single:
        message = f"{count(len(single), 'classes')} with one example: {first(single)}."
        advice = 'Add at least one more: "none of these", sets of labels and the checks below need two.'
        yield Finding("note", "single", message, advice, single)


def check_duplicates(seen: Seen) -> Iterator[Finding]:
    """Exact and near copies, within one class or (worse) across two."""
    for name, pairs in (("duplicate", exact_pairs(seen, None)), ("near-duplicate", near_pairs(seen, None))):
        alike = "the same" if name == "duplicate" else "nearly the same"
        for is_across in (True, False):
            chosen = [(i, j) for i, j in pairs if (seen.labels[i] != seen.labels[j]) == is_across]
            if not chosen:
                continue
            shown = [f"{seen.names[i]} = {seen.names[j]}" for i, j in chosen]
            where = ", in two classes" if is_across else ", in one class" if any(seen.labels) else ""
            message = f"{count(len(chosen), 'pairs')} of {seen.noun} that are {alike}{where}: {few(shown)}."
            right, copy = "Delete the one with the wrong label.", "Keep one of each: a copy tells nothing new."
            advice = right if is_across else copy
            yield Finding("error" if is_across and name == "duplicate" else "warning", name, message, advice, shown)


def check_leaks(seen: Seen, other: Seen) -> Iterator[Finding]:
    """Images that are in both folders, so that a test on one says nothing about a model of the other."""
    for name, pairs in (("leak", exact_pairs(seen, other)), ("near-leak", near_pairs(seen, other))):
        if pairs:
            shown = [f"{seen.root.name}/{seen.names[i]} = {other.root.name}/{other.names[j]}" for i, j in pairs]
            alike = "the same" if name == "leak" else "nearly the same"
            message = f"{count(len(pairs), seen.noun)} in both {seen.root} and {other.root}, {alike}: {few(shown)}."
            advice = "Delete them from one of the two: a test on what was learned says nothing."
            yield Finding("error" if name == "leak" else "warning", name, message, advice, shown)


def check_labels(seen: Seen) -> Iterator[Finding]:
    """Labels that the other images contradict, and classes that are confused; by leave-one-out predictions."""
    labels = np.array(seen.labels)
    counts = Counter(seen.labels)
    if len(counts) < 2 or max(counts.values()) < 2:
        return
    found = zip(*suspects(Learned.fit(seen.embeddings, labels).fitted), strict=True)
    wrong = [(int(i), float(p), str(label)) for i, p, label in found if label != labels[i]]
    confused = _confused(labels.tolist(), [(i, label) for i, _, label in wrong], counts)
    for (a, b), n in confused.items():
        total = counts[a] + counts[b]
        message = f"Classes {a!r} and {b!r} cannot be told apart: {n} of {total} {seen.noun} look like the other."
        advice = "Merge them, add clearer examples, or use a stronger encoder (--encoder)."
        yield Finding("warning", "confused", message, advice, [a, b])
    pairs = set(confused)
    odd = [(i, p, label) for i, p, label in wrong if p < _SUSPECT and _pair(str(labels[i]), label) not in pairs]
    if odd:
        shown = [f"{seen.names[i]} (looks like {label}, probability of its own {p:.2f})" for i, p, label in odd]
        message = f"{count(len(odd), seen.noun)} perhaps in the wrong class: {few(shown)}."
        yield Finding("warning", "label", message, "Look at them; move those that are wrong.", shown)


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)


def _confused(labels: list[str], wrong: list[tuple[int, str]], counts: Counter[str]) -> dict[tuple[str, str], int]:
    """Pairs of classes, at least half of whose images are taken for the other class."""
    taken = Counter(_pair(labels[i], label) for i, label in wrong)
    return {(a, b): n for (a, b), n in taken.items() if n >= max(2, _CONFUSED * (counts[a] + counts[b]))}


def exact_pairs(seen: Seen, other: Seen | None) -> list[Pair]:
    """Pairs of images with equal pixels: within one folder (first occurrence and copy), or across two."""
    if other is not None:
        place = {digest: i for i, digest in reversed(list(enumerate(seen.digests)))}
        return [(place[digest], j) for j, digest in enumerate(other.digests) if digest in place]
    first_of: dict[str, int] = {}
    pairs = []
    for j, digest in enumerate(seen.digests):
        if first_of.setdefault(digest, j) != j:
            pairs.append((first_of[digest], j))
    return pairs


def near_pairs(seen: Seen, other: Seen | None) -> list[Pair]:
    """Pairs of images that are similar both by perceptual hash and by embedding, but not equal."""
    target = seen if other is None else other
    size, other_size = (np.abs(part.hashes).sum(1) for part in (seen, target))
    pairs: list[Pair] = []
    for start in range(0, len(seen.names), _CHUNK):
        part = slice(start, start + _CHUNK)
        agree = seen.hashes[part] @ target.hashes.T
        alike = agree >= _NEAR_HASH * np.maximum(size[part, None], other_size)
        alike &= ~(seen.is_blank[part, None] & target.is_blank)
        alike &= seen.embeddings[part] @ target.embeddings.T >= _NEAR_COSINE
        pairs += [(start + int(i), int(j)) for i, j in np.argwhere(alike)]
    return [(i, j) for i, j in pairs if (other is not None or i < j) and seen.digests[i] != target.digests[j]]

"""Contributions of the words of a text to a class."""

import re

import numpy as np

from mirrorshot.classifier import Learned
from mirrorshot.classifier.predict import proba
from mirrorshot.encoders import Encoder
from mirrorshot.encoders.texts import MAX_CHARACTERS
from mirrorshot.tool.results import Word

_TRIED = 64  # distinct words that are removed in turn


def words_that_count(learned: Learned, encoder: Encoder, text: str, c: int, n: int) -> list[Word]:
    """Return the `n` of the first 64 words whose removal changes the log-odds of class `c` most."""
    words = list(dict.fromkeys(re.findall(r"\w+", text[:MAX_CHARACTERS])))[:_TRIED]
    changed = [re.sub(rf"\b{re.escape(word)}\b", " ", text) for word in words]
    p = np.clip(proba(*learned.queries(encoder.encode([text, *changed])))[:, c], 1e-12, 1 - 1e-12)
    odds = np.log(p) - np.log1p(-p)
    order = np.argsort(-np.abs(odds[0] - odds[1:]), kind="stable")[:n]
    return [Word(words[j], float(odds[0] - odds[1 + j])) for j in order]

"""Small embedding sets that need no download, for few-shot episodes.

| name | classes | examples | features |
|---|---|---|---|
| digits | 10 handwritten digits (scikit-learn) | 1,797 | 8 x 8 pixels, unit norm |
| glyphs | 58 characters drawn by matplotlib's fonts | 2,784 | 16 x 16 pixels, unit norm |
| docstrings | 12 Python modules | about 1,200 | TF-IDF of docstrings, 100 SVD components, unit norm |
| wine | 3 cultivars (scikit-learn) | 178 | 13 standardised measurements |
| cancer | 2 diagnoses (scikit-learn) | 569 | 30 standardised measurements |

Features are made without labels. Every function returns `(X, y)` as float64 and int64 arrays.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[np.float64], NDArray[np.int64]]


def _unit_norm(X: NDArray[np.float64]) -> NDArray[np.float64]:
    return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)


def digits() -> Arrays:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return _unit_norm(X), y.astype(np.int64)


def wine() -> Arrays:
    from sklearn.datasets import load_wine
    from sklearn.preprocessing import StandardScaler

    X, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(X), y.astype(np.int64)


def cancer() -> Arrays:
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    X, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(X), y.astype(np.int64)


def glyphs() -> Arrays:
    """Characters as drawn by the typefaces that ship inside matplotlib, slightly moved and turned."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    characters = "abdefghkmnpqrtuyABDEFGHJKLMNPQRTUY2345679" + "αβγδζθλμπφψωΓΔΛΣΩ"
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = sorted(f for family in ("DejaVu*", "STIXGeneral*") for f in folder.glob(f"{family}.ttf"))
    rng = np.random.default_rng(0)
    X, y = [], []
    for label, character in enumerate(characters):
        for path in (f for f in fonts if "Display" not in f.name):
            for _ in range(3):
                canvas = Image.new("L", (64, 64))
                font = ImageFont.truetype(path, int(rng.integers(34, 46)))
                place = tuple(32 + rng.uniform(-4, 4, 2))
                ImageDraw.Draw(canvas).text(place, character, font=font, fill=255, anchor="mm")
                turned = canvas.rotate(float(rng.uniform(-12, 12)), resample=Image.Resampling.BILINEAR)
                X.append(np.asarray(turned.resize((16, 16), Image.Resampling.BOX), dtype=np.float64).ravel())
                y.append(label)
    return _unit_norm(np.stack(X)), np.array(y)


_MODULES = (
    "argparse", "asyncio", "collections", "datetime", "decimal", "email.message", "logging", "pathlib",
    "sqlite3", "statistics", "tkinter", "unittest.mock", "numpy.linalg", "numpy.random", "numpy.ma",
    "xml.etree.ElementTree",
)  # fmt: skip


def _docstrings(module_name: str) -> Iterator[str]:
    try:
        module = importlib.import_module(module_name)
    except ImportError:  # tkinter is optional in many Python builds
        return
    seen = set()
    for _, thing in inspect.getmembers(module):
        members = [thing, *(m for _, m in inspect.getmembers(thing))] if inspect.isclass(thing) else [thing]
        for member in members:
            text = inspect.getdoc(member) if callable(member) else None
            origin = getattr(member, "__module__", None) or ""
            if text and len(text) > 60 and text not in seen and origin.startswith(module_name.split(".")[0]):
                seen.add(text)
                yield text


def docstrings() -> Arrays:
    """Which module a docstring comes from."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, labels = [], []
    for name in _MODULES:
        found = list(_docstrings(name))
        if len(found) >= 25:
            texts += found
            labels += [name] * len(found)
    tfidf = TfidfVectorizer(sublinear_tf=True, min_df=2, stop_words="english").fit_transform(texts)
    X = TruncatedSVD(100, random_state=0).fit_transform(tfidf)
    return _unit_norm(X), np.unique(labels, return_inverse=True)[1].astype(np.int64)


SETS: dict[str, Callable[[], Arrays]] = {
    "digits": digits,
    "glyphs": glyphs,
    "docstrings": docstrings,
    "wine": wine,
    "cancer": cancer,
}

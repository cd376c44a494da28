"""Small embedding sets that need no download, for few-shot episodes.

| name | classes | examples | features |
|---|---|---|---|
| digits | 10 handwritten digits (scikit-learn) | 1,797 | 8 x 8 pixels, unit norm |
| glyphs | 58 characters drawn by matplotlib's fonts | 2,784 | 16 x 16 pixels, unit norm |

No labels are used to make features. Every function returns `(X, y)` as float64 and int64 arrays.
"""

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


def glyphs() -> Arrays:
    """Return characters drawn with the fonts of matplotlib, slightly moved and rotated."""
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

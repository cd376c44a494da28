"""Accuracy of the expected number of wrong answers on the page of `mirrorshot serve`.

    MIRRORSHOT_DATA=FOLDER python benchmarks/serve_expectation.py   # minutes, writes results/serve_expectation.json

Sessions have 5 classes of 5 examples, 200 further images of these classes and 12 of another class. The page offers to
accept all answers except "none of these", or those with a probability of at least 0.90. Its interval
(`static/expectation.js`, run in Chromium) is compared with the truth, before and after checks of 20 random answers.

- digits: scikit-learn's digits, examples drawn at random.
- digits of one writer: examples of each class are consecutive in the data set, which is ordered by writer.
- EMNIST (character encoder) and CUB (`efficientnet-lite2`), examples drawn at random.
"""

import argparse
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits

from _common import save, table
from encoders import photographs
from mirrorshot import FewShotClassifier
from mirrorshot.encoders import make_encoder
from mirrorshot.tool.model import NOVELTY_RATE
from serve import serving

N_SESSIONS, N_WAY, N_SHOT, N_POOL, N_OTHER, N_CHECKS = 100, 5, 5, 200, 12, 20
THRESHOLDS = (0.0, 0.9)
EXPECT = """async (sessions) => {
    const { expectation } = await import("./static/expectation.js");
    return sessions.map(({ probabilities, checks }) => expectation(probabilities, checks));
}"""
SHARES = ("wrong_by_probabilities", "wrong", "expected_wrong", "width", "coverage")
Draw = Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]]


def at_random(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(rows)[:N_SHOT]


def in_a_row(rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    first = rng.integers(len(rows) - N_SHOT + 1)
    return rows[first : first + N_SHOT]


def session(X: NDArray[Any], y: NDArray[Any], draw: Draw, rng: np.random.Generator) -> dict[str, Any]:
    """Return probability and truth of the answers that the page offers to accept, in random order."""
    *named, other = rng.permutation(np.unique(y))[: N_WAY + 1]
    support = np.concatenate([draw(np.flatnonzero(y == c), rng) for c in named])
    left = np.setdiff1d(np.flatnonzero(np.isin(y, named)), support)
    pool = np.concatenate([rng.permutation(left)[:N_POOL], rng.permutation(np.flatnonzero(y == other))[:N_OTHER]])
    head = FewShotClassifier().fit(X[support], y[support])
    prob = head.predict_proba(X[pool])
    right = head.classes_[prob.argmax(1)] == y[pool]
    order = rng.permutation(np.flatnonzero(head.novelty(X[pool]) <= head.novelty_threshold(NOVELTY_RATE)))
    return {"probability": prob.max(1)[order], "right": right[order]}


def above(found: dict[str, Any], threshold: float) -> dict[str, Any]:
    kept = found["probability"] >= threshold
    return {name: values[kept] for name, values in found.items()}


def with_checks(found: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the input of the page after checks of the first `n` answers."""
    p, right = found["probability"], found["right"]
    checks = [{"probability": float(a), "right": bool(b)} for a, b in zip(p[:n], right[:n], strict=True)]
    return {"probabilities": p[n:].tolist(), "checks": checks}


def summary(sessions: list[dict[str, Any]], told: list[dict[str, float]], n: int) -> dict[str, float]:
    truth = np.array([found["right"][n:].mean() for found in sessions])
    low, high, mean = (np.array([told_[name] for told_ in told]) for name in ("low", "high", "mean"))
    return {
        "wrong": float(1 - truth.mean()),
        "expected_wrong": float(1 - mean.mean()),
        "coverage": float(((low <= truth + 1e-9) & (truth <= high + 1e-9)).mean()),
        "width": float((high - low).mean()),
        "wrong_by_probabilities": float(np.mean([1 - found["probability"][n:].mean() for found in sessions])),
    }


def sets(folder: Path | None) -> dict[str, tuple[NDArray[Any], NDArray[Any], Draw]]:
    glyphs, data = make_encoder("glyphs"), load_digits()
    ink = [(255 - 15.9 * image).clip(0, 255).astype(np.uint8) for image in data.images]
    X = np.asarray(glyphs.encode([Image.fromarray(image).resize((64, 64)) for image in ink]))
    found: dict[str, tuple[NDArray[Any], NDArray[Any], Draw]] = {
        "digits": (X, data.target, at_random),
        "digits of one writer": (X, data.target, in_a_row),
    }
    if folder is not None:
        packed = np.load(folder / "emnist.npz")
        rows = np.concatenate([np.flatnonzero(packed["labels"] == c)[:50] for c in np.unique(packed["labels"])])
        drawings = [Image.fromarray(255 - packed["images"][i]) for i in rows]
        found["EMNIST"] = (np.asarray(glyphs.encode(drawings)), packed["labels"][rows], at_random)
        photos, labels = photographs(folder, "cub192.npz", 40)
        found["CUB"] = (np.asarray(make_encoder("efficientnet-lite2").encode(photos)), labels, at_random)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("MIRRORSHOT_DATA"))
    folder = parser.parse_args().data
    rows = []
    result: dict[str, list[dict[str, Any]]] = {}
    path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as data, serving(Path(data)) as (url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        page = browser.new_page()
        page.goto(url)
        for name, (X, y, draw) in sets(Path(folder) if folder else None).items():
            rng = np.random.default_rng(0)
            drawn = [session(X, y, draw, rng) for _ in range(N_SESSIONS)]
            result[name] = []
            for threshold, n in itertools.product(THRESHOLDS, (0, N_CHECKS)):
                sessions = [above(found, threshold) for found in drawn]
                sessions = [found for found in sessions if len(found["right"]) >= 2 * N_CHECKS]
                told = page.evaluate(EXPECT, [with_checks(found, n) for found in sessions])
                row = {"threshold": threshold, "n_checks": n, "n_sessions": len(sessions)}
                result[name].append(row | summary(sessions, told, n))
                shares = [f"{100 * result[name][-1][key]:.1f}" for key in SHARES]
                rows.append([name, f"{threshold:.2f}", str(n), *shares])
        browser.close()
    print(table(["images", "threshold", "checks", *(name.replace("_", " ") for name in SHARES)], rows))
    save("serve_expectation", {"sets": result}, seed=0)


if __name__ == "__main__":
    main()

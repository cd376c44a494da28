r"""Accuracy, size and time of the encoders that pip can install, and the choices of `auto`.

    MIRRORSHOT_DATA=FOLDER python benchmarks/encoders.py        # writes results/encoders.json

- Photographs: test classes of CUB and mini-ImageNet, 5 classes, logistic regression (C = 1000) on unit features.
- Characters: EMNIST drawn clean, inverted, on tinted paper, in blue ink, and in uneven light; `FewShotClassifier` with
  the character network, the image network, and the choice of `auto` for the examples of each task.
- Looks: the share of single images that are taken for characters, as `mirrorshot serve` decides by the first image.
- Texts: first sentences of the docstrings of SciPy, scikit-learn and the standard library; a class is a subpackage.
- Tables: iris, wine, breast cancer, with the kernels cosine and rbf and the choice of `Model.fit`.

Times are CPU seconds of one thread.
"""

import argparse
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import time
import warnings
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression

from _common import RESULTS, sample_episodes, save, table
from mirrorshot import FewShotClassifier
from mirrorshot.encoders import choose_encoder, make_encoder
from mirrorshot.encoders.base import unit
from mirrorshot.encoders.images import NETWORKS
from mirrorshot.tool import Items, Model, decide

N_TASKS, N_AUTO = 40, 40
PARTS = ("photographs", "texts", "tables", "characters", "looks")
VARIANTS = ("clean", "inverted", "tinted", "blue ink", "uneven light")
SIZES = {"pixels": 0.0, "efficientnet-lite0": 17.4, "efficientnet-lite1": 20.2, "efficientnet-lite2": 22.7,
         "tfidf": 0.0, "wordllama": 19.2, "minilm": 83.5}  # fmt: skip
"""Megabytes of the download by pip."""

TEXT_PACKAGES = {
    "scipy": [f"scipy.{name}" for name in ("cluster.hierarchy", "fft", "integrate", "interpolate", "linalg", "ndimage",
                                          "optimize", "signal", "sparse", "spatial", "special", "stats")],
    "scikit-learn": [f"sklearn.{name}" for name in ("cluster", "datasets", "decomposition", "ensemble", "linear_model",
                                                    "metrics", "model_selection", "preprocessing", "svm", "tree")],
    "standard library": ["asyncio", "decimal", "email", "html", "http", "logging", "sqlite3", "socket", "tarfile",
                         "threading", "unittest", "xml"],
}  # fmt: skip


def photographs(folder: Path, name: str, per_class: int) -> tuple[list[Image.Image], np.ndarray]:
    images, labels = [], []
    for path in sorted(folder.glob(name)):
        packed = np.load(path)
        data, offsets = packed["data"], packed["offsets"]
        for c in np.flatnonzero(packed["class_split"] == "test"):
            for i in np.flatnonzero(packed["labels"] == c)[:per_class]:
                images.append(Image.open(io.BytesIO(data[offsets[i] : offsets[i + 1]].tobytes())).convert("RGB"))
                labels.append(int(c))
    return images, np.array(labels)


def linear_accuracy(X: np.ndarray, y: np.ndarray, n_shot: int) -> float:
    found = []
    for task in sample_episodes(unit(X), y, n_way=5, n_shot=n_shot, n_query=15, n_episodes=N_TASKS, seed=1):
        model = LogisticRegression(C=1000, max_iter=500).fit(task.support_x, task.support_y)
        found.append(model.score(task.query_x, task.query_y))
    return float(np.mean(found))


def measured(name: str, sets: dict[str, tuple[list, np.ndarray]]) -> dict[str, object]:
    """Return accuracy on sets of items, and time."""
    started = time.process_time()
    encoder = make_encoder(name)
    row: dict[str, object] = {"megabytes": SIZES[name], "seconds_to_make": time.process_time() - started}
    seconds, n = 0.0, 0
    for key, (items, y) in sets.items():
        own = encoder.fit(items)
        started = time.process_time()
        X = own.encode(items)
        seconds, n = seconds + time.process_time() - started, n + len(items)
        row[key] = {f"{n_shot}_shot": linear_accuracy(X, y, n_shot) for n_shot in (1, 5)}
    return {**row, "ms_an_item": 1000 * seconds / n, "items_a_second": n / seconds}


def drawn(ink: np.ndarray, how: str, rng: np.random.Generator) -> Image.Image:
    """Return a character, given white on black, as written and photographed in some way."""
    share = np.pad(np.asarray(Image.fromarray(ink).resize((64, 64), Image.Resampling.BICUBIC), np.float32) / 255, 10)
    if how in ("clean", "inverted"):
        return Image.fromarray(np.round(255 * (share if how == "inverted" else 1 - share)).astype(np.uint8))
    is_lit = how == "uneven light"
    paper = np.array([0.95, 0.85, 0.65]) * rng.uniform(0.8, 1.0) if how == "tinted" or is_lit else np.ones(3)
    pen = np.array([0.15, 0.2, 0.6]) if how == "blue ink" or is_lit else np.full(3, 0.1)
    rows, columns = np.mgrid[0 : len(share), 0 : len(share)] / (len(share) - 1) - 0.5
    angle = rng.uniform(0, 2 * np.pi)
    light = 0.7 + 0.6 * (np.cos(angle) * columns + np.sin(angle) * rows) if is_lit else np.ones_like(rows)
    colours = light[..., None] * ((1 - share[..., None]) * paper + share[..., None] * pen)
    return Image.fromarray(np.round(255 * np.clip(colours + rng.normal(0, 0.02, colours.shape), 0, 1)).astype(np.uint8))


def png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def characters(folder: Path) -> list[dict[str, object]]:
    """Return accuracies of `FewShotClassifier` with each encoder, and with the choice of `auto`."""
    packed, rng = np.load(folder / "emnist.npz"), np.random.default_rng(0)
    classes = np.unique(packed["labels"])[1::2]
    rows_of = np.concatenate([np.flatnonzero(packed["labels"] == c)[:25] for c in classes])
    y = packed["labels"][rows_of].astype(np.int64)
    names = ["glyphs", next(iter(NETWORKS))]
    rows = []
    for how in VARIANTS:
        images = [drawn(packed["images"][i], how, rng) for i in rows_of]
        files = np.array([png(image) for image in images], dtype=object)
        X = {name: make_encoder(name).encode(images) for name in names}
        place = np.arange(len(y))[:, None].astype(float)
        for n_shot in (1, 5):
            found: dict[str, list[float]] = {name: [] for name in (*names, "auto")}
            n_right = 0
            for task in sample_episodes(place, y, n_way=5, n_shot=n_shot, n_query=15, n_episodes=N_AUTO, seed=1):
                s, q = task.support_x[:, 0].astype(int), task.query_x[:, 0].astype(int)
                for name in names:
                    prob = FewShotClassifier().fit(X[name][s], task.support_y).predict_proba(X[name][q])
                    found[name].append(float((prob.argmax(1) == task.query_y).mean()))
                labels = [str(label) for label in task.support_y]
                chosen = decide(Items("picture", labels, list(files[s]), labels)).name
                found["auto"].append(found[chosen][-1])
                n_right += chosen == "glyphs"
            means = {name: float(np.mean(values)) for name, values in found.items()}
            below = max(means[name] for name in names) - means["auto"]
            rows.append({"variant": how, "n_shot": n_shot, **means, "below": below, "glyphs_chosen": n_right / N_AUTO})
    return rows


def looks(folder: Path) -> list[dict[str, object]]:
    """Return the share of single images that look like characters."""
    packed, rng = np.load(folder / "emnist.npz"), np.random.default_rng(0)
    inks = packed["images"][:: len(packed["images"]) // 500]
    digits = [Image.fromarray((255 - 15.9 * image).clip(0, 255).astype(np.uint8)) for image in load_digits().images]
    sets = {f"characters, {how}": [drawn(ink, how, rng) for ink in inks] for how in VARIANTS}
    sets |= {"digits, 8 pixels": digits, "digits, 64 pixels": [digit.resize((64, 64)) for digit in digits]}
    sets |= {"CUB": photographs(folder, "cub192.npz", 20)[0], "mini-ImageNet": photographs(folder, "mini*.npz", 20)[0]}
    rows = []
    for name, images in sets.items():
        alike = [choose_encoder([image]).name == "glyphs" for image in images]
        rows.append({"images": name, "n": len(alike), "share": float(np.mean(alike))})
    return rows


def first_sentences(module_name: str) -> list[str]:
    """Return first sentences of the docstrings of a package, without those of a few words."""
    modules = [importlib.import_module(module_name)]
    for found in pkgutil.iter_modules(getattr(modules[0], "__path__", [])):
        if not found.name.startswith(("test", "__", "_test")):
            try:
                modules.append(importlib.import_module(f"{module_name}.{found.name}"))
            except Exception:  # some modules need missing packages
                continue
    texts: dict[str, None] = {}
    for module in modules:
        for _, thing in inspect.getmembers(module):
            members = [thing, *(m for _, m in inspect.getmembers(thing))] if inspect.isclass(thing) else [thing]
            for member in members:
                if str(getattr(member, "__module__", "")).startswith(module_name):
                    text = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
                    if len(re.findall(r"[A-Za-z]{2,}", text)) >= 6 and "Deprecated" not in text:
                        texts[text[:400]] = None
    return list(texts)


def text_sets(per_class: int) -> dict[str, tuple[list[str], np.ndarray]]:
    sets = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, packages in TEXT_PACKAGES.items():
            of_class = [first_sentences(package)[:per_class] for package in packages]
            of_class = [texts for texts in of_class if len(texts) >= 20]
            y = np.repeat(np.arange(len(of_class)), [len(texts) for texts in of_class])
            sets[name] = ([text for texts in of_class for text in texts], y)
    return sets


def tables() -> list[dict[str, object]]:
    rows = []
    for name, (X, y) in {"iris": load_iris(return_X_y=True), "wine": load_wine(return_X_y=True),
                         "breast cancer": load_breast_cancer(return_X_y=True)}.items():  # fmt: skip
        for n_shot in (1, 5):
            found: dict[str, list[float]] = {"cosine": [], "rbf": [], "auto": []}
            n_way = len(np.unique(y))
            for task in sample_episodes(X, y, n_way=n_way, n_shot=n_shot, n_query=15, n_episodes=N_TASKS // 2, seed=1):
                labels = [str(label) for label in task.support_y]
                items = Items("embedding", [f"row {i}" for i in range(len(labels))], task.support_x, labels)
                queries = Items("embedding", [f"row {i}" for i in range(len(task.query_y))], task.query_x, None)
                for kernel in ("cosine", "rbf"):
                    head = FewShotClassifier(kernel=kernel).fit(task.support_x, task.support_y)
                    found[kernel].append(float((head.predict(task.query_x) == task.query_y).mean()))
                answers = [int(answer.label) for answer in Model.fit(items).predict(queries)]
                found["auto"].append(float((np.array(answers) == task.query_y).mean()))
            rows.append({"table": name, "n_shot": n_shot, **{key: float(np.mean(v)) for key, v in found.items()}})
    return rows


def print_rows(rows: list[dict[str, object]]) -> None:
    cells = [[f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    print(table(list(rows[0]), cells), flush=True)


def print_measured(found: dict[str, dict], sets: dict[str, object]) -> None:
    rows = [
        [name, f"{row['megabytes']:.1f}", f"{row['ms_an_item']:.2f}"]
        + [f"{100 * row[key][f'{n}_shot']:.1f}" for key in sets for n in (1, 5)]
        for name, row in found.items()
    ]
    print(
        table(["encoder", "MB", "ms an item", *(f"{key} {n} shot" for key in sets for n in (1, 5))], rows), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=os.environ.get("MIRRORSHOT_DATA"), help="folder of the data")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to measure; others are kept")
    arguments = parser.parse_args()
    folder = arguments.data
    if folder is None:
        parser.error("set MIRRORSHOT_DATA, or pass --data")
    result: dict[str, object] = {}
    if set(arguments.parts) < set(PARTS):
        before = json.loads((RESULTS / "encoders.json").read_text())
        result = {key: before[key] for key in PARTS if key not in arguments.parts}
        result["other_parts"] = before.get("other_parts", {key: before[key] for key in ("commit", "command")})
    if "photographs" in arguments.parts:
        images = {"cub": photographs(folder, "cub192.npz", 20), "mini_imagenet": photographs(folder, "mini*.npz", 20)}
        result["photographs"] = {name: measured(name, images) for name in ("pixels", *reversed(NETWORKS))}
        print_measured(result["photographs"], images)
    if "texts" in arguments.parts:
        texts = text_sets(60)
        result["texts"] = {name: measured(name, texts) for name in ("tfidf", "wordllama", "minilm")}
        print_measured(result["texts"], texts)
    if "tables" in arguments.parts:
        result["tables"] = tables()
        print_rows(result["tables"])
    if "characters" in arguments.parts:
        result["characters"] = characters(folder)
        print_rows(result["characters"])
    if "looks" in arguments.parts:
        result["looks"] = looks(folder)
        print_rows(result["looks"])
    save("encoders", result, seed=1)


if __name__ == "__main__":
    main()

"""Embeddings of real encoders for `benchmarks/real_embeddings.py`, as `.npz` files (X, y) in a folder.

| kind | sets | encoder |
|---|---|---|
| photos | CUB and mini-ImageNet test classes, their training classes as background | `efficientnet-lite2` |
| characters | EMNIST through the image encoder and through `glyphs`, Omniglot and digits through `glyphs` | both |
| texts | docstrings by module, descriptions of Debian packages by section, manual pages by section | `--text-encoder` |
| tables | iris, wine, breast cancer, standardised; digits as pixels (scikit-learn) | - |

Images come from `MIRRORSHOT_DATA`; those of mini-ImageNet are 84 x 84, not the originals. Texts come from the machine:
docstrings of installed packages, `apt-cache dumpavail`, `/usr/share/man`. Sets with too few texts are left out.

    MIRRORSHOT_DATA=... python benchmarks/real_embedding_sets.py FOLDER [--only photos texts ...]
"""

import argparse
import gzip
import importlib
import inspect
import io
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mirrorshot.encoders import Encoder, make_encoder

PHOTOS, CHARACTERS = "efficientnet-lite2", "glyphs"
Labelled = dict[str, list[Any]]
_MODULES = [
    "numpy.linalg",
    "numpy.random",
    "numpy.ma",
    "scipy.stats",
    "scipy.optimize",
    "scipy.signal",
    "scipy.sparse",
    "scipy.spatial",
    "scipy.integrate",
    "scipy.ndimage",
    "sklearn.cluster",
    "sklearn.metrics",
    "sklearn.preprocessing",
    "asyncio",
    "email",
    "logging",
    "collections",
    "pathlib",
    "ast",
    "inspect",
    "matplotlib.pyplot",
    "PIL.Image",
]
_LEFT_OUT = {"libdevel", "oldlibs", "debug", "localization", "introspection", "libs", "misc", "metapackages", "doc"}
_MANUALS = {"git": "man1/git-*.1.gz", "ssl": "man1/*.1ssl.gz", "calls": "man2/*.2.gz", "library": "man3/*.3.gz",
            "files": "man5/*.5.gz", "overviews": "man7/*.7.gz", "system": "man8/*.8.gz", "devices": "man4/*.4.gz",
            "llvm": "man1/llvm-*.1.gz", "sslmodes": "man7/*.7ssl.gz"}  # fmt: skip


def photos(data: Path, files: Iterable[str], split: str, per_class: int) -> Labelled:
    rng, found = np.random.default_rng(0), defaultdict(list)
    for file in files:
        with np.load(data / file) as z:
            pixels, offsets, labels, splits = z["data"], z["offsets"], z["labels"], z["class_split"]
        for label in (c for c in np.unique(labels) if splits[c] == split):
            for i in rng.permutation(np.flatnonzero(labels == label))[:per_class]:
                picture = Image.open(io.BytesIO(pixels[offsets[i] : offsets[i + 1]].tobytes()))
                found[str(label)].append(picture.convert("RGB"))
    return found


def drawings(images: NDArray[np.uint8], labels: NDArray[Any], n_classes: int, per_class: int) -> Labelled:
    rng = np.random.default_rng(0)
    classes = rng.permutation(np.unique(labels))[:n_classes]
    drawn = {str(c): rng.permutation(np.flatnonzero(labels == c))[:per_class] for c in classes}
    return {name: [Image.fromarray(images[i]).convert("RGB") for i in rows] for name, rows in drawn.items()}


def docstrings() -> Labelled:
    found = defaultdict(list)
    for name in _MODULES:
        things = [thing for _, thing in inspect.getmembers(importlib.import_module(name))]
        things += [member for thing in things if inspect.isclass(thing) for _, member in inspect.getmembers(thing)]
        home = name.split(".")[0]
        texts = {
            " ".join((inspect.getdoc(t) or "").split())[:400]
            for t in things
            if callable(t) and (getattr(t, "__module__", None) or "").startswith(home)
        }
        found[name] = sorted(text for text in texts if len(text) > 60)
    return found


def packages() -> Labelled:
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=False).stdout
    found, seen = defaultdict(list), set()
    for block in listed.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Source|Section|Description): (.*)$", block, flags=re.M))
        source = fields.get("Source", fields.get("Package", "")).split(" ")[0]
        section, text = fields.get("Section", ""), fields.get("Description", "")
        if source not in seen and section and section not in _LEFT_OUT and len(text) >= 25:
            seen.add(source)
            found[section].append(text)
    return found


def manuals() -> Labelled:
    found = defaultdict(list)
    for name, pattern in _MANUALS.items():
        for path in sorted(Path("/usr/share/man").glob(pattern))[:200]:
            text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
            body = re.search(r"\.S[Hh] \"?DESCRIPTION\"?(.*?)\n\.S[Hh]", text, flags=re.S)
            plain = re.sub(r"\\f.|\\[-&()]|^\.\w+ ?", "", body.group(1) if body else "", flags=re.M)
            if len(" ".join(plain.split())) > 80:
                found[name].append(" ".join(plain.split())[:400])
    return found


def write(folder: Path, name: str, items: Labelled, encode: Callable[[list[Any]], NDArray[Any]]) -> None:
    """Encode up to 100 items of each class with 20 or more, in a fixed random order."""
    rng = np.random.default_rng(0)
    kept = {c: [x[i] for i in rng.permutation(len(x))[:100]] for c, x in sorted(items.items()) if len(x) >= 20}
    if len(kept) < 2:
        print(f"{name}: left out, {len(kept)} classes")
        return
    X = np.concatenate([encode(x) for x in kept.values()])
    np.savez(folder / f"{name}.npz", X=X, y=np.repeat(np.arange(len(kept)), [len(x) for x in kept.values()]))
    print(f"{name}: {len(kept)} classes, {X.shape}", flush=True)


def write_tables(folder: Path) -> None:
    from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

    for name, load in {"iris": load_iris, "wine": load_wine, "cancer": load_breast_cancer}.items():
        X, y = load(return_X_y=True)
        np.savez(folder / f"table-{name}.npz", X=(X - X.mean(0)) / X.std(0), y=y)
    X, y = load_digits(return_X_y=True)
    np.savez(folder / "table-digits.npz", X=X, y=y)


def write_images(folder: Path, data: Path, *, photos_too: bool) -> None:
    mini = ("miniimagenet84_0.npz", "miniimagenet84_1.npz")
    if photos_too:
        network = make_encoder(PHOTOS)
        for name, files in {"cub": ("cub192.npz",), "mini-imagenet": mini}.items():
            write(folder, f"photos-{name}", photos(data, files, "test", 60), network.encode)
            write(folder, f"background-{name}", photos(data, files, "train", 30), network.encode)
    with np.load(data / "emnist.npz") as z:
        emnist = drawings(255 - z["images"], z["labels"], 62, 40)
    with np.load(data / "omniglot.npz") as z:
        omniglot = drawings(z["images28"], z["cls"], 200, 20)
    from sklearn.datasets import load_digits

    digits = drawings(
        (255 - np.clip(load_digits().images * 16, 0, 255)).astype(np.uint8), load_digits().target, 10, 100
    )
    glyphs: Encoder = make_encoder(CHARACTERS)
    for name, items in {"emnist": emnist, "omniglot": omniglot, "digits": digits}.items():
        write(folder, f"characters-{name}", items, glyphs.encode)
    if photos_too:
        write(folder, "photos-emnist", emnist, make_encoder(PHOTOS).encode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    kinds = ("photos", "characters", "texts", "tables")
    parser.add_argument("--only", nargs="+", default=kinds, choices=kinds)
    parser.add_argument("--text-encoder", default="wordllama")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if "tables" in args.only:
        write_tables(args.folder)
    if "texts" in args.only:
        encoder = make_encoder(args.text_encoder)
        for name, items in {"docstrings": docstrings(), "packages": packages(), "manuals": manuals()}.items():
            write(args.folder, f"texts-{name}", items, encoder.encode)
    if {"photos", "characters"} & set(args.only):
        write_images(args.folder, Path(os.environ["MIRRORSHOT_DATA"]), photos_too="photos" in args.only)


if __name__ == "__main__":
    main()

"""Embeddings of the copies that `mirrorshot serve` stores, against embeddings of the uploaded images.

    MIRRORSHOT_DATA=FOLDER python benchmarks/serve_copies.py      # about ten minutes, writes results/serve_copies.json

After a change of the encoder, stored images are embedded from copies (shorter side at most 320 pixels, JPEG of quality
92; small images without loss), later images from the uploaded files. So examples and queries can come from different
kinds of files. Each row compares four kinds of tasks: examples and queries from originals or from copies.

- CUB, test classes: files of 192 pixels, which copies only compress again.
- CUB enlarged to 768 pixels: copies shrink and compress. These are not photographs of that resolution.
- EMNIST, drawn at 28 pixels (kept without loss) and at 280 (compressed).
"""

import argparse
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from _common import sample_episodes, save, table
from encoders import photographs
from mirrorshot import FewShotClassifier
from mirrorshot.encoders import make_encoder
from mirrorshot.serve.images import make_copy

N_TASKS, N_SHOT, N_QUERY, PER_CLASS, N_CHARACTERS = 100, 5, 15, 20, 20
PHOTOS, CHARACTERS = "efficientnet-lite2", "glyphs"


def enlarged(image: Image.Image, times: int) -> Image.Image:
    return image.resize((times * image.width, times * image.height), Image.Resampling.BICUBIC)


def characters(folder: Path) -> tuple[list[Image.Image], NDArray[np.int64]]:
    packed = np.load(folder / "emnist.npz")
    classes = np.unique(packed["labels"])[:N_CHARACTERS]
    rows = np.concatenate([np.flatnonzero(packed["labels"] == c)[:PER_CLASS] for c in classes])
    return [Image.fromarray(255 - packed["images"][i]) for i in rows], packed["labels"][rows].astype(np.int64)


def embeddings(encoder: Any, images: list[Image.Image]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return embeddings (n, D) of images and of their copies, one image at a time as in the server."""
    originals = [encoder.encode([image])[0] for image in images]
    copies = [encoder.encode([Image.open(io.BytesIO(make_copy(image)))])[0] for image in images]
    return np.stack(originals), np.stack(copies)


def cosines(A: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
    return np.asarray((A * B).sum(1) / np.linalg.norm(A, axis=1) / np.linalg.norm(B, axis=1))


def accuracies(X: dict[str, NDArray[Any]], y: NDArray[np.int64]) -> dict[str, float]:
    """Return the accuracy on the same tasks for each pair of origins of examples and queries."""
    places = np.arange(len(y), dtype=float)[:, None]
    right: dict[str, list[float]] = {}
    for task in sample_episodes(places, y, n_way=5, n_shot=N_SHOT, n_query=N_QUERY, n_episodes=N_TASKS, seed=1):
        s, q = (part[:, 0].astype(int) for part in (task.support_x, task.query_x))
        for examples in X:
            model = FewShotClassifier().fit(X[examples][s], task.support_y)
            for queries in X:
                found = right.setdefault(f"{examples}_to_{queries}", [])
                found.append(float(model.score(X[queries][q], task.query_y)))
    return {name: float(np.mean(values)) for name, values in right.items()}


def measured(encoder: Any, images: list[Image.Image], y: NDArray[np.int64]) -> dict[str, Any]:
    originals, copies = embeddings(encoder, images)
    same = cosines(originals, copies)
    return {
        "n_images": len(images),
        "pixels": max(image.size for image in images),
        "cosine_mean": float(same.mean()),
        "cosine_lowest": float(same.min()),
        "accuracy": accuracies({"originals": originals, "copies": copies}, y),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("MIRRORSHOT_DATA"))
    folder = parser.parse_args().data
    photos, photo_labels = photographs(folder, "cub192.npz", PER_CLASS)
    drawings, drawing_labels = characters(folder)
    network, glyphs = make_encoder(PHOTOS), make_encoder(CHARACTERS)
    sets = {
        f"CUB, {PHOTOS}": (network, photos, photo_labels),
        f"CUB enlarged, {PHOTOS}": (network, [enlarged(image, 4) for image in photos], photo_labels),
        f"EMNIST, {CHARACTERS}": (glyphs, drawings, drawing_labels),
        f"EMNIST enlarged, {CHARACTERS}": (glyphs, [enlarged(image, 10) for image in drawings], drawing_labels),
    }
    found = {name: measured(*parts) for name, parts in sets.items()}
    rows = []
    for name, row in found.items():
        shares = [f"{100 * share:.1f}" for share in row["accuracy"].values()]
        rows.append([name, f"{row['cosine_mean']:.4f}", f"{row['cosine_lowest']:.3f}", *shares])
    pairs = [name.replace("_", " ") for name in next(iter(found.values()))["accuracy"]]
    print(table(["images", "cosine", "lowest", *pairs], rows))
    result = {"sets": found, "n_way": 5, "n_shot": N_SHOT, "n_query": N_QUERY, "n_tasks": N_TASKS}
    save("serve_copies", result, seed=1)


if __name__ == "__main__":
    main()

r"""Make the packaged encoder `glyphs`, and measure it on handwritten digits.

    mirrorshot train --data glyphs --episodes 12000 --set method_options.kernel=cosine --set distort=0.5 \
        --set validate_every=1000 --set n_validation_tasks=100 --set n_tune_tasks=20 --output runs/glyph-encoder
    python benchmarks/glyph_encoder.py --run runs/glyph-encoder     # writes src/mirrorshot/encoders/glyphs.safetensors
    python benchmarks/glyph_encoder.py                              # measures the present file

`FewShotClassifier` with its defaults classifies the embeddings: 5 classes, 15 queries per class. Digits are those of
scikit-learn, which training never used; but the blurred image beside the features of the network was chosen on digits,
EMNIST and Omniglot. Characters are the validation characters. `--lengths` compares lengths of the blurred image, on
validation characters under four kinds of simulated shifts that training does not have.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from _common import sample_episodes, save, table
from mirrorshot import FewShotClassifier
from mirrorshot.data.glyphs import load_glyphs
from mirrorshot.data.shifts import N_SHIFTS, shift_images
from mirrorshot.encoders import make_encoder
from mirrorshot.encoders.base import unit
from mirrorshot.encoders.glyphs import GLYPHS_FILE, GLYPHS_KIND, GLYPHS_VERSION, N_FEATURES, glyph_network, glyph_parts
from mirrorshot.encoders.networks import read_run
from mirrorshot.files.sealed import save_sealed
from mirrorshot.training.folder import read_log

KINDS = {"blur": 0, "low resolution": 2, "noise": 3, "cut-outs": 4}  # shifts that training does not have


def make(run: Path) -> dict[str, float]:
    """Write the weights of the network, and the means of both parts over the training characters."""
    network = read_run(run)
    pictures = load_glyphs("train").items[::5, 0].numpy()
    centres = [part.mean(0) for part in glyph_parts(glyph_network(network.tensors()), pictures)]
    tensors = {f"network.{name}": tensor for name, tensor in network.tensors().items()}
    for name, centre in zip(("network", "blurred"), centres, strict=True):
        tensors[f"centre.{name}"] = centre
    save_sealed(GLYPHS_FILE, tensors, {"settings": network.settings}, kind=GLYPHS_KIND, version=GLYPHS_VERSION)
    last = read_log(run)[-1]
    return {"training_episodes": last["episodes"], "training_s": last["seconds"], "val_accuracy": last["val_accuracy"]}


def score(X: np.ndarray, y: np.ndarray, n_shot: int, n_episodes: int) -> dict[str, float]:
    accuracy, nll = [], []
    for task in sample_episodes(X, y, n_way=5, n_shot=n_shot, n_query=15, n_episodes=n_episodes, seed=1):
        prob = FewShotClassifier().fit(task.support_x, task.support_y).predict_proba(task.query_x)
        accuracy.append(float((prob.argmax(1) == task.query_y).mean()))
        nll.append(float(-np.log(prob[np.arange(len(prob)), task.query_y]).mean()))
    half = 1.96 * float(np.std(accuracy)) / np.sqrt(n_episodes)
    return {"accuracy": float(np.mean(accuracy)), "interval_95": half, "nll": float(np.mean(nll))}


def compare_lengths(n_episodes: int) -> list[dict[str, float | str]]:
    """Return the accuracy for lengths of the blurred image, under shifts of one kind and nearly full strength."""
    source, generator = load_glyphs("val"), torch.Generator().manual_seed(1)
    y, rows = source.labels.numpy(), []
    for name, kind in KINDS.items():
        chosen = np.flatnonzero(np.isin(y, np.random.default_rng(kind).permutation(source.n_classes)[:100]))
        strengths = 0.7 * torch.eye(N_SHIFTS)[[kind]]
        shifted = shift_images(source.items[chosen].float()[None] / 255, strengths, generator)[0, :, 0]
        pictures = [Image.fromarray(image) for image in (255 * shifted).round().byte().numpy()]
        X = make_encoder("glyphs").encode(pictures).astype(np.float64)
        network, blurred = X[:, :N_FEATURES], unit(X[:, N_FEATURES:])
        for length in (0.0, 0.3, 0.5, 0.7, 1.0):
            parts = np.concatenate([network, length * blurred], 1)
            found = {f"{n} shots": round(score(parts, y[chosen], n, n_episodes)["accuracy"], 4) for n in (1, 5)}
            rows.append({"shift": name, "length": length, **found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run to make the encoder from; without it the encoder is measured")
    parser.add_argument("--lengths", action="store_true", help="compare lengths of the blurred image")
    parser.add_argument("--episodes", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.lengths:
        found = compare_lengths(arguments.episodes)
        print(table(list(found[0]), [[str(value) for value in row.values()] for row in found]))
        save("glyph_lengths", {"rows": found}, seed=1)
        return
    training = make(arguments.run) if arguments.run else None
    print(f"{GLYPHS_FILE.name}: {GLYPHS_FILE.stat().st_size:,} bytes", training or "")
    rows = []
    for name, source in (("digits", load_glyphs("test")), ("characters", load_glyphs("val", n_classes=100))):
        pictures = [Image.fromarray(picture) for picture in source.items[:, 0].numpy()]
        for encoder in ("glyphs", "pixels"):
            X = make_encoder(encoder).encode(pictures).astype(np.float64)
            for n_shot in (1, 5):
                found = score(X, source.labels.numpy(), n_shot, arguments.episodes)
                rows.append({"data": name, "encoder": encoder, "n_shot": n_shot, **found})
    print(
        table(list(rows[0]), [[str(round(v, 3)) if isinstance(v, float) else str(v) for v in r.values()] for r in rows])
    )
    result = {"file_bytes": GLYPHS_FILE.stat().st_size, "training": training, "rows": rows}
    save("glyph_encoder", result, seed=1)


if __name__ == "__main__":
    main()

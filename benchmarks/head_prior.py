"""Priors from the classification head of the image network, which need no data set.

Maps: `x + ((x V^T) g) V` with the metric `(1 - s) I + s W'W / mean eigenvalue` of the weights `W` of the head (1000 x
1280, rows centred), in the space of square roots (`W` times the root of the expected features) or of features. The
expectation is that of `relu6` of a normal variable with the moments of the last batch normalisation. It is also tried
as a centre; then `s` is the share of the examples' mean that is subtracted afterwards. `s` is chosen on the sets of the
other domains (accuracy, mean over shots) and tested on the domain left out.

One-shot temperature: the logarithm of the best factor on the default temperature is regressed on one statistic of the
examples (head's largest probability, entropy, energy, ...) over the sets of the other domains.

    python benchmarks/head_prior.py FOLDER [--make] [--tasks 80] [--jobs 2]

`--make` writes the embeddings first (about 5,200 images of `MIRRORSHOT_DATA`, three minutes on two cores).
"""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from PIL import Image
from scipy.special import log_softmax, ndtr

from _common import sample_episodes, save, table
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.prior import BROAD_TEMPERATURE, FeatureMap, Prior, unit_length
from mirrorshot.encoders import make_encoder
from mirrorshot.encoders.images import NETWORKS
from mirrorshot.encoders.packages import read_weights
from mirrorshot.encoders.torch_file import read_torch_file
from real_embedding_sets import PHOTOS, drawings, photos, write
from real_embeddings import nearest_mean, predict, read, score

SEED = 2026
DOMAINS = {
    "photos-cub": "birds",
    "photos-small-birds": "birds",
    "photos-mini-imagenet": "objects",
    "photos-emnist": "characters",
    "photos-omniglot": "characters",
}
SHARES = (0.05, 0.15, 0.3, 0.6)
FACTORS = np.geomspace(0.2, 5.0, 81)
Weights = dict[str, NDArray[np.float64]]


def make_sets(folder: Path, data: Path) -> None:
    """Write embeddings of 20 to 22 images per class by the image network."""
    encode = make_encoder(PHOTOS).encode
    folder.mkdir(parents=True, exist_ok=True)
    mini = ("miniimagenet84_0.npz", "miniimagenet84_1.npz")
    write(folder, "photos-cub", photos(data, ("cub192.npz",), "test", 22), encode)
    birds = photos(data, ("cub192.npz",), "val", 20)
    small = {c: [i.resize((24, 24), Image.Resampling.BOX) for i in items] for c, items in birds.items()}
    write(folder, "photos-small-birds", small, encode)
    write(folder, "photos-mini-imagenet", photos(data, mini, "test", 20), encode)
    with np.load(data / "emnist.npz") as z:
        write(folder, "photos-emnist", drawings(255 - z["images"], z["labels"], 62, 20), encode)
    with np.load(data / "omniglot.npz") as z:
        write(folder, "photos-omniglot", drawings(z["images28"], z["cls"], 60, 20), encode)


def read_head() -> Weights:
    """Return weights and bias of the head, and the expected features."""
    package, digest, _ = NETWORKS[PHOTOS]
    found = read_torch_file(read_weights(package, "models/*.pth", digest, install="'mirrorshot[images]'"))
    mean, std = found["_bn1.bias"].astype(np.float64), np.abs(found["_bn1.weight"].astype(np.float64))
    W, b = (found[f"_fc.{name}"].astype(np.float64) for name in ("weight", "bias"))
    return {"W": W, "b": b, "expected": _ramp(mean, std) - _ramp(mean - 6.0, std)}


def _ramp(mean: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """E[max(z, 0)] of normal z."""
    std = np.maximum(std, 1e-9)
    z = mean / std
    return np.asarray(mean * ndtr(z) + std * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi))


def head_map(head: Weights, share: float, *, root: bool, rank: int, centred: bool) -> FeatureMap:
    """Return the map of a metric between the identity (share 0) and that of the head (share 1)."""
    W = head["W"] - head["W"].mean(0)
    W = W * np.sqrt(head["expected"]) if root else W
    _, values, V = np.linalg.svd(W, full_matrices=False)
    values, n = values**2, W.shape[1]
    average = values.sum() / n
    rest = values[rank:].sum() / (n - rank)
    kept, flat = ((1 - share) + share * value / average for value in (values[:rank], rest))
    place = unit_length(np.sqrt(head["expected"]) if root else head["expected"])
    return FeatureMap(root, True, place if centred else np.zeros(n), V[:rank], np.sqrt(kept / flat) - 1.0)


def classifiers(head: Weights) -> dict[str, Any]:
    """Return classifiers with the defaults, and with priors from the head."""

    def prior(map: FeatureMap, centre: float = 1.0) -> FewShotClassifier:
        return FewShotClassifier(prior=Prior(map, 30.0, centre, BROAD_TEMPERATURE))

    found: dict[str, Any] = {"defaults": FewShotClassifier()}
    for share in SHARES:
        found[f"root, rank 999, s={share}"] = prior(head_map(head, share, root=True, rank=999, centred=False))
        found[f"root, rank 64, s={share}"] = prior(head_map(head, share, root=True, rank=64, centred=False))
        found[f"features, rank 999, s={share}"] = prior(head_map(head, share, root=False, rank=999, centred=False))
    for centre in (0.5, 1.0):
        plain = head_map(head, 0.0, root=True, rank=1, centred=True)
        found[f"expected centre, s={centre}"] = prior(plain, centre)
    return found


def statistics(head: Weights, x: NDArray[np.float64]) -> dict[str, float]:
    """Return statistics of the examples by the head, each on a logarithmic scale."""
    logits = x @ head["W"].T + head["b"]
    log_prob = log_softmax(logits, axis=-1)
    entropy = -(np.exp(log_prob) * log_prob).sum(-1)
    near = unit_length(np.sqrt(x)) @ unit_length(np.sqrt(head["expected"]))
    return {
        "log of the largest probability": float(log_prob.max(-1).mean()),
        "log entropy": float(np.log(np.maximum(entropy, 1e-3)).mean()),
        "energy / 10": float(np.log(np.exp(logits).sum(-1)).mean()) / 10,
        "log length": float(np.log(np.linalg.norm(x, axis=-1)).mean()),
        "log cosine to the expectation": float(np.log(near).mean()),
    }


def tempered(prob: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    return np.asarray(np.exp(log_softmax(np.log(np.maximum(prob, 1e-15)) / factor, axis=-1)))


def best_factor(prob: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    return float(FACTORS[np.argmin([score(tempered(prob, f), y)["nll"].mean() for f in FACTORS])])


def measure(folder: Path, head: Weights, n_tasks: int, jobs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return scores of every method and, for one shot, inputs of the temperature rules, by set."""
    found: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    for name in DOMAINS:
        X, y = read(folder, name)
        for n_shot in (1, 5):
            episodes = sample_episodes(X, y, n_way=5, n_shot=n_shot, n_query=15, n_episodes=n_tasks, seed=SEED)
            labels = episodes[0].query_y
            for method, classifier in classifiers(head).items():
                prob = np.stack(Parallel(n_jobs=jobs)(delayed(predict)(classifier, e) for e in episodes))
                factor = best_factor(prob, labels)
                result = score(prob, labels) | {"best_nll": score(tempered(prob, factor), labels)["nll"]}
                found[name, n_shot, method] = result
                if method == "defaults" and n_shot == 1:
                    seen = [statistics(head, e.support_x) for e in episodes]
                    shown[name] = {"prob": prob, "labels": labels, "factor": factor, "seen": seen}
            means = score(np.stack([nearest_mean(e) for e in episodes]), labels)
            own = found[name, n_shot, "defaults"]
            print(name, n_shot, own["accuracy"].mean(), means["accuracy"].mean(), own["nll"].mean(), flush=True)
    return found, shown


def others(name: str) -> list[str]:
    """Return the sets of the other domains."""
    return [other for other, domain in DOMAINS.items() if domain != DOMAINS[name]]


def gain(found: dict[str, Any], name: str, n_shot: int, method: str, metric: str) -> NDArray[np.float64]:
    return np.asarray(found[name, n_shot, method][metric] - found[name, n_shot, "defaults"][metric])


def left_out(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return paired differences from the defaults for each family of maps, at the best share of the other domains."""
    rows = []
    families = {m.rsplit(", ", 1)[0] for _, _, m in found} - {"defaults"}
    for family in sorted(families):
        members = sorted({m for _, _, m in found if m.rsplit(", ", 1)[0] == family})
        for name in DOMAINS:
            value = {
                m: np.mean([gain(found, o, k, m, "accuracy").mean() for o in others(name) for k in (1, 5)])
                for m in members
            }
            best = max(members, key=lambda m: float(value[m]))
            best = best if value[best] > 0 else "defaults"
            for n_shot in (1, 5):
                accuracy = gain(found, name, n_shot, best, "accuracy")
                nll, best_nll = (gain(found, name, n_shot, best, m).mean() for m in ("nll", "best_nll"))
                ci = 1.96 * accuracy.std() / len(accuracy) ** 0.5
                row = {"family": family, "set": name, "n_shot": n_shot, "chosen": best}
                row |= {"accuracy": float(accuracy.mean()), "ci95": float(ci)}
                rows.append(row | {"nll": float(nll), "nll_best_temperature": float(best_nll)})
    return rows


def temperature_rules(shown: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one-shot gap and ECE of the sets left out: defaults, a constant factor, and a factor by each statistic."""
    rows = []
    for rule in ["defaults", "constant", *next(iter(shown.values()))["seen"][0]]:
        for name, own in shown.items():
            if rule == "defaults":
                factors = np.ones(len(own["prob"]))
            else:
                target = np.log([shown[o]["factor"] for o in others(name)])
                at = [0.0 if rule == "constant" else np.mean([s[rule] for s in shown[o]["seen"]]) for o in others(name)]
                A = np.stack([np.ones(len(at)), at], 1)
                slope = np.linalg.lstsq(A, target, rcond=None)[0]
                here = np.array([0.0 if rule == "constant" else s[rule] for s in own["seen"]])
                factors = np.exp(np.clip(slope[0] + slope[1] * here, np.log(FACTORS[0]), np.log(FACTORS[-1])))
            prob = np.stack([tempered(p, f) for p, f in zip(own["prob"], factors, strict=True)])
            found = score(prob, own["labels"])
            gap = found["confidence"] - float(found["accuracy"].mean())
            row = {"rule": rule, "set": name, "gap": gap, "ece": float(found["ece"]), "nll": float(found["nll"].mean())}
            rows.append(row | {"best_factor": own["factor"]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--tasks", type=int, default=80)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.make and "MIRRORSHOT_DATA" not in os.environ:
        parser.error("--make needs MIRRORSHOT_DATA, the folder of the benchmark data.")
    if args.make:
        make_sets(args.folder, Path(os.environ["MIRRORSHOT_DATA"]))
    found, shown = measure(args.folder, read_head(), args.tasks, args.jobs)
    every = [
        {"set": name, "n_shot": n_shot, "method": method}
        | {metric: float(np.mean(value)) for metric, value in scores.items()}
        for (name, n_shot, method), scores in found.items()
    ]
    maps, rules = left_out(found), temperature_rules(shown)
    for rows in (every, maps, rules):
        print(
            table(list(rows[0]), [[f"{v:.4f}" if isinstance(v, float) else str(v) for v in r.values()] for r in rows])
        )
    result = {"n_tasks": args.tasks, "n_way": 5, "all": every, "maps_left_out": maps, "temperature_left_out": rules}
    save("head_prior", result, seed=SEED)


if __name__ == "__main__":
    main()

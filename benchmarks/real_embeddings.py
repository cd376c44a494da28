"""FewShotClassifier against logistic regression, nearest class mean and scikit-learn's GPC on real embeddings.

Rivals: logistic regression on unit-norm embeddings with the best C of {1, 10, 100, 1000, 10000} chosen on the *test
queries*, by accuracy for accuracy and by NLL for NLL; the nearest class mean by cosine (accuracy); and
`GaussianProcessClassifier` on unit-norm embeddings (the first tasks only). All get the same tasks: 5 and 15 classes, 1
and 5 shots, 15 queries per class (fewer for small classes). `mirrorshot, prior`: for sets of photos, with a prior
learned on the backgrounds of the *other* sets; for characters, with the packaged prior of `glyphs`, as in `mirrorshot
fit`. Targets: accuracy at most 0.2 points below the best rival, NLL at most that of the best rival.

    python benchmarks/real_embedding_sets.py FOLDER
    python benchmarks/real_embeddings.py FOLDER [--tasks 600] [--gpc-tasks 20] [--sets photos-cub ...] [--jobs 2]
    python benchmarks/real_embedding_table.py   # the table of README.md

With `--sets`, the rows of other sets stay in the result file, each with its own commit and command.

    python benchmarks/real_embeddings.py FOLDER --write-prior photos.prior   # from all backgrounds
"""

import argparse
import functools
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Memory, Parallel, delayed
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression

from _common import RESULTS, Episode, sample_episodes, save, table
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.prior import Prior, unit_length
from mirrorshot.classifier.prior_learning import learn_prior
from mirrorshot.encoders.glyphs import Glyphs

SEED = 2026
CS = (1, 10, 100, 1000, 10000)
ENCODER = "efficientnet-lite2"
BACKGROUNDS = ("background-cub", "background-mini-imagenet", "photos-emnist")


class Task(NamedTuple):
    """Kind and number of tasks; the slowest rival gets `gpc_tasks` of them."""

    n_way: int
    n_shot: int
    n_tasks: int
    gpc_tasks: int


def read(folder: Path, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    with np.load(folder / f"{name}.npz") as z:
        return z["X"].astype(np.float64), z["y"].astype(np.int64)


@functools.cache
def prior_without(folder: Path, name: str) -> Prior:
    """Return a prior of the image encoder from the backgrounds of the other sets."""
    subject = name.removeprefix("photos-")
    others = [b for b in BACKGROUNDS if subject not in b]
    return learn_prior([read(folder, b) for b in others], encoder=ENCODER, learned_on=", ".join(others))


def prior_for(folder: Path, name: str) -> Prior | None:
    """Return the prior for a set, if there is one."""
    if name.startswith("photos-"):
        return prior_without(folder, name)
    return Glyphs().prior if name.startswith("characters-") else None


def draw(X: NDArray[np.float64], y: NDArray[np.int64], n_way: int, n_shot: int, n_tasks: int) -> list[Episode]:
    n_query = min(15, int(np.bincount(y).min()) - n_shot)
    return sample_episodes(X, y, n_way=n_way, n_shot=n_shot, n_query=n_query, n_episodes=n_tasks, seed=SEED)


def predict(method: Any, episode: Episode) -> NDArray[np.float64]:
    warnings.simplefilter("ignore")  # logistic regression does not always converge
    return np.asarray(method.fit(episode.support_x, episode.support_y).predict_proba(episode.query_x))


def predict_short(method: Any, episode: Episode) -> NDArray[np.float64]:
    """`predict` for methods of inner products of unit-norm rows, by coordinates in the span of the support."""
    x, q = unit_length(episode.support_x), unit_length(episode.query_x)
    values, vectors = np.linalg.eigh(x @ x.T)
    axes = vectors[:, values > 1e-9] / np.sqrt(values[values > 1e-9])
    return predict(method, Episode(x @ x.T @ axes, episode.support_y, q @ x.T @ axes, episode.query_y))


def nearest_mean(episode: Episode) -> NDArray[np.float64]:
    x, q = unit_length(episode.support_x), unit_length(episode.query_x)
    means = np.stack([x[episode.support_y == c].mean(0) for c in np.unique(episode.support_y)])
    return np.asarray(q @ unit_length(means).T)


def score(prob: NDArray[np.float64], y: NDArray[np.int64]) -> dict[str, Any]:
    """Return accuracy and NLL of each task, ECE with 20 bins over all queries, and mean confidence."""
    correct, top = prob.argmax(-1) == y, prob.max(-1)
    own = np.take_along_axis(prob, np.broadcast_to(y, prob.shape[:2])[..., None], -1)[..., 0]
    place = np.minimum((20 * top).astype(int), 19)
    gaps = [abs((top - correct)[place == b].sum()) for b in range(20)]
    nll = -np.log(np.maximum(own, 1e-15)).mean(1)
    return {"accuracy": correct.mean(1), "nll": nll, "ece": sum(gaps) / top.size, "confidence": float(top.mean())}


def rivals(X: NDArray[np.float64], y: NDArray[np.int64], *, task: Task, jobs: int) -> dict[str, dict[str, Any]]:
    """Return the scores of the rivals; `main` caches them in the folder of the sets."""
    episodes = draw(X, y, task.n_way, task.n_shot, task.n_tasks)
    labels, run, found = episodes[0].query_y, Parallel(n_jobs=jobs), {}
    for C in CS:
        prob = run(delayed(predict_short)(LogisticRegression(C=C, max_iter=1000), e) for e in episodes)
        found[f"LR C={C}"] = score(np.stack(prob), labels)
    cosines = np.stack([nearest_mean(e) for e in episodes])  # not probabilities
    found["nearest mean"] = {"accuracy": (cosines.argmax(-1) == labels).mean(1)}
    few = episodes[: task.gpc_tasks]
    if few:
        prob = run(delayed(predict)(GaussianProcessClassifier(), _unit(e)) for e in few)
        found["GPC"] = score(np.stack(prob), labels)
    return found


def measure(folder: Path, name: str, task: Task, jobs: int) -> dict[str, Any]:
    X, y = read(folder, name)
    episodes = draw(X, y, task.n_way, task.n_shot, task.n_tasks)
    ours: dict[str, Any] = {"mirrorshot": FewShotClassifier()}
    prior = prior_for(folder, name)
    if prior is not None:
        ours["mirrorshot, prior"] = FewShotClassifier(prior=prior)
    run, labels = Parallel(n_jobs=jobs), episodes[0].query_y
    found = {k: score(np.stack(run(delayed(predict)(m, e) for e in episodes)), labels) for k, m in ours.items()}
    found |= Memory(folder / "rivals", verbose=0).cache(rivals, ignore=["jobs"])(X, y, task=task, jobs=jobs)
    methods = {k: _summary(v) for k, v in found.items()}
    return {"set": name, "n_way": task.n_way, "n_shot": task.n_shot, "methods": methods} | {
        "paired": {k: _paired(found, k) for k in ours}
    }


def _unit(episode: Episode) -> Episode:
    return episode._replace(support_x=unit_length(episode.support_x), query_x=unit_length(episode.query_x))


def _summary(found: dict[str, Any]) -> dict[str, float]:
    return {name: float(np.mean(value)) for name, value in found.items()}


def _paired(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return paired differences to the best rival in accuracy and NLL, with 95 % intervals."""
    result: dict[str, Any] = {}
    for metric, sign in (("accuracy", 1), ("nll", -1)):
        rivals = {k: v[metric] for k, v in found.items() if not k.startswith("mirrorshot") and metric in v}
        gains = {k: sign * (found[name][metric][: len(v)] - v) for k, v in rivals.items()}
        worst = min(gains, key=lambda k: float(gains[k].mean()))
        ci = 1.96 * float(gains[worst].std()) / len(gains[worst]) ** 0.5
        result[metric] = {"best_rival": worst, "gain": float(gains[worst].mean()), "ci95": ci}
    return result


def row(result: dict[str, Any], name: str) -> list[str]:
    own, paired = result["methods"][name], result["paired"][name]
    accuracy, nll = paired["accuracy"], paired["nll"]
    return [
        result["set"] + (" (prior)" if name.endswith("prior") else ""),
        str(result["n_way"]),
        str(result["n_shot"]),
        f"{100 * own['accuracy']:.1f}",
        f"{100 * accuracy['gain']:+.1f} ± {100 * accuracy['ci95']:.1f} ({accuracy['best_rival']})",
        f"{own['nll']:.3f}",
        f"{nll['gain']:+.3f} ({nll['best_rival']})",
        f"{own['ece']:.3f}",
        f"{own['confidence'] - own['accuracy']:+.3f}",
    ]


def kept(names: list[str]) -> list[dict[str, Any]]:
    """Return the rows of other sets in the result file, each with its provenance."""
    path = RESULTS / "real_embeddings.json"
    if not path.exists():
        return []
    earlier = json.loads(path.read_text())
    source = {key: earlier[key] for key in ("commit", "command")}
    return [source | result for result in earlier["results"] if result["set"] not in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=600)
    parser.add_argument("--gpc-tasks", type=int, default=20)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write-prior", type=Path)
    args = parser.parse_args()
    if args.write_prior:
        domains = [read(args.folder, name) for name in BACKGROUNDS]
        prior = learn_prior(domains, encoder=ENCODER, learned_on="CUB and mini-ImageNet training classes, EMNIST")
        prior.save(args.write_prior)
        print(f"written: {args.write_prior}: {prior.centre}, {prior.temperature}")
        return
    names = args.sets or sorted(p.stem for p in args.folder.glob("*.npz") if not p.stem.startswith("background-"))
    results, rows = [], []
    for name in names:
        n_classes = len(np.unique(read(args.folder, name)[1]))
        for n_way in sorted({min(5, n_classes), min(15, n_classes)} if n_classes >= 15 else {min(5, n_classes)}):
            for n_shot in (1, 5):
                task = Task(n_way, n_shot, args.tasks, args.gpc_tasks)
                results.append(measure(args.folder, name, task, args.jobs))
                rows += [row(results[-1], method) for method in results[-1]["paired"]]
                print(" | ".join(rows[-1]), flush=True)
    head = [
        "set",
        "ways",
        "shots",
        "accuracy",
        "against the best rival",
        "NLL",
        "lower by",
        "ECE",
        "confidence - accuracy",
    ]
    print(table(head, rows))
    results = sorted(results + kept(names), key=lambda result: (result["set"], result["n_way"], result["n_shot"]))
    save("real_embeddings", {"n_tasks": args.tasks, "results": results}, seed=SEED)


if __name__ == "__main__":
    main()

"""Epistemic uncertainty, the part that more examples would remove, against what many more examples do remove.

Tasks of up to five classes are fitted with few examples of each class, and again with many. The table has means over
queries in nats: entropy and NLL of the predictions with few examples, the fall of the NLL with many, the epistemic part
of `uncertainty`, and that of the latents before their entropy is scaled to that of the predictions. The epistemic part
stands for any number of examples, so it should be at or somewhat above the fall.

FOLDER has sets of `benchmarks/real_embedding_sets.py`.

    python benchmarks/epistemic.py FOLDER [--tasks 40]
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from _common import sample_episodes, save, table
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.decisions import uncertainty

SEED, N_QUERIES, MOST = 7, 15, 55
COLUMNS = ("entropy", "nll", "fall of the nll", "epistemic", "epistemic of the latents")


def measure(X: NDArray[np.float64], y: NDArray[np.int64], n_shot: int, n_tasks: int) -> dict[str, float]:
    many = min(int(np.bincount(y).min()) - N_QUERIES, MOST)
    sizes = {"n_way": min(int(y.max()) + 1, 5), "n_shot": many, "n_query": N_QUERIES}
    found = []
    for task in sample_episodes(X, y, **sizes, n_episodes=n_tasks, seed=SEED):
        first = np.arange(len(task.support_y)) % many < n_shot
        few = FewShotClassifier().fit(task.support_x[first], task.support_y[first])
        rich = FewShotClassifier().fit(task.support_x, task.support_y)
        right = np.arange(len(task.query_y)), task.query_y
        nll, nll_of_many = (-model.predict_log_proba(task.query_x)[right].mean() for model in (few, rich))
        parts, latents = few.uncertainty(task.query_x), uncertainty(*few.predict_latent(task.query_x))
        found.append([parts.total.mean(), nll, nll - nll_of_many, parts.epistemic.mean(), latents.epistemic.mean()])
    return {"many": many, **dict(zip(COLUMNS, map(float, np.mean(found, 0)), strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tasks", type=int, default=40)
    args = parser.parse_args()
    results = []
    for path in sorted(args.folder.glob("[cpt]*-*.npz")):
        with np.load(path) as file:
            X, y = file["X"].astype(np.float64), np.unique(file["y"], return_inverse=True)[1]
        for n_shot in (1, 5):
            if np.bincount(y).min() >= N_QUERIES + 3 * n_shot:
                results.append({"set": path.stem, "n_shot": n_shot, **measure(X, y, n_shot, args.tasks)})
    rows = [[r["set"], f"{r['n_shot']} -> {r['many']}", *(f"{r[c]:.3f}" for c in COLUMNS)] for r in results]
    print(table(["set", "shots", *COLUMNS], rows))
    save("epistemic", {"n_tasks": args.tasks, "results": results}, seed=SEED)


if __name__ == "__main__":
    main()

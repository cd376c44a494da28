"""Whether the classifier's decisions are right, on scikit-learn's digits (5-way 5-shot where nothing else is said).

1. `uncertainty`: time of a million samples per query against that of the moments.
2. `novelty`: area under the ROC curve for the five other digits as unknowns, beside other scores.
3. `suspects`: how often one planted wrong label comes first.
4. `suggest`: accuracy with 20 labels, of which one per class is given and 15 are chosen (three times five, or all at
   once), beside labels chosen at random and by the largest epistemic uncertainty.
5. `predict_set`: empirical coverage and mean size of the sets, for several ways and shots.

    python benchmarks/decisions.py [--tasks 200] [--repeats 40]
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from _common import Episode, sample_episodes, save, table
from embedding_sets import digits
from mirrorshot import FewShotClassifier

SEED = 11
N_SAMPLES = 1_000_000
SETTINGS = ((2, 5), (5, 2), (5, 5), (5, 10), (10, 5))  # ways and shots of the sets


def mean_and_error(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "standard_error": float(np.std(values, ddof=1) / np.sqrt(len(values)))}


def draw(n_way: int, n_shot: int, n_tasks: int) -> list[Episode]:
    return sample_episodes(*digits(), n_way=n_way, n_shot=n_shot, n_query=20, n_episodes=n_tasks, seed=SEED)


def sampled_epistemic(mean: NDArray[np.float64], var: NDArray[np.float64], generator: torch.Generator) -> float:
    noise = torch.randn(N_SAMPLES, len(mean), generator=generator, dtype=torch.float64)
    log_p = torch.log_softmax(torch.tensor(mean) + torch.tensor(var).sqrt() * noise, -1)
    p = log_p.exp()
    return float(torch.special.entr(p.mean(0)).sum() + (p * log_p).sum(-1).mean())


def uncertainty_times(n_queries: int) -> dict[str, float]:
    episode = draw(5, 5, 1)[0]
    model = FewShotClassifier().fit(episode.support_x, episode.support_y)
    queries = episode.query_x[:: len(episode.query_x) // n_queries][:n_queries]
    generator = torch.Generator().manual_seed(SEED)
    ours, sampled, gap = [], [], 0.0
    for query in queries:
        before = time.perf_counter()
        exact = float(model.uncertainty(query[None]).epistemic[0])
        between = time.perf_counter()
        mean, var = model.predict_latent(query[None])
        value = sampled_epistemic(mean[0], var[0], generator)
        sampled.append(time.perf_counter() - between)
        ours.append(between - before)
        gap = max(gap, abs(exact - value))
    return {
        "moments_s": median(ours),
        "samples_s": median(sampled),
        "ratio": median(sampled) / median(ours),
        "largest_difference_nats": gap,
    }


def mahalanobis(episode: Episode, X: NDArray[np.float64], shrinkage: float = 0.5) -> NDArray[np.float64]:
    """Squared distance to the nearest class mean, with the shrunk covariance that the classes share."""
    labels = np.unique(episode.support_y)
    means = np.stack([episode.support_x[episode.support_y == label].mean(0) for label in labels])
    rest = episode.support_x - means[episode.support_y]
    shared = rest.T @ rest / (len(rest) - len(labels))
    shared = (1 - shrinkage) * shared + shrinkage * np.trace(shared) / len(shared) * np.eye(len(shared))
    away = X[:, None] - means
    return np.asarray(np.einsum("qcd,de,qce->qc", away, np.linalg.inv(shared), away).min(1))


def novelty_scores(
    model: FewShotClassifier, episode: Episode, X: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    mean, var = model.predict_latent(X)
    best = mean.argmax(1)[:, None]
    parts = model.uncertainty(X)
    x = torch.tensor(X)[None]
    similarity = model.kernel_(model._support.x, x, centre=model._centre)[0, 0].numpy()
    return {
        "`novelty`": model.novelty(X),
        "maximum probability": -model.predict_proba(X).max(1),
        "Mahalanobis distance": mahalanobis(episode, X),
        "entropy": parts.total,
        "epistemic uncertainty": parts.epistemic,
        "largest latent mean": -mean.max(1),
        "mean latent variance": var.mean(1),
        "latent variance of the best class": np.take_along_axis(var, best, 1)[:, 0],
        "largest mean in standard deviations": -(mean / np.sqrt(var)).max(1),
        "similarity to the nearest example": -similarity.max(0),
    }


def novelty_auroc(n_tasks: int) -> dict[str, dict[str, float]]:
    """Ten classes are drawn; the first five are the task, and the queries of the others are unknown."""
    found: dict[str, list[float]] = defaultdict(list)
    for all_ten in draw(10, 5, n_tasks):
        known = all_ten.support_y < 5
        episode = Episode(all_ten.support_x[known], all_ten.support_y[known], all_ten.query_x, all_ten.query_y)
        model = FewShotClassifier().fit(episode.support_x, episode.support_y)
        for name, score in novelty_scores(model, episode, episode.query_x).items():
            found[name].append(float(roc_auc_score(episode.query_y >= 5, score)))
    return {name: mean_and_error(values) for name, values in found.items()}


def suspects_first(n_tasks: int) -> dict[str, float]:
    rng = np.random.default_rng(SEED)
    hits = []
    for episode in draw(5, 5, n_tasks):
        wrong = episode.support_y.copy()
        planted = rng.integers(len(wrong))
        wrong[planted] = (wrong[planted] + rng.integers(1, 5)) % 5
        hits.append(float(FewShotClassifier().fit(episode.support_x, wrong).suspects().row[0] == planted))
    return mean_and_error(hits)


Chooser = Callable[[FewShotClassifier, NDArray[np.float64], int], NDArray[np.intp]]


def largest_epistemic(model: FewShotClassifier, pool: NDArray[np.float64], k: int) -> NDArray[np.intp]:
    return np.asarray((-model.uncertainty(pool).epistemic).argsort(kind="stable")[:k])


def grow(pool: Episode, start: NDArray[np.intp], choose: Chooser, n_labels: int, k: int) -> float:
    """Accuracy on the query when labels are asked for, `k` at a time."""
    rows = start
    while True:
        model = FewShotClassifier().fit(pool.support_x[rows], pool.support_y[rows])
        if len(rows) >= n_labels:
            return float(model.score(pool.query_x, pool.query_y))
        free = np.setdiff1d(np.arange(len(pool.support_y)), rows)
        rows = np.r_[rows, free[choose(model, pool.support_x[free], k)]]


def label_accuracies(n_repeats: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[float]] = defaultdict(list)
    rng = np.random.default_rng(SEED)
    pools = sample_episodes(*digits(), n_way=5, n_shot=40, n_query=60, n_episodes=n_repeats, seed=SEED)
    for pool in pools:
        start = np.arange(5) * 40  # examples of a class are in random order
        order = rng.permutation(np.setdiff1d(np.arange(200), start))
        for n_labels in (20, 30, 40):
            rows = np.r_[start, order[: n_labels - 5]]
            model = FewShotClassifier().fit(pool.support_x[rows], pool.support_y[rows])
            found[f"random, {n_labels}"].append(float(model.score(pool.query_x, pool.query_y)))
        for k in (5, 15):
            found[f"`suggest` by {k}, 20"].append(grow(pool, start, FewShotClassifier.suggest, 20, k))
            found[f"epistemic uncertainty by {k}, 20"].append(grow(pool, start, largest_epistemic, 20, k))
    return {name: mean_and_error(values) for name, values in found.items()}


def set_coverage(n_way: int, n_shot: int, n_tasks: int, coverage: float = 0.9) -> dict[str, float]:
    covered, size, empty = [], [], []
    for episode in draw(n_way, n_shot, n_tasks):
        sets = FewShotClassifier().fit(episode.support_x, episode.support_y).predict_set(episode.query_x, coverage)
        covered.append(float(sets[np.arange(len(sets)), episode.query_y].mean()))
        size.append(float(sets.sum(1).mean()))
        empty.append(float((~sets.any(1)).mean()))
    return {**mean_and_error(covered), "size": float(np.mean(size)), "empty": float(np.mean(empty))}


def show(header: list[str], found: dict[str, dict[str, float]]) -> None:
    rows = [[name, *(f"{value:.3f}" for value in values.values())] for name, values in found.items()]
    print(table(header, rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    times = uncertainty_times(10)
    print(
        f"uncertainty of a query: a million samples / moments = {times['ratio']:.0f}, "
        f"largest difference {times['largest_difference_nats']:.4f} nats",
        flush=True,
    )
    novel = novelty_auroc(args.tasks)
    show(["score", "AUROC", "standard error"], novel)
    first = suspects_first(args.tasks)
    print(f"planted wrong label first: {first['mean']:.3f} +- {first['standard_error']:.3f}", flush=True)
    labels = label_accuracies(args.repeats)
    show(["labels", "accuracy", "standard error"], labels)
    sets = {f"{way}-way {shot}-shot": set_coverage(way, shot, args.tasks) for way, shot in SETTINGS}
    show(["sets of 90 %", "coverage", "standard error", "size", "empty"], sets)
    result = {"uncertainty": times, "novelty": novel, "suspects": first, "suggest": labels, "sets": sets}
    save("decisions", {**result, "tasks": args.tasks, "repeats": args.repeats}, seed=SEED, started=started)


if __name__ == "__main__":
    main()

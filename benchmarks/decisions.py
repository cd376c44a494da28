"""Quality of the classifier's decisions on scikit-learn's digits (5-way 5-shot unless noted).

1. `uncertainty`: time of a million samples per query against that of the moments.
2. `novelty`: area under the ROC curve for the five other digits as unknowns, against other scores; shares of known and
   unknown digits above `novelty_threshold`.
3. `suspects`: how often one planted wrong label comes first.
4. `suggest`: accuracy with 20 labels, one given per class and 15 chosen (three times five, or all at once), against
   labels chosen by the largest epistemic uncertainty, and 20 to 40 labels chosen at random.
5. `predict_set`: empirical coverage and mean size of the sets for several ways and shots, against crepes on the same
   leave-one-out scores.
6. `reject`: error and share of accepted queries at a target of 0.05, against other rules; also on glyphs.
7. `add`: time of adding the last of 20 x 10 examples against that of a fit.

Times are processor times of one thread, which hold on a shared machine.

    python benchmarks/decisions.py [--tasks 200] [--repeats 50] [--set-tasks 2000]
"""

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from crepes import ConformalClassifier
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from _common import Episode, sample_episodes, save, table
from embedding_sets import digits, glyphs
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.decisions import Uncertainty, uncertainty
from mirrorshot.classifier.predict import loo_proba

SEED = 11
N_SAMPLES = 1_000_000
SETTINGS = ((2, 5), (5, 2), (5, 5), (5, 10), (10, 5))  # ways and shots for `predict_set`


def mean_and_error(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "standard_error": float(np.std(values, ddof=1) / np.sqrt(len(values)))}


def draw(n_way: int, n_shot: int, n_tasks: int) -> list[Episode]:
    return sample_episodes(*digits(), n_way=n_way, n_shot=n_shot, n_query=20, n_episodes=n_tasks, seed=SEED)


def of_latents(model: FewShotClassifier, X: NDArray[np.float64]) -> Uncertainty:
    return uncertainty(*model.predict_latent(X))


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
        before = time.process_time()
        exact = float(of_latents(model, query[None]).epistemic[0])
        between = time.process_time()
        mean, var = model.predict_latent(query[None])
        value = sampled_epistemic(mean[0], var[0], generator)
        sampled.append(time.process_time() - between)
        ours.append(between - before)
        gap = max(gap, abs(exact - value))
    return {
        "moments_s": median(ours),
        "samples_s": median(sampled),
        "ratio": median(sampled) / median(ours),
        "largest_difference_nats": gap,
    }


def mahalanobis(episode: Episode, X: NDArray[np.float64], shrinkage: float = 0.5) -> NDArray[np.float64]:
    """Return squared distances to the nearest class mean, with a shrunk covariance shared by the classes."""
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
    parts = of_latents(model, X)
    similarity = model.fitted_.cross(X[None])[0][0, 0]
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
    """Draw ten classes: the first five are the task, the queries of the others are unknown."""
    found: dict[str, list[float]] = defaultdict(list)
    for all_ten in draw(10, 5, n_tasks):
        known = all_ten.support_y < 5
        episode = Episode(all_ten.support_x[known], all_ten.support_y[known], all_ten.query_x, all_ten.query_y)
        model = FewShotClassifier().fit(episode.support_x, episode.support_y)
        for name, score in novelty_scores(model, episode, episode.query_x).items():
            found[name].append(float(roc_auc_score(episode.query_y >= 5, score)))
    return {name: mean_and_error(values) for name, values in found.items()}


def novelty_rates(n_tasks: int) -> dict[str, dict[str, float]]:
    """Return shares of known and unknown queries above `novelty_threshold(0.05)`; five of ten digits are known."""
    found = {}
    for n_shot in (1, 2, 5):
        rates = []
        for episode in draw(10, n_shot, n_tasks):
            known = episode.support_y < 5
            model = FewShotClassifier().fit(episode.support_x[known], episode.support_y[known])
            is_novel = model.novelty(episode.query_x) > model.novelty_threshold(0.05)
            rates.append([is_novel[episode.query_y < 5].mean(), is_novel[episode.query_y >= 5].mean()])
        found[f"{n_shot} shots"] = dict(zip(("known", "unknown"), map(float, np.mean(rates, 0)), strict=True))
    return found


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
    return np.asarray((-of_latents(model, pool).epistemic).argsort(kind="stable")[:k])


def grow(pool: Episode, start: NDArray[np.intp], choose: Chooser, n_labels: int, k: int) -> float:
    """Return the accuracy on the query after requests for labels, `k` at a time."""
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


def crepes_sets(model: FewShotClassifier, X: NDArray[np.float64], coverage: float) -> NDArray[np.bool_]:
    """Return sets of crepes (not smoothed) from leave-one-out probabilities of the examples."""
    y = model.fitted_.support.y
    own = loo_proba(model.fitted_, np.ones(len(y)))[np.arange(len(y)), y]
    classifier = ConformalClassifier().fit(1.0 - own)
    sets = classifier.predict_set(1.0 - model.predict_proba(X), confidence=coverage, smoothing=False)
    return np.asarray(sets, dtype=bool)


def set_coverage(n_way: int, n_shot: int, n_tasks: int, coverage: float = 0.9) -> dict[str, dict[str, float]]:
    covered, size, empty = (defaultdict(list) for _ in range(3))
    for episode in draw(n_way, n_shot, n_tasks):
        model = FewShotClassifier().fit(episode.support_x, episode.support_y)
        ways = {
            "`predict_set`": model.predict_set(episode.query_x, coverage),
            "`guarantee=True`": model.predict_set(episode.query_x, coverage, guarantee=True),
            "crepes": crepes_sets(model, episode.query_x, coverage),
        }
        for name, sets in ways.items():
            covered[name].append(float(sets[np.arange(len(sets)), episode.query_y].mean()))
            size[name].append(float(sets.sum(1).mean()))
            empty[name].append(float((~sets.any(1)).mean()))
    return {
        f"{n_way}-way {n_shot}-shot, {name}": {
            **mean_and_error(covered[name]),
            "size": float(np.mean(size[name])),
            "empty": float(np.mean(empty[name])),
        }
        for name in covered
    }


def lowest_passing(top: NDArray[np.float64], risk: NDArray[np.float64], target_risk: float) -> float:
    """Return the lowest of descending probabilities whose risk is within the target; infinity if there is none."""
    passing = top[risk <= target_risk]
    return float(passing[-1]) if len(passing) else np.inf


def other_thresholds(model: FewShotClassifier, target_risk: float) -> dict[str, float]:
    """Return thresholds of other rules: counted errors, alone and with the probabilities as ten more examples."""
    y = model.fitted_.support.y
    prob = loo_proba(model.fitted_, np.ones(len(y)))
    order = (-prob.max(1)).argsort(kind="stable")
    top, wrong = prob.max(1)[order], (prob.argmax(1) != y)[order]
    k = np.arange(1, len(y) + 1)
    both = (wrong.cumsum() + 10 * (1 - top).cumsum() / k) / (k + 10)
    return {
        "(e + 1) / (k + 1)": lowest_passing(top, (wrong.cumsum() + 1) / (k + 1), target_risk),
        "(e + 10 r) / (k + 10)": min(lowest_passing(top, both, target_risk), 1 - target_risk),
    }


def rejection(episodes: list[Episode], target_risk: float = 0.05) -> dict[str, dict[str, float]]:
    """Return the error of all accepted queries, and the share of accepted ones."""
    wrong: list[float] = []
    accepted, errors = defaultdict(list), defaultdict(list)
    for episode in episodes:
        model = FewShotClassifier().fit(episode.support_x, episode.support_y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # examples that contradict the probabilities
            thresholds = {"`reject`": model.reject(episode.query_x, target_risk).threshold}
        top = model.predict_proba(episode.query_x).max(1)
        is_wrong = model.predict(episode.query_x) != episode.query_y
        wrong.append(float(is_wrong.mean()))
        for name, threshold in (thresholds | other_thresholds(model, target_risk)).items():
            accepted[name].append(float((top >= threshold).mean()))
            errors[name].append(float((is_wrong & (top >= threshold)).mean()))
    return {
        name: {
            "error of all": float(np.mean(wrong)),
            "error of accepted": float(np.sum(errors[name]) / max(np.sum(accepted[name]), 1e-9)),
            "accepted": float(np.mean(accepted[name])),
            "tasks where all are rejected": float(np.mean(np.array(accepted[name]) == 0)),
        }
        for name in accepted
    }


def rejections(n_tasks: int) -> dict[str, dict[str, float]]:
    found = {}
    for n_way, n_shot in ((5, 2), (5, 5), (5, 10), (10, 5)):
        for rule, values in rejection(draw(n_way, n_shot, n_tasks)).items():
            found[f"digits, {n_way}-way {n_shot}-shot, {rule}"] = values
    episodes = sample_episodes(*glyphs(), n_way=5, n_shot=5, n_query=20, n_episodes=n_tasks, seed=SEED)
    for rule, values in rejection(episodes).items():
        found[f"glyphs, 5-way 5-shot, {rule}"] = values
    return found


def add_times(n_features: int, noise: float, repeats: int = 5) -> dict[str, float]:
    """Return median times for 20 classes of 10 examples: a fit of all, and adding the last one."""
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(20, n_features))
    labels = rng.permutation(np.repeat(np.arange(20), 10))
    X = centres[labels] + noise * rng.normal(size=(200, n_features))
    queries = centres + noise * rng.normal(size=(20, n_features))
    fit, add, gap = [], [], 0.0
    for _ in range(repeats):
        edited = FewShotClassifier().fit(X[:-1], labels[:-1])
        before = time.process_time()
        edited.add(X[-1], labels[-1])
        between = time.process_time()
        fresh = FewShotClassifier().fit(X, labels)
        fit.append(time.process_time() - between)
        add.append(between - before)
        gap = max(gap, float(np.abs(edited.predict_proba(queries) - fresh.predict_proba(queries)).max()))
    return {"fit_s": median(fit), "add_s": median(add), "ratio": median(fit) / median(add), "largest_difference": gap}


def show(header: list[str], found: dict[str, dict[str, float]]) -> None:
    rows = [[name, *(f"{value:.3f}" for value in values.values())] for name, values in found.items()]
    print(table(header, rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--set-tasks", type=int, default=2000, help="tasks of 5-way 5-shot for the sets")
    args = parser.parse_args()
    torch.set_num_threads(1)
    times = uncertainty_times(10)
    print(
        f"uncertainty of a query: a million samples / moments = {times['ratio']:.0f}, "
        f"largest difference {times['largest_difference_nats']:.4f} nats",
        flush=True,
    )
    novel = novelty_auroc(args.tasks)
    show(["score", "AUROC", "standard error"], novel)
    rates = novelty_rates(args.tasks)
    show(["above the threshold of 0.05", "known", "unknown"], rates)
    first = suspects_first(args.tasks)
    print(f"planted wrong label first: {first['mean']:.3f} +- {first['standard_error']:.3f}", flush=True)
    labels = label_accuracies(args.repeats)
    show(["labels", "accuracy", "standard error"], labels)
    sets: dict[str, dict[str, float]] = {}
    for way, shot in SETTINGS:
        sets |= set_coverage(way, shot, args.set_tasks if (way, shot) == (5, 5) else args.tasks)
    show(["sets of 90 %", "coverage", "standard error", "size", "empty"], sets)
    rejected = rejections(args.tasks)
    show(["rejection at 0.05", *next(iter(rejected.values()))], rejected)
    added = {f"{n} features, noise {noise:g}": add_times(n, noise) for n in (64, 512) for noise in (1.0, 3.0)}
    for name, values in added.items():
        print(
            f"add, {name}: fit / add = {values['ratio']:.1f}, difference {values['largest_difference']:.1e}", flush=True
        )
    result = {
        "uncertainty": times,
        "novelty": novel,
        "novelty_threshold": rates,
        "suspects": first,
        "suggest": labels,
        "sets": sets,
        "reject": rejected,
        "add": added,
    }
    counts = {"tasks": args.tasks, "repeats": args.repeats, "set_tasks": args.set_tasks}
    save("decisions", {**result, **counts}, seed=SEED)


if __name__ == "__main__":
    main()

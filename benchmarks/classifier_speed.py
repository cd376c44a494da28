"""Speed of the classifier and of the batched core, as ratios measured in one run on one CPU thread.

1. One 5-way 5-shot fit and 75 predictions against scikit-learn's GaussianProcessClassifier with its optimiser, on the
   same digits episodes (alternating, median of the ratios' parts).
2. The same fits with two threads of torch, and with the classifier keeping both or computing with one.
3. 1,000 tasks in one call of `mirror_descent` against the same tasks one by one.

    python benchmarks/classifier_speed.py [--episodes 20] [--tasks 1000]
"""

import argparse
import resource
import time
import warnings
from statistics import median
from unittest.mock import patch

import torch
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF

from _common import sample_episodes, save
from embedding_sets import digits
from mirrorshot import FewShotClassifier
from mirrorshot.classifier import fitted
from mirrorshot.gp import mirror_descent

SEED = 7


def classifier_times(n_episodes: int) -> dict[str, float]:
    X, y = digits()
    episodes = sample_episodes(X, y, n_way=5, n_shot=5, n_query=15, n_episodes=n_episodes + 1, seed=SEED)
    models = {"mirrorshot": FewShotClassifier(), "gpc": GaussianProcessClassifier(1.0 * RBF(1.0), random_state=0)}
    times: dict[str, list[float]] = {name: [] for name in models}
    for episode in episodes:
        for name, model in models.items():
            before = time.perf_counter()
            model.fit(episode.support_x, episode.support_y).predict_proba(episode.query_x)
            times[name].append(time.perf_counter() - before)
    return {name: median(seconds[1:]) for name, seconds in times.items()}  # the first one warms up


def thread_times(n_episodes: int) -> dict[str, float]:
    """Median time of the classifier with two threads, if it uses both of them and if it keeps to one."""
    torch.set_num_threads(2)
    with patch.object(fitted, "_SMALL", 0):
        both = classifier_times(n_episodes)["mirrorshot"]
    one = classifier_times(n_episodes)["mirrorshot"]
    torch.set_num_threads(1)
    return {"both": both, "one": one, "ratio": both / one}


def batch_times(n_tasks: int, n_shot: int, dtype: torch.dtype) -> dict[str, float]:
    generator = torch.Generator().manual_seed(SEED)
    centre = torch.randn(n_tasks, 5, 1, 64, generator=generator)
    x = centre + torch.randn(n_tasks, 5, n_shot, 64, generator=generator)
    x = torch.nn.functional.normalize(x.reshape(n_tasks, -1, 64), dim=-1).to(dtype)
    K, y = 10.0 * (x @ x.mT)[:, None], torch.arange(5).repeat_interleave(n_shot).expand(n_tasks, -1)
    options = {"n_way": 5, "tol": 1e-4}
    mirror_descent(K[:2], y[:2], **options)
    before = time.perf_counter()
    mirror_descent(K, y, **options)
    together = time.perf_counter() - before
    sample = range(0, n_tasks, max(1, n_tasks // 100))
    before = time.perf_counter()
    for i in sample:
        mirror_descent(K[i : i + 1], y[i : i + 1], **options)
    one_by_one = (time.perf_counter() - before) / len(sample) * n_tasks
    return {"together": together, "one by one": one_by_one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # the optimiser of GaussianProcessClassifier complains
    started = time.perf_counter()
    times = classifier_times(args.episodes)
    ratio = times["gpc"] / times["mirrorshot"]
    print(
        f"fit and 75 predictions, 5-way 5-shot: GaussianProcessClassifier / FewShotClassifier = {ratio:.1f} "
        f"({1e3 * times['gpc']:.0f} ms / {1e3 * times['mirrorshot']:.0f} ms, median of {args.episodes})"
    )
    threads = thread_times(args.episodes)
    print(f"the same with two threads of torch: using both / keeping to one = {threads['ratio']:.1f}")
    result: dict[str, object] = {"classifier": {**times, "ratio": ratio}, "threads": threads}
    for n_shot in (1, 5):
        for dtype in (torch.float64, torch.float32):
            found = batch_times(args.tasks, n_shot, dtype)
            batch = found["one by one"] / found["together"]
            print(f"{args.tasks} tasks, 5-way {n_shot}-shot, {dtype}: one by one / together = {batch:.1f}", flush=True)
            result[f"batch, {n_shot}-shot, {dtype}"] = {**found, "ratio": batch}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MB")
    save("classifier_speed", {**result, "peak_memory_mb": peak}, seed=SEED, started=started)


if __name__ == "__main__":
    main()

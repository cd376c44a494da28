"""Speed of the classifier: against scikit-learn, and for many classes and examples.

Times are medians on one thread, taken in turns. Embeddings are random, non-negative and of unit norm, with 1,280
features for the small tasks and 256 for the large ones.

1. Fit and 75 (5-way) or 225 (15-way) predictions against `LogisticRegression(C=1000)` and, at 5-way 5-shot,
   `GaussianProcessClassifier` with its optimiser.
2. One fit of many classes and of many examples: seconds and peak memory.
3. One `add` at 20 classes x 10 examples against a fit of all of them, alone and with 75 predictions, and against its
   lower limit: the time with known sites (covariance, temperature, and one conditioning that verifies the sites).
4. 1,000 tasks in one call of `mirror_descent` against the same tasks one by one, and against its arithmetic alone:
   expectations and factorisations.
5. Import of `FewShotClassifier` against that of `sklearn.linear_model`, each in a new process.

    OMP_NUM_THREADS=1 python benchmarks/classifier_speed.py [--repeats 15] [--parts small large add batch import]
"""

import argparse
import copy
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LogisticRegression

from _common import save
from mirrorshot import FewShotClassifier
from mirrorshot.classifier.selection import Support
from mirrorshot.classifier.solve import Solved, task_of
from mirrorshot.gp.visits import visit
from mirrorshot.gp.weight_space import condition_on, weight_posterior

SEED = 7
SMALL = ((5, 1, 1.0), (5, 5, 1.0), (15, 1, 1.0), (15, 5, 1.5))  # classes, shots, goal in times LogisticRegression
LARGE = ((20, 10, 0.1), (50, 10, 1.0), (100, 10, 4.0), (200, 5, 6.0), (10, 500, 20.0))  # goal: seconds

Task = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]


def draw(n_way: int, n_shot: int, n_features: int, seed: int, n_query: int = 15) -> Task:
    rng = np.random.default_rng((SEED, seed))
    centres = rng.normal(size=(n_way, 1, n_features))
    parts = []
    for n in (n_shot, n_query):
        x = np.abs(0.3 * centres + 0.5 * rng.normal(size=(n_way, n, n_features))).reshape(-1, n_features)
        parts.append(x / np.linalg.norm(x, axis=1, keepdims=True))
    return parts[0], np.repeat(np.arange(n_way), n_shot), parts[1]


def seconds(work: Callable[[], Any]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def in_turns(works: dict[str, Callable[[int], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each work, taken in turns; the first turn is the warm-up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(repeats + 1):
        for name, work in works.items():
            times[name].append(seconds(lambda: work(i)))  # noqa: B023
    return {name: median(found[1:]) for name, found in times.items()}


def small(repeats: int) -> dict[str, Any]:
    result = {}
    for n_way, n_shot, goal in SMALL:
        tasks = [draw(n_way, n_shot, 1280, i) for i in range(repeats + 1)]

        def fit_and_predict(model: Any, task: Task) -> None:
            model.fit(task[0], task[1]).predict_proba(task[2])

        works: dict[str, Callable[[int], Any]] = {
            "mirrorshot": lambda i: fit_and_predict(FewShotClassifier(), tasks[i]),  # noqa: B023
            "logistic regression": lambda i: fit_and_predict(LogisticRegression(C=1000), tasks[i]),  # noqa: B023
        }
        if (n_way, n_shot) == (5, 5):
            works["gpc"] = lambda i: fit_and_predict(
                GaussianProcessClassifier(1.0 * RBF(1.0), random_state=0),
                tasks[i],  # noqa: B023
            )
        times = in_turns(works, repeats)
        ratio = times["mirrorshot"] / times["logistic regression"]
        text = ", ".join(f"{name} {1e3 * value:.2f} ms" for name, value in times.items())
        print(f"{n_way}-way {n_shot}-shot: {text}; ratio {ratio:.2f} (goal {goal})", flush=True)
        if "gpc" in times:
            print(
                f"  GaussianProcessClassifier / FewShotClassifier = {times['gpc'] / times['mirrorshot']:.1f} (goal 10)"
            )
        result[f"{n_way}-way {n_shot}-shot"] = {**times, "ratio": ratio, "goal": goal}
    return result


_ONE_FIT = """
import resource, sys, time
sys.path.insert(0, {folder!r})
from classifier_speed import draw
from mirrorshot import FewShotClassifier
FewShotClassifier().fit(*draw(3, 2, 8, 0)[:2])
x, y, _ = draw({n_way}, {n_shot}, 256, 0, 1)
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = time.perf_counter()
model = FewShotClassifier().fit(x, y)
took = time.perf_counter() - before
print(took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024, model.gap_, model.start_)
"""


def large(repeats: int) -> dict[str, Any]:
    """Measure fits of many classes or examples, each in its own process to measure its memory."""
    result = {}
    for n_way, n_shot, goal in LARGE:
        code = _ONE_FIT.format(folder=os.path.dirname(os.path.abspath(__file__)), n_way=n_way, n_shot=n_shot)
        runs = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)
        ]
        took = median(float(run.stdout.split()[0]) for run in runs)
        memory, gap = (float(value) for value in runs[0].stdout.split()[1:3])
        print(f"{n_way} classes x {n_shot}: {took:.3f} s (goal {goal}), {memory:.0f} MiB, gap {gap:.1e}", flush=True)
        result[f"{n_way} x {n_shot}"] = {"seconds": took, "goal": goal, "mib": memory, "gap": gap}
    return result


def add(repeats: int) -> dict[str, float]:
    """Measure one `add` against a fit, alone and with 75 predictions afterwards."""
    x, y, queries = draw(20, 10, 256, 0)
    model = FewShotClassifier().fit(x[:-1], y[:-1])
    edited = [[copy.copy(model) for _ in range(repeats + 1)] for _ in range(2)]
    times = in_turns(
        {
            "add": lambda i: edited[0][i].add(x[-1], int(y[-1])),
            "fit": lambda i: FewShotClassifier().fit(x, y),
            "add and predictions": lambda i: edited[1][i].add(x[-1], int(y[-1])).predict_proba(queries[:75]),
            "fit and predictions": lambda i: FewShotClassifier().fit(x, y).predict_proba(queries[:75]),
        },
        repeats,
    )
    ratio = times["fit"] / times["add"]
    print(f"20 x 10: fit {1e3 * times['fit']:.1f} ms, add {1e3 * times['add']:.1f} ms, ratio {ratio:.1f} (goal 5)")
    with_predictions = times["fit and predictions"] / times["add and predictions"]
    print(f"  and 75 predictions: {1e3 * times['add and predictions']:.1f} ms, ratio {with_predictions:.1f}")
    least = median(least_of_add(model, x, y) for _ in range(repeats))
    print(f"  with known sites: {1e3 * least:.1f} ms, so a fit is at most {times['fit'] / least:.1f} times as long")
    return {**times, "ratio": ratio, "ratio_with_predictions": with_predictions, "known sites": least}


def least_of_add(model: FewShotClassifier, x: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Return the seconds of an edit with known sites, including their verification."""
    solved = FewShotClassifier().fit(x, y).fitted_
    sites = solved.posterior.sites

    def known(support: Support, K: NDArray[np.float64], start: object) -> Solved:
        task = task_of(support, K[0, 0])
        conditioned = condition_on(task.features.phi, np.ascontiguousarray(sites.precision[0].T))
        found = visit(task, conditioned, conditioned.solve(sites.shift[0] @ task.features.phi), sites.precision[0].T, 1)
        assert found.found.is_proven
        posterior = weight_posterior(task.features, found.found.sites, conditioned)
        return Solved(posterior, found.found.elbo, 1, found.found.gap, "previous")

    with patch("mirrorshot.classifier.fit.solve", known):
        return seconds(lambda: copy.copy(model).add(x[-1], int(y[-1])))


def batch(repeats: int) -> dict[str, float]:
    import torch

    from mirrorshot.gp import mirror_descent
    from mirrorshot.gp.linalg import cholesky_of_shifted
    from mirrorshot.softmax import softmax_moments

    torch.set_num_threads(1)
    n_tasks = 1000
    x = torch.tensor(np.stack([draw(5, 5, 64, i)[0] for i in range(n_tasks)]))
    x = torch.nn.functional.normalize(x - x.mean(1, keepdim=True), dim=-1)
    K, y = 10.0 * (x @ x.mT)[:, None], torch.arange(5).repeat_interleave(5).expand(n_tasks, -1)
    options: dict[str, Any] = {"n_way": 5, "tol": 1e-4}
    mirror_descent(K[:2], y[:2], **options)
    before = time.perf_counter()
    posterior, info = mirror_descent(K, y, **options)
    together = time.perf_counter() - before
    sample = range(0, n_tasks, 10)
    one_by_one = sum(seconds(lambda i=i: mirror_descent(K[i : i + 1], y[i : i + 1], **options)) for i in sample)  # type: ignore[misc]
    one_by_one *= n_tasks / len(sample)
    # only the arithmetic: expectations and factorisations of all evaluations
    mean, var = posterior.mean.mT.contiguous(), posterior.var.mT.contiguous()
    expectations = median(seconds(lambda: softmax_moments(mean, var, max_std=10.0**0.5)) for _ in range(5))
    root = posterior.sites.precision.sqrt()
    factors = median(seconds(lambda: cholesky_of_shifted(K, root)) for _ in range(5))
    limit = float(info.n_evaluations.double().mean()) * (expectations + factors)
    ratio = one_by_one / together
    print(f"1,000 tasks: one by one / together = {ratio:.1f} (goal 5); together / arithmetic = {together / limit:.2f}")
    return {"together": together, "one by one": one_by_one, "arithmetic": limit, "ratio": ratio}


def imports(repeats: int) -> dict[str, float]:
    def run(code: str) -> Callable[[int], Any]:
        return lambda _: subprocess.run([sys.executable, "-c", code], check=True)

    works = {
        "python": run(""),
        "mirrorshot": run("from mirrorshot import FewShotClassifier"),
        "sklearn.linear_model": run("import sklearn.linear_model"),
    }
    times = in_turns(works, min(repeats, 7))
    ratio = (times["mirrorshot"] - times["python"]) / (times["sklearn.linear_model"] - times["python"])
    print(f"import of FewShotClassifier / import of sklearn.linear_model = {ratio:.2f} (goal 1.2)")
    return {**times, "ratio": ratio}


PARTS = {"small": small, "large": large, "add": add, "batch": batch, "import": imports}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # convergence warnings of scikit-learn
    result = {name: PARTS[name](args.repeats) for name in args.parts}
    if len(args.parts) == len(PARTS):
        save("classifier_speed", result, seed=SEED)


if __name__ == "__main__":
    main()

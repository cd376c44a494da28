"""Agreement of the native core, NumPy and torch: probabilities and bounds of random tasks, including degenerate ones.

Tasks have 2 to 300 classes, every kernel, output scales from 0.1 to 300, and embeddings scaled by 1e-6 to 1e6, with
duplicates under other labels and zero vectors. Each task is fitted once. Three computations start from the same sites:
the classifier's own in weight space with the native core, NumPy in function space with the reference expectations, and
the same with torch. Probabilities of queries are compared in float64 from the sites and in float32 from the latents,
bounds in nats per example.

    python benchmarks/agreement.py [--tasks 2000] [--seed 0]
"""

import argparse
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from mirrorshot import FewShotClassifier
from mirrorshot.gp.gaussian import GaussianSites, condition, predict_latent
from mirrorshot.gp.objective import evaluate, make_problem
from mirrorshot.softmax import native, softmax_moments

KERNELS = ("cosine", "rbf", "matern", "linear", "polynomial")
PROMISES = {"float64": 1e-8, "float32": 1e-4, "bound": 1e-7}


class Task(NamedTuple):
    """Labelled examples, queries, and parameters of the classifier."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    queries: NDArray[np.float64]
    parameters: dict[str, Any]


def draw(number: int, seed: int) -> Task:
    rng = np.random.default_rng((seed, number))
    n_way = int(rng.choice([2, 3, 5, 20, 300], p=[0.35, 0.25, 0.25, 0.14, 0.01]))
    n_shot, n_features = 1 if n_way == 300 else int(rng.integers(1, 6)), int(rng.integers(1, 40))
    size, y = 10.0 ** rng.uniform(-6, 6), np.repeat(np.arange(n_way), n_shot)
    centres = rng.normal(size=(n_way, n_features))
    x = size * (centres[y] + rng.choice([0.1, 1.0]) * rng.normal(size=(len(y), n_features)))
    if rng.random() < 0.3:
        x[rng.integers(len(x), size=2)] = x[rng.integers(len(x), size=2)]
    if rng.random() < 0.2:
        x[rng.integers(len(x))] = 0.0
    parameters: dict[str, Any] = {"kernel": str(rng.choice(KERNELS)), "lengthscale": size}
    if rng.random() < 0.7:
        parameters["outputscale"] = 10.0 ** rng.uniform(-1, 2.5)
    queries = size * (centres[rng.integers(n_way, size=8)] + rng.normal(size=(8, n_features)))
    return Task(x, y, np.concatenate([queries, x[:2], np.zeros((1, n_features))]), parameters)


@contextlib.contextmanager
def reference() -> Iterator[None]:
    """Compute expectations without the native core."""
    with mock.patch.object(native, "library", return_value=None):
        yield


def function_space(few: FewShotClassifier, queries: Any, as_array: Any) -> tuple[NDArray[np.float64], float]:
    """Return untempered probabilities of queries, and the bound, from the sites of a classifier."""
    fitted = few.fitted_
    support, centre = fitted.support, fitted.centre
    K = as_array(fitted.kernel(support.x, centre=centre))
    sites = GaussianSites(*map(as_array, fitted.posterior.sites))
    cross, prior_var = map(as_array, fitted.cross(queries[None]))
    mean, var = predict_latent(condition(K, sites), cross, prior_var)
    prob = softmax_moments(mean[0].mT, var[0].mT).prob
    problem = make_problem(
        K, as_array(support.y[None]), support.n_way, as_array(support.weight[None]), None, None, False
    )
    return np.asarray(prob), float(evaluate(problem, sites).elbo[0])


def compare(task: Task) -> dict[str, float]:
    """Return the largest differences from the native core."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        few = FewShotClassifier(temperature=1.0, **task.parameters).fit(task.x, task.y)
        mean, var = few.predict_latent(task.queries)
        prob = softmax_moments(mean, var).prob
        found = {}
        for name, as_array in (("numpy", np.asarray), ("torch", torch.as_tensor)):
            with reference():
                theirs, bound = function_space(few, task.queries, as_array)
                narrow = softmax_moments(*(as_array(part.astype(np.float32)) for part in (mean, var))).prob
            found[f"{name} float64"] = float(np.abs(theirs - prob).max())
            found[f"{name} float32"] = float(np.abs(np.asarray(narrow, np.float64) - prob).max())
            found[f"{name} bound"] = abs(bound - few.elbo_) / len(task.y)
        single = softmax_moments(mean.astype(np.float32), var.astype(np.float32)).prob
        found["native float32"] = float(np.abs(single.astype(np.float64) - prob).max())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if native.library() is None:
        raise SystemExit("Expected a compiled core, but found none. Run `python hatch_build.py`.")
    torch.set_num_threads(1)
    found = []
    for number in range(options.tasks):
        found.append(compare(draw(number, options.seed)))
        for name, value in found[-1].items():
            if not value <= PROMISES[name.split()[1]]:
                print(f"task {number}: {name} {value:.1e}", flush=True)
    figures = {
        name: {
            "promise": PROMISES[name.split()[1]],
            "largest": max(task[name] for task in found),
            "beyond": sum(not task[name] <= PROMISES[name.split()[1]] for task in found),
        }
        for name in found[0]
    }
    for name, figure in figures.items():
        print(f"{name:16s} {figure}")
    from _common import save

    save("agreement", {"n_tasks": options.tasks, "differences": figures}, seed=options.seed)


if __name__ == "__main__":
    main()

"""Random edits of `FewShotClassifier`, each compared with a fit of the same examples.

Tasks have 2 to 4 classes and 1 to 6 features, every kernel, output scales and sizes of embeddings from 1e-3 to 1e3,
weights, prior scores, and mislabelled near-copies of examples. Each task is edited ten times in a row (`add`, `remove`,
`partial_fit`, a new label). After each edit, bound, temperature and probabilities are compared with those of a fit. A
few tasks choose their output scale themselves ("loo"), which by design solves from the start.

    python benchmarks/edits.py [--edits 20000] [--seed 0] [--processes 2] [--stop-after SECONDS]
"""

import argparse
import multiprocessing
import time
import warnings
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from mirrorshot import FewShotClassifier
from mirrorshot.gp.kernels import RBF, Linear

EDITS_PER_TASK = 10
TOLERANCE = 1e-6
KERNELS = ("cosine", "rbf", "matern", "linear", "polynomial", "own")


class Examples(NamedTuple):
    """Examples in the order of the classifier; `prior` is (n, n_classes) or None."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    weight: NDArray[np.float64]
    prior: NDArray[np.float64] | None

    def take(self, rows: Any) -> "Examples":
        """Return some of the examples."""
        return Examples(*(None if part is None else part[rows] for part in self))

    def join(self, more: "Examples") -> "Examples":
        """Return these examples, then others."""
        return Examples(*(None if a is None else np.concatenate([a, b]) for a, b in zip(self, more, strict=True)))


class Edit(NamedTuple):
    """One edit: its kind, and the largest differences from a fit."""

    task: int
    kind: str
    kernel: str
    start: str
    proba: float
    elbo: float
    temperature: float
    gap: float
    fit_gap: float


class Task:
    """A classifier with random edits, and its examples."""

    def __init__(self, number: int, seed: int) -> None:
        self.rng = rng = np.random.default_rng((seed, number))
        self.number, self.n_way, self.n_features = number, int(rng.integers(2, 5)), int(rng.integers(1, 7))
        self.size = 10.0 ** rng.uniform(-3, 3)
        self.has_prior, self.has_weights = rng.random() < 0.25, rng.random() < 0.4
        self.is_declared = rng.random() < 0.25
        self.centres = rng.normal(size=(self.n_way + 1, self.n_features))
        self.noise = float(rng.choice([0.1, 0.5, 1.0]))
        self.kernel = str(rng.choice(KERNELS))
        self.parameters = self._parameters()
        labels = np.concatenate([np.arange(self.n_way), rng.integers(0, self.n_way, size=rng.integers(1, 8))])
        self.examples = self.draw(labels)
        self.queries = self.draw(rng.integers(0, self.n_way, size=12))
        self.model = FewShotClassifier(**self.parameters)
        given = self.examples
        if self.is_declared:
            self.model.partial_fit(given.x, given.y, np.arange(self.n_way), given.weight, given.prior)
        else:
            self.model.fit(given.x, given.y, given.weight, given.prior)

    def _parameters(self) -> dict[str, Any]:
        rng = self.rng
        scale = 10.0 ** rng.uniform(-3, 3) if rng.random() < 0.5 else float(rng.choice([3.0, 10.0, 30.0, 100.0]))
        parameters: dict[str, Any] = {"outputscale": scale, "centre": str(rng.choice(["auto", "mean", "none"]))}
        if rng.random() < 0.3:
            parameters["temperature"] = float(rng.choice([0.3, 1.0]))
        if self.kernel == "own":
            length = self.size * float(rng.choice([0.3, 1.0, 3.0]))
            own = RBF(lengthscale=length, outputscale=scale) + Linear(outputscale=0.1 * scale / self.size**2)
            return {**parameters, "kernel": own}
        if rng.random() < 0.04:
            return {**parameters, "kernel": self.kernel, "outputscale": "loo"}
        return {**parameters, "kernel": self.kernel, "lengthscale": self.size * float(rng.choice([0.3, 1.0, 3.0]))}

    def draw(self, labels: NDArray[np.int64]) -> Examples:
        """Draw examples of these classes."""
        rng, n = self.rng, len(labels)
        x = self.size * (self.centres[labels] + self.noise * rng.normal(size=(n, self.n_features)))
        weight = rng.choice([0.5, 1.0, 2.0, 7.0], size=n) if self.has_weights else np.ones(n)
        prior = 2.0 * rng.normal(size=(n, self.n_way)) if self.has_prior else None
        return Examples(x, labels, weight, prior)

    def more(self) -> Examples:
        """Draw examples to add: ordinary ones, surprising labels, or near-copies with another label."""
        rng, kind = self.rng, self.rng.choice(["ordinary", "surprising", "copy"])
        known = self.model.classes_
        new = self.draw(rng.choice(known[known < self.n_way], size=rng.integers(1, 4)))
        if kind == "surprising":
            return new._replace(y=rng.choice(known, size=len(new.y)))
        if kind == "copy":
            source = self.examples.take(rng.integers(0, len(self.examples.y), size=len(new.y)))
            near = source.x + self.size * 10.0 ** rng.uniform(-9, -1) * rng.normal(size=new.x.shape)
            return new._replace(x=near, y=rng.choice(known, size=len(new.y)))
        return new

    def edit(self) -> str:
        """Edit the classifier once."""
        choice = self.rng.random()
        spare = self.spare()
        if choice < 0.35 and len(spare):
            return self.remove(self.rng.permutation(spare)[: self.rng.integers(1, 3)])
        if choice < 0.55 and len(spare):
            return self.relabel(int(self.rng.choice(spare)))
        if choice < 0.6 and not self.has_prior and not self.is_declared and self.n_way not in self.model.classes_:
            new = self.draw(np.array([self.n_way]))
            self.model.add(new.x[0], int(new.y[0]), new.weight)
            self.examples = self.examples.join(new)
            return "new class"
        if choice < 0.65 and len(self.model.classes_) > 2 and not self.is_declared and not self.has_prior:
            return self.remove(np.flatnonzero(self.examples.y == self.model.classes_[-1]))
        new = self.more()
        learn = self.model.partial_fit if self.is_declared else self.model.add
        learn(new.x, new.y, sample_weight=new.weight, prior_scores=new.prior)
        self.examples = self.examples.join(new)
        return "partial_fit" if self.is_declared else "add"

    def spare(self) -> NDArray[np.intp]:
        """Return at most one example of each class with two or more."""
        rows = [np.flatnonzero(self.examples.y == label) for label in np.unique(self.examples.y)]
        return np.array([self.rng.choice(row) for row in rows if len(row) > 1], dtype=np.intp)

    def remove(self, rows: NDArray[np.intp]) -> str:
        """Remove examples."""
        self.model.remove(rows, drop_class=True)
        self.examples = self.examples.take(np.delete(np.arange(len(self.examples.y)), rows))
        return "remove"

    def relabel(self, row: int) -> str:
        """Change the label of an example: add it with the new label, then remove the old one."""
        others = np.setdiff1d(self.model.classes_, self.examples.y[row])
        moved = self.examples.take([row])._replace(y=self.rng.choice(others, size=1))
        self.model.add(moved.x, moved.y, moved.weight, moved.prior)
        self.examples = self.examples.join(moved)
        self.remove(np.array([row]))
        return "relabel"

    def compare(self, kind: str) -> Edit:
        """Compare the edited classifier with a fit of its examples."""
        fresh, given = FewShotClassifier(**self.parameters), self.examples
        if self.is_declared:
            fresh.partial_fit(given.x, given.y, np.arange(self.n_way), given.weight, given.prior)
        else:
            fresh.fit(given.x, given.y, given.weight, given.prior)
        queries = np.concatenate([self.queries.x, given.x]), None
        if self.has_prior:
            queries = queries[0], np.concatenate([self.queries.prior, given.prior])
        proba = np.abs(self.model.predict_proba(*queries) - fresh.predict_proba(*queries)).max()
        return Edit(
            self.number, kind, self.kernel, self.model.start_, float(proba),
            abs(self.model.elbo_ - fresh.elbo_), abs(self.model.temperature_ / fresh.temperature_ - 1.0),
            self.model.gap_, fresh.gap_,
        )  # fmt: skip


def run_task(number: int, seed: int) -> list[Edit]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        task = Task(number, seed)
        return [task.compare(task.edit()) for _ in range(EDITS_PER_TASK)]


def _run(arguments: tuple[int, int]) -> list[Edit]:
    return run_task(*arguments)


def _watched(edits: list[Edit]) -> list[Edit]:
    for edit in edits:
        if not max(edit.proba, edit.elbo) <= TOLERANCE:
            print("beyond tolerance:", edit, flush=True)
    return edits


def summary(edits: list[Edit]) -> dict[str, Any]:
    """Return the largest differences by way of solution, and the number of edits of each kind."""
    figures: dict[str, Any] = {
        "n_edits": len(edits),
        "tolerance": TOLERANCE,
        "n_beyond_tolerance": sum(max(e.proba, e.elbo) > TOLERANCE for e in edits),
        "kinds": dict(Counter(e.kind for e in edits)),
        "kernels": dict(Counter(e.kernel for e in edits)),
    }
    for start in ("previous", "prior"):
        chosen = [e for e in edits if e.start == start]
        figures[start] = {
            "n_edits": len(chosen),
            **{
                f"{statistic.__name__}_{name}": float(statistic([getattr(e, name) for e in chosen] or [0.0]))
                for name in ("proba", "elbo", "temperature", "gap", "fit_gap")
                for statistic in (np.median, np.max)
            },
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds, then report what was done")
    options = parser.parse_args()
    started = time.perf_counter()
    tasks = [(number, options.seed) for number in range(options.edits // EDITS_PER_TASK)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        edits = []
        for part in pool.imap_unordered(_run, tasks):
            edits += _watched(part)
            if time.perf_counter() - started > options.stop_after:
                break
    figures = summary(edits)
    for name, value in figures.items():
        print(f"{name:20s} {value}")
    for edit in sorted(edits, key=lambda e: -max(e.proba, e.elbo))[:5]:
        print(edit)
    from _common import save

    save("edits", figures, seed=options.seed)


if __name__ == "__main__":
    main()

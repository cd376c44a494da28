"""From the covariance of the support to its posterior."""

import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.classifier.memory import fits_dense
from mirrorshot.classifier.selection import Support
from mirrorshot.gp.alternating import alternate
from mirrorshot.gp.certificate import gap_bound
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.mirror import mirror_descent
from mirrorshot.gp.newton import newton_solve
from mirrorshot.gp.objective import evaluate, make_problem
from mirrorshot.gp.visits import Found
from mirrorshot.gp.weight_space import Posterior, Task, features_of, posterior_of, weight_posterior
from mirrorshot.softmax.arrays import NDArray

_MAX_STEPS = 100
_MAX_STARTS = 10
_LAST_ROUNDS = 500  # where nothing was proven; one task in hundreds
_TOLERANCE = 1e-11  # nats per example, before the last digits


class Solved(NamedTuple):
    """A posterior, and how it was reached.

    Attributes:
        posterior: the posterior.
        elbo: the bound it reaches, in nats.
        n_steps: number of steps to it.
        gap: nats by which the bound is below its optimum, at most; proven by its gradient.
        start: "previous" if an earlier posterior was the start, "prior" if it was solved anew.
    """

    posterior: Posterior
    elbo: float
    n_steps: int
    gap: float
    start: str


def solve(support: Support, K: Float[NDArray[np.float64], "1 _ N N"], start: GaussianSites | None) -> Solved:
    """Find the optimum of the bound, from sites close to it if such are known.

    By turns (`gp.alternating`), which proves its result; where it does not, from the given start or from the prior,
    by the safeguarded loop, which is slower and needs a covariance matrix for each class, and by turns from its end.
    """
    if K.shape[1] > 1:
        return _safeguarded(support, K, start)
    task = task_of(support, K[0, 0])
    for begin in (None,) if start is None else (start, None):
        found = alternate(task, begin)
        if found.is_proven:
            return _solved(task, found, "prior" if begin is None else "previous")
    if not fits_dense(*task.Y.shape):
        _warn(found.n_rounds, found.gap)
        return _solved(task, found, "prior")
    slow = _safeguarded(support, K, start)
    found = alternate(task, slow.posterior.sites, max_rounds=_LAST_ROUNDS)
    return _solved(task, found, slow.start) if found.is_proven and found.gap < slow.gap else slow


def _solved(task: Task, found: Found, start: str) -> Solved:
    posterior = weight_posterior(task.features, found.sites, found.conditioned)
    return Solved(posterior, found.elbo, found.n_rounds, found.gap, start)


def task_of(support: Support, K: Float[NDArray[np.float64], "N N"]) -> Task:
    """The task that `gp.alternating` solves, for a covariance that all classes share."""
    prior = None if support.prior_mean is None else np.ascontiguousarray(support.prior_mean[0].T)
    Y = np.ascontiguousarray(one_hot(support.y, support.n_way, K.dtype).T)
    return Task(features_of(K), K, Y, support.weight, prior, float(K.diagonal().max()) ** 0.5)


def _safeguarded(support: Support, K: NDArray[np.float64], start: GaussianSites | None) -> Solved:
    """Newton's method from the start; otherwise mirror descent, then Newton's method for the last digits.

    Design note: the directions of mirror descent remember its path. Where precisions are held at zero, the remembered
    direction may point out of the domain and every step along it be refused; a new start forgets it.
    """
    if start is not None:
        refined = _refine(support, K, start, is_near=False)
        if refined is not None:
            return refined
    n_steps, sites = 0, None
    for _ in range(_MAX_STARTS):
        posterior, info = mirror_descent(
            K,
            support.y[None],
            n_way=support.n_way,
            weight=support.weight[None],
            start="prior" if sites is None else sites,
            max_steps=_MAX_STEPS,
            tol=_TOLERANCE,
            prior_mean=support.prior_mean,
            validate=False,
        )
        n_steps, sites = n_steps + int(info.n_steps[0]), posterior.sites
        refined = _refine(support, K, sites, is_near=True)
        if refined is not None:
            return refined._replace(n_steps=refined.n_steps + n_steps, start="prior")
        if bool(info.converged[0]):
            break
    else:
        _warn(n_steps, float(info.gap[0]))
    problem = make_problem(
        K, support.y[None], support.n_way, support.weight[None], None, None, False, support.prior_mean
    )
    gap = float(gap_bound(problem, evaluate(problem, posterior.sites))[0])
    return Solved(posterior_of(K, posterior.sites), float(info.elbo[0, -1]), n_steps, gap, "prior")


def _refine(support: Support, K: NDArray[np.float64], start: GaussianSites, *, is_near: bool) -> Solved | None:
    """Newton's method from sites close to the solution; None if it does not prove that it got there."""
    found = newton_solve(
        K,
        support.y[None],
        start,
        n_way=support.n_way,
        weight=support.weight[None],
        is_near=is_near,
        prior_mean=support.prior_mean,
    )
    return None if found is None else Solved(posterior_of(K, found[0].sites), *found[1], "previous")


def _warn(n_steps: int, gap: float) -> None:

    from sklearn.exceptions import ConvergenceWarning

    warnings.warn(
        f"Inference stopped after {n_steps} steps, at most {gap:.1e} nats from the optimum.",
        ConvergenceWarning,
        stacklevel=5,
    )

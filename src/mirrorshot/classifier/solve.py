"""Posterior of the support from its covariance."""

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
_LAST_ROUNDS = 500  # after the safeguarded loop; one task in hundreds needs it
_TOLERANCE = 1e-11  # nats per example, before Newton's method finds the last digits


class Solved(NamedTuple):
    """A posterior with its bound `elbo`, the number of steps, and where inference started.

    `gap` is an upper bound, proven by the gradient, of the distance to the optimal bound in nats.
    """

    posterior: Posterior
    elbo: float
    n_steps: int
    gap: float
    start: str


def solve(support: Support, K: Float[NDArray[np.float64], "1 _ N N"], start: GaussianSites | None) -> Solved:
    """Maximise the bound, from `start` if it is given.

    `gp.alternating` runs first, from `start` and, without a proof of the result, from the prior. If both fail, the
    safeguarded loop follows, and `gp.alternating` continues from its end. This loop is slower and needs a covariance
    matrix for each class; without memory for these, the unproven result is returned with a warning. Kernels that differ
    between classes use the safeguarded loop alone.
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
    """Return the task for `gp.alternating`, for a covariance that all classes share."""
    prior = None if support.prior_mean is None else np.ascontiguousarray(support.prior_mean[0].T)
    Y = np.ascontiguousarray(one_hot(support.y, support.n_way, K.dtype).T)
    return Task(features_of(K), K, Y, support.weight, prior, float(K.diagonal().max()) ** 0.5)


def _safeguarded(support: Support, K: NDArray[np.float64], start: GaussianSites | None) -> Solved:
    """Run Newton's method from the start; otherwise mirror descent, then Newton's method for the last digits.

    Design note: mirror descent keeps directions from its path. Where precisions are held at zero, such a direction may
    leave the domain, and every step along it is refused. A restart discards the directions.
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
    """Run Newton's method from sites near the solution; return None without a proof of the result."""
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

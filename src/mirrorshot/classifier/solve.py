"""From covariances of the support to its posterior: how far each stage of a fit goes."""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from mirrorshot.classifier.selection import Support
from mirrorshot.gp import MirrorInfo, mirror_descent, newton_solve
from mirrorshot.gp.certificate import gap_bound
from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites
from mirrorshot.gp.objective import evaluate, make_problem

_MAX_STEPS = 100
_MAX_STARTS = 10
SCREENING_TOLERANCE = 1e-4  # nats per example, to compare the candidates
_TOLERANCE = 1e-11  # and for the one that is chosen, before the last digits


class Solved(NamedTuple):
    """A posterior, and how it was reached.

    Attributes:
        posterior: the posterior.
        elbo: the bound it reaches, in nats.
        n_steps: number of steps to it.
        gap: nats by which the bound is below its optimum, at most; proven by its gradient.
        start: "previous" if an earlier posterior was the start, "prior" if it was solved anew.
    """

    posterior: GaussianPosterior
    elbo: float
    n_steps: int
    gap: float
    start: str


def descend(
    support: Support, K: NDArray[np.float64], start: GaussianSites | None, tol: float
) -> tuple[GaussianPosterior, MirrorInfo]:
    """Mirror descent for every candidate, from the prior (None) or from given sites."""
    G = len(K)
    posterior, info = mirror_descent(
        K,
        np.broadcast_to(support.y, (G, *support.y.shape)),
        n_way=support.n_way,
        weight=np.broadcast_to(support.weight, (G, *support.weight.shape)),
        start="prior" if start is None else start,
        max_steps=_MAX_STEPS,
        tol=tol,
        prior_mean=None if support.prior_mean is None else np.repeat(support.prior_mean, G, 0),
        validate=False,
    )
    return posterior.check(), info


def solve(support: Support, K: NDArray[np.float64], start: GaussianSites | None) -> Solved:
    """Mirror descent, then Newton's method for the digits that do not depend on the start any more.

    Design note: the directions of mirror descent remember its path. Where precisions are held at zero, the remembered
    direction may point out of the domain and every step along it be refused; a new start forgets it.
    """
    n_steps = 0
    for _ in range(_MAX_STARTS):
        posterior, info = descend(support, K, start, _TOLERANCE)
        n_steps += int(info.n_steps[0])
        refined = refine(support, K, posterior.sites, is_near=True)
        if refined is not None:
            return refined._replace(n_steps=refined.n_steps + n_steps, start="prior")
        if bool(info.converged[0]):
            break
        start = posterior.sites
    else:
        warnings.warn(
            f"Inference stopped after {n_steps} steps, {float(info.gap[0]):.1e} nats from the optimum.",
            ConvergenceWarning,
            stacklevel=4,
        )
    problem = make_problem(
        K, support.y[None], support.n_way, support.weight[None], None, None, False, support.prior_mean
    )
    gap = float(gap_bound(problem, evaluate(problem, posterior.sites))[0])
    return Solved(posterior, float(info.elbo[0, -1]), n_steps, gap, "prior")


def refine(support: Support, K: NDArray[np.float64], start: GaussianSites, *, is_near: bool) -> Solved | None:
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
    return None if found is None else Solved(found[0], *found[1], "previous")

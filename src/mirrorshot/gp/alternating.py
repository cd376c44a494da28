"""Inference for one task that alternates between Newton steps on the means and conditioning for the variances.

At the optimum of the bound `alpha = a (y - E[p])` and `w = a E[p (1 - p)]`, with weights `a`: the fixed point of paper
eqs. 9 to 11. A mirror step moves both at once and ignores that classes compete. Here a round takes Newton steps on the
means, while variances follow their own site (`followers.Alone`). Then it conditions the prior on the new precisions, at
the cost of one factorisation per class. About six rounds reach the optimum to the last digits. About four do if the
task is large and its squared covariances affordable (`SQUARES_SIZE`), so that variances follow all sites to first
order. `many_classes` solves tasks of many classes, `native_rounds` starts small ones.

The Hessian of the means at a point is `E[diag(p) - p p^T]`. Its off-diagonal part is replaced by that of the rank-one
matrix `-s s^T` with the same row sums: `s_c (sum_j s_j - s_c) = E[p_c (1 - p_c)]`. In trials the exact matrix saved no
step. Conjugate gradients solve for the step, with the posterior of each class as preconditioner.

Design note: the optimum is unique and a certificate is checked, so the result is that of `mirror_descent` followed by
`newton_solve`. For one task on a CPU this is ten times faster, and without squared covariances it needs `N C + C R^2`
numbers instead of `C N^2`. It is not safeguarded: `Found.is_proven` is false if it did not converge.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mirrorshot.gp.followers import Alone, BySquares
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.many_classes import has_many_classes, solve_many
from mirrorshot.gp.native_rounds import Constants, climb
from mirrorshot.gp.visits import (
    ACCEPTED,
    CG_STEPS,
    CG_TOLERANCE,
    SCALINGS,
    Expectations,
    Found,
    Visit,
    expect,
    newton_step,
    visit,
)
from mirrorshot.gp.weight_space import SQUARES_SIZE, Conditioned, Task, condition_on, squared_covariances
from mirrorshot.softmax.moments import softmax_moments

_MAX_ROUNDS = 40
_INNER_STEPS = 2
_MOST_INNER_STEPS = 10  # for large tasks, where a factorisation costs more than several expectations
_ENOUGH = 3e-2  # share of the gradient at which inner steps end
_ENOUGH_FOR_ALL = 1e-3  # the same where variances follow all sites, so that more accurate means save rounds
_SHORTEST = 1e-3
_ARRIVED = 2e-8  # proven error of the latents at which to stop
_SINGLE = 1e-2  # error above which single precision is enough
_SINGLE_FOR_ALL = 20.0  # the same where variances follow all sites, and a round squares the error
_SINGLE_SIZE = 2**18  # N R C from which rounds begin in single precision and end at `ACCEPTED`
_NEAR = 0.1  # error below which the rounds behave like a linear iteration
_MEMORY = 2
_CONSTANTS = Constants(
    0.9 * _ARRIVED, ACCEPTED, _NEAR, CG_TOLERANCE, _SHORTEST, _MAX_ROUNDS, _INNER_STEPS, CG_STEPS, SCALINGS
)


def alternate(task: Task, start: GaussianSites | None = None, *, max_rounds: int = _MAX_ROUNDS) -> Found:
    """Solve one task, starting from given sites or from the prior."""
    if has_many_classes(task):
        found = solve_many(task, start, max_rounds=max_rounds)
        if found is not None:
            return found
    phi = task.features.phi
    is_large = is_rough = phi.size * task.Y.shape[1] >= _SINGLE_SIZE
    rough = phi.astype(np.float32) if is_large else phi
    n_steps = _MOST_INNER_STEPS if is_large else _INNER_STEPS
    has_squares = is_large and len(phi) <= 2 * phi.shape[1] and task.K.size * task.Y.shape[1] <= SQUARES_SIZE
    u, w = _start(task, start)
    n_before, has_shift = 0, start is not None
    begun = climb(task, u, w, _CONSTANTS._replace(max_rounds=max_rounds // 2), has_shift=has_shift)
    if begun is not None:
        u, w, n_before, has_shift = *begun, False
    best: Found | None = None
    path: list[_Round] = []
    gap = math.inf
    for n_rounds in range(n_before + 1, max_rounds + 1):
        conditioned = condition_on(rough, w.astype(np.float32)) if is_rough else condition_on(phi, w)
        u, has_shift = conditioned.solve(u) if has_shift else u, False
        now = visit(task, conditioned, u, w, n_rounds)
        before, gap = gap, now.found.gap
        if not is_rough:
            stalls = best is not None and now.found.error > 0.25 * best.error
            best = now.found if best is None or now.found.error < best.error else best
            arrived = best.error <= (ACCEPTED if is_large else _ARRIVED)
            if arrived or not gap < math.inf or (stalls and best.is_proven):
                return best
        follower = _follower(rough, conditioned, w, has_squares=has_squares)
        path = [*path[-_MEMORY:], _Round(u, w, *_climb(task, conditioned, follower, u, now, n_steps))]
        u, w = _extrapolated(path, task.max_std**2) if now.found.error < _NEAR else path[-1][2:]
        enough = _SINGLE_FOR_ALL if has_squares else _SINGLE
        if is_rough and not (now.found.error > enough and gap < 0.25 * before):
            is_rough, path = False, []
    return now.found if best is None else best


class _Round(NamedTuple):
    u: Float[np.ndarray, "C R"]
    w: Float[np.ndarray, "N C"]
    new_u: Float[np.ndarray, "C R"]
    new_w: Float[np.ndarray, "N C"]


def _extrapolated(path: list[_Round], scale: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Anderson acceleration: combine the last rounds so that the change, if linear, is smallest."""
    last = path[-1]
    if len(path) == 1:
        return last.new_u, last.new_w
    change = [np.concatenate([(r.new_u - r.u).ravel(), scale * (r.new_w - r.w).ravel()]) for r in path]
    F = np.stack([change[-1] - part for part in change[:-1]], 1)
    share = np.linalg.lstsq(F, change[-1], rcond=1e-7)[0]
    u = last.new_u - sum(t * (last.new_u - r.new_u) for t, r in zip(share, path, strict=False))
    w = last.new_w - sum(t * (last.new_w - r.new_w) for t, r in zip(share, path, strict=False))
    return (u, w) if bool((w >= 0.0).all()) else (last.new_u, last.new_w)


def _start(task: Task, start: GaussianSites | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starting weights and precisions; for given sites, `Phi^T b`, from which the first round solves the weights."""
    if start is not None:
        return start.shift[0] @ task.features.phi, np.ascontiguousarray(start.precision[0].T)
    C = task.Y.shape[1]
    # before the first round, one point with the mean prior variance stands for all
    var = np.full((1, C), float(task.K.diagonal().mean()))
    prior = softmax_moments(np.zeros((1, C)), var, max_std=task.max_std)
    return np.zeros((C, task.features.phi.shape[1])), task.weight[:, None] * prior.curvature


def _follower(
    phi: NDArray[np.floating], conditioned: Conditioned, w: NDArray[np.float64], *, has_squares: bool
) -> Alone | BySquares:
    var = conditioned.var.astype(np.float64, copy=False)
    return BySquares(w, var, squared_covariances(phi, conditioned)) if has_squares else Alone(w, var)


def _climb(
    task: Task,
    conditioned: Conditioned,
    follower: Alone | BySquares,
    u: NDArray[np.float64],
    visit: Visit,
    n_steps: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Take Newton steps on the means while variances follow the sites; return weights and precisions."""
    now, residual, mean = visit.expected, visit.residual, visit.found.mean
    var, first = follower.var, np.square(residual).sum()
    enough = _ENOUGH_FOR_ALL * min(1.0, visit.found.error) if isinstance(follower, BySquares) else _ENOUGH
    for step in range(n_steps):
        move = newton_step(task, conditioned.solve, now, residual)
        u, mean, now = _line_search(task, u, mean, var, now, residual, move)
        if step + 1 < n_steps:
            var = follower.at(now.curvature)
            now = expect(task, mean, var)
            residual = (task.weight[:, None] * task.Y - now.prob).T @ task.features.phi - u
            if step > 0 and np.square(residual).sum() < enough**2 * first:
                break
    return u, now.curvature


def _line_search(
    task: Task,
    u: NDArray[np.float64],
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
    now: Expectations,
    residual: NDArray[np.float64],
    move: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], Expectations]:
    """Backtracking line search on the bound; return weights, means and expectations after the step."""
    shift, length = task.features.phi @ move.T, 1.0
    slope = float(np.vdot(residual, move))
    height = now.log_likelihood - 0.5 * float(np.vdot(u, u))
    while True:
        new_u, new_mean = u + length * move, mean + length * shift
        then = expect(task, new_mean, var)
        gain = then.log_likelihood - 0.5 * float(np.vdot(new_u, new_u)) - height
        if gain >= 1e-4 * length * slope - 1e-10 * abs(height) or length < _SHORTEST:
            return new_u, new_mean, then
        length *= 0.5

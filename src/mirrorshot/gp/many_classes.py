"""Inference for one task of many classes, with few factorisations per class and cheap steps between them.

`alternating` factorises `I + Phi^T W_c Phi` for every class in every round. It needs nine rounds for hundreds of
classes, because the variances respond to the sites of all points. Here means and precisions converge between two
rounds, while variances follow to first order: by the squared covariances of each class where these are affordable, else
by covariances that the classes share (`shared_model`). A round of the former squares the error, a round of the latter
reduces it a hundred to a thousand times. Three or four rounds are enough, the first of them in single precision.

A step of `_settle` combines a Newton step on the means with the precisions `E[p (1 - p)]` at its start, from one set of
expectations. Anderson acceleration corrects for the coupling between the two; its differences are kept for the next
round. Without given sites, the search starts from `starts.exchangeable_sites` and first converges with the shared
covariances, before it conditions any class.

It is not safeguarded: when a round does not help, it returns None and `alternating` takes over. Results are certified.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mirrorshot.gp.followers import ByModel, BySquares
from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.objective import make_problem
from mirrorshot.gp.shared_model import SharedModel, shared_model
from mirrorshot.gp.starts import exchangeable_sites
from mirrorshot.gp.visits import ACCEPTED, Expectations, Found, expect, newton_step, visit
from mirrorshot.gp.weight_space import SQUARES_SIZE, Task, condition_on, squared_covariances

_LEAST_SIZE = 2**18  # N R C; below, a factorisation of every class costs no more than the expectations
_LEAST_CLASSES = 12
_MOST_SHOTS = 16  # mean points per class; with more, a class differs from the others in too many points
_STEPS = 12
_MEMORY = 10
_CG_TOLERANCE = 0.1
_RANK = 1e-12
_BEGUN = 0.3  # residual at which steps end before any class is conditioned
_SETTLED = 1e-4  # residual at which later steps end, as a share of the error
_RESOLVED = 1e-6  # smallest residual that variances in single precision resolve
_PROVABLE = 0.2 * ACCEPTED  # residual times the largest prior standard deviation that is small enough for a proof
_SINGLE = 3e-2  # error above which the next round is in single precision, too
_SINGLE_SQUARES = 20.0  # the same with squared covariances of every class, where a round squares the error
_LOST = 100.0  # growth of the residual at which steps end


class _Secant(NamedTuple):
    """End and change of a step of `_settle`, or the differences of both between two steps."""

    end: Float[np.ndarray, " S"]
    change: Float[np.ndarray, " S"]


class _Place(NamedTuple):
    u: Float[np.ndarray, "C R"]
    w: Float[np.ndarray, "N C"]
    now: Expectations
    residual: Float[np.ndarray, "C R"]

    def size(self, scale: float) -> float:
        """Norm of the residual of weights and precisions."""
        d = self.now.curvature - self.w
        return max(math.sqrt(np.vdot(self.residual, self.residual)), scale * math.sqrt(np.vdot(d, d)))


def has_many_classes(task: Task) -> bool:
    """Whether a task has many classes of few points each, whose covariances are alike."""
    (N, C), R = task.Y.shape, task.features.phi.shape[1]
    return N * R * C >= _LEAST_SIZE and C >= _LEAST_CLASSES and N <= _MOST_SHOTS * C


def solve_many(task: Task, start: GaussianSites | None, *, max_rounds: int) -> Found | None:
    """Solve a task from given sites or from `exchangeable_sites`; return None without a proof."""
    phi, C = task.features.phi, task.Y.shape[1]
    rough, is_rough = phi.astype(np.float32), True
    has_squares = len(phi) <= 2 * phi.shape[1] and task.K.size * C <= SQUARES_SIZE
    secants = list[_Secant]()
    u, w = _begin(task, rough, secants) if start is None else (start.shift[0] @ phi, start.precision[0].T)
    error, model = math.inf, None  # with squared covariances, the model is only a preconditioner
    for n_rounds in range(1, max_rounds + 1):
        seen = rough if is_rough else phi
        conditioned = condition_on(seen, np.ascontiguousarray(w.astype(seen.dtype)))
        u = conditioned.solve(u) if start is not None and n_rounds == 1 else u
        now = visit(task, conditioned, u, w, n_rounds)
        before, error = error, now.found.error
        if not is_rough and error <= ACCEPTED:
            return now.found
        if not error < 0.5 * before:
            return None
        model = model if model is not None and has_squares else shared_model(rough, w)
        var = conditioned.var.astype(np.float64, copy=False)
        follower = BySquares(w, var, squared_covariances(rough, conditioned)) if has_squares else ByModel(w, var, model)
        share = _SETTLED * (min(1.0, error) if has_squares else 1.0)
        enough = max(share * error, _RESOLVED if is_rough else _PROVABLE / task.max_std)
        place = _Place(u, w, now.expected, now.residual)
        u, w = _settle(task, follower, model, place, enough, secants)
        is_rough = is_rough and error > (_SINGLE_SQUARES if has_squares else _SINGLE)
    return None


def _begin(
    task: Task, rough: NDArray[np.float32], secants: list[_Secant]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Starting weights and precisions, converged with the shared covariances."""
    C, y = task.Y.shape[1], task.Y.argmax(1)
    problem = make_problem(task.K[None, None], y[None], C, task.weight[None], None, None, validate=False)
    sites = exchangeable_sites(problem)
    w = np.ascontiguousarray(sites.precision[0].T)
    model = shared_model(rough, w)
    u = model.solve(sites.shift[0] @ task.features.phi)
    follower = ByModel(model.precision, model.var, model)
    return _settle(task, follower, model, _looked_at(task, follower, u, w), _BEGUN, secants)


def _looked_at(task: Task, follower: ByModel | BySquares, u: NDArray[np.float64], w: NDArray[np.float64]) -> _Place:
    phi = task.features.phi
    now = expect(task, phi @ u.T, follower.at(w))
    return _Place(u, w, now, (task.weight[:, None] * task.Y - now.prob).T @ phi - u)


def _settle(
    task: Task, follower: ByModel | BySquares, model: SharedModel, place: _Place, enough: float, secants: list[_Secant]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Iterate weights and precisions to convergence, with variances of the follower; return the best found."""
    scale, before = task.max_std**2, None
    best, least = place, math.inf
    for step in range(_STEPS + 1):
        size = place.size(scale)
        if size < least:
            best, least = place, size
        if step == _STEPS or not enough < size < _LOST * least:
            break
        move = newton_step(task, model.precondition, place.now, place.residual, _CG_TOLERANCE)
        end = np.concatenate([(place.u + move).ravel(), scale * place.now.curvature.ravel()])
        change = end - np.concatenate([place.u.ravel(), scale * place.w.ravel()])
        if not math.isfinite(np.vdot(change, change)):
            break
        if before is not None:
            secants[:] = [*secants[1 - _MEMORY :], _Secant(end - before.end, change - before.change)]
        before = _Secant(end, change)
        found = _accelerated(before, secants)
        u, w = found[: move.size].reshape(move.shape), found[move.size :].reshape(place.w.shape) / scale
        place = _looked_at(task, follower, u, np.maximum(w, 0.1 * place.now.curvature))
    return best.u, best.w


def _accelerated(last: _Secant, secants: list[_Secant]) -> Float[np.ndarray, " S"]:
    """Anderson acceleration: combine the end of a step with past differences to make the change smallest."""
    if not secants:
        return last.end
    F = np.stack([secant.change for secant in secants])
    share = np.linalg.lstsq(F @ F.T, F @ last.change, rcond=_RANK)[0]
    return last.end - share @ np.stack([secant.end for secant in secants])

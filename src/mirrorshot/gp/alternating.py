"""Inference for one task by turns: Newton steps on the means, conditioning for the variances.

At the optimum of the bound `alpha = a (y - E[p])` and `w = a E[p (1 - p)]`: paper eqs. 10 and 11 at rest, with weights
`a`. A mirror step moves both at once and ignores that classes compete. Here Newton's method finds the means, with
variances that follow their own site: with the cavity `s = v / (1 - w v)` of a point, `v = s / (1 + w s)`. Then the
prior is conditioned on the new precisions. Only that costs a factorisation for each class, and half a dozen of them
reach the optimum to the last digits. Where the squared covariances of the points are affordable, variances follow all
sites to first order, and four do.

The curvature of the means at a point is the matrix `E[diag(p) - p p^T]`. Its off-diagonal part is replaced by that of
rank one, `-s s^T`, which has the same row sums: `s_c (sum_j s_j - s_c) = E[p_c (1 - p_c)]`. In trials the exact matrix
saved no step. Conjugate gradients solve for the step, preconditioned with the posterior of each class by itself.

Design note: the optimum is unique and its certificate is checked, so the result is that of `mirror_descent` followed
by `newton_solve`. For one task on a CPU this is faster by an order of magnitude, and needs `N C` and `C R^2` numbers
where those need `C N^2`. It is not safeguarded: `Found.is_proven` says whether it arrived.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.native_rounds import Constants, climb
from mirrorshot.gp.weight_space import Conditioned, Task, condition_on
from mirrorshot.softmax.moments import softmax_moments

_MAX_ROUNDS = 40
_INNER_STEPS = 2
_MOST_INNER_STEPS = 10  # of large tasks, where a factorisation costs more than some expectations
_ENOUGH = 3e-2  # share of the gradient at which inner steps end
_ENOUGH_FOR_ALL = 1e-3  # the same where variances follow all sites, and the next round can make use of it
_SQUARES_SIZE = 2**23  # C N^2 up to which the variances follow all sites: a round more costs more
_CG_STEPS = 8
_CG_TOLERANCE = 3e-2
_SHORTEST = 1e-3
_SCALINGS = 6
_ARRIVED = 2e-8  # proven error of the latents at which to stop
_ACCEPTED = 1e-7  # and the largest that counts as proven
_SINGLE = 1e-2  # error above which single precision will do
_SINGLE_FOR_ALL = 20.0  # the same where variances follow all sites, and a round squares the error
_SINGLE_SIZE = 2**18  # N R C from which single precision is worth a conversion, and the last digits are not
_NEAR = 0.1  # error from which on the rounds behave as a linear iteration
_MEMORY = 2
_CONSTANTS = Constants(
    0.9 * _ARRIVED, _ACCEPTED, _NEAR, _CG_TOLERANCE, _SHORTEST, _MAX_ROUNDS, _INNER_STEPS, _CG_STEPS, _SCALINGS
)


class Expectations(NamedTuple):
    """The likelihood at given marginals, weighted: `a E[p]`, `a E[p (1 - p)]` and `sum_n a_n E log p(y_n)`."""

    prob: Float[np.ndarray, "N C"]
    curvature: Float[np.ndarray, "N C"]
    log_likelihood: float


class Found(NamedTuple):
    """The last or the best point of the search.

    Attributes:
        conditioned: the prior conditioned on `precision`.
        mean: posterior means, (N, C).
        alpha: `a (y - E[p])`, (N, C).
        precision: site precisions, (N, C).
        elbo: the bound in nats.
        gap: nats by which it is below its optimum, at most.
        error: bound of the error of latent means where the prior variance is at most that of the examples.
        n_rounds: rounds of conditioning.
    """

    conditioned: Conditioned
    mean: Float[np.ndarray, "N C"]
    alpha: Float[np.ndarray, "N C"]
    precision: Float[np.ndarray, "N C"]
    elbo: float
    gap: float
    error: float
    n_rounds: int

    @property
    def is_proven(self) -> bool:
        """Whether the gradient proves that this is the optimum, to 1e-7 in the latents (see `certificate`)."""
        return self.error <= _ACCEPTED

    @property
    def sites(self) -> GaussianSites:
        """The sites, (1, C, N) each."""
        shift = self.alpha + self.precision * self.mean
        return GaussianSites(np.ascontiguousarray(shift.T)[None], np.ascontiguousarray(self.precision.T)[None])


def alternate(task: Task, start: GaussianSites | None = None, *, max_rounds: int = _MAX_ROUNDS) -> Found:
    """Solve one task, from given sites or from the prior."""
    phi = task.features.phi
    is_large = is_rough = phi.size * task.Y.shape[1] >= _SINGLE_SIZE
    rough = phi.astype(np.float32) if is_large else phi
    n_steps = _MOST_INNER_STEPS if is_large else _INNER_STEPS
    has_squares = is_large and len(phi) <= 2 * phi.shape[1] and task.K.size * task.Y.shape[1] <= _SQUARES_SIZE
    u, w = _start(task, start)
    n_before, has_shift = 0, start is not None
    begun = climb(task, u, w, _CONSTANTS._replace(max_rounds=max_rounds // 2), has_shift=has_shift)
    if begun is not None:
        u, w, n_before, has_shift = *begun, False
    best: Found | None = None
    path: list[_Round] = []
    gap = math.inf
    for n_rounds in range(n_before + 1, max_rounds + 1):
        if is_rough:
            conditioned = condition_on(rough, w.astype(np.float32), has_squares=has_squares)
        else:
            conditioned = condition_on(phi, w, has_squares=has_squares)
        u, has_shift = conditioned.solve(u) if has_shift else u, False
        now = _visit(task, conditioned, u, w, n_rounds)
        before, gap = gap, now.found.gap
        if not is_rough:
            stalls = best is not None and now.found.error > 0.25 * best.error
            best = now.found if best is None or now.found.error < best.error else best
            arrived = best.error <= (_ACCEPTED if is_large else _ARRIVED)
            if arrived or not gap < math.inf or (stalls and best.is_proven):
                return best
        path = [*path[-_MEMORY:], _Round(u, w, *_climb(task, conditioned, u, w, now, n_steps))]
        u, w = _extrapolated(path, task.max_std**2) if now.found.error < _NEAR else path[-1][2:]
        enough = _SINGLE_FOR_ALL if has_squares else _SINGLE
        if is_rough and not (now.found.error > enough and gap < 0.25 * before):
            is_rough, path = False, []
    return now.found if best is None else best


class _Round(NamedTuple):
    """Weights and precisions before and after a round."""

    u: Float[np.ndarray, "C R"]
    w: Float[np.ndarray, "N C"]
    new_u: Float[np.ndarray, "C R"]
    new_w: Float[np.ndarray, "N C"]


def _extrapolated(path: list[_Round], scale: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Anderson acceleration: the combination of the last rounds whose change would be smallest if all were linear."""
    last = path[-1]
    if len(path) == 1:
        return last.new_u, last.new_w
    change = [np.concatenate([(r.new_u - r.u).ravel(), scale * (r.new_w - r.w).ravel()]) for r in path]
    F = np.stack([change[-1] - part for part in change[:-1]], 1)
    share = np.linalg.lstsq(F, change[-1], rcond=1e-7)[0]
    u = last.new_u - sum(t * (last.new_u - r.new_u) for t, r in zip(share, path, strict=False))
    w = last.new_w - sum(t * (last.new_w - r.new_w) for t, r in zip(share, path, strict=False))
    return (u, w) if bool((w >= 0.0).all()) else (last.new_u, last.new_w)


class _Visit(NamedTuple):
    """A point of the search, with the expectations there and the gradient in the weights."""

    found: Found
    expected: Expectations
    residual: Float[np.ndarray, "C R"]


def _visit(
    task: Task, conditioned: Conditioned, u: NDArray[np.float64], w: NDArray[np.float64], n_rounds: int
) -> _Visit:
    mean, var = task.features.phi @ u.T, conditioned.var.astype(np.float64, copy=False)
    now = _expect(task, mean, var)
    alpha = task.weight[:, None] * task.Y - now.prob
    residual, d = alpha.T @ task.features.phi - u, w - now.curvature
    gap = _gap_bound(task, residual, d)
    error = task.max_std * max(math.sqrt(2.0 * gap), task.max_std * float(np.abs(d).max()))
    elbo = now.log_likelihood - 0.5 * float((u * u).sum() - (w * var).sum() + conditioned.log_det.sum())
    return _Visit(Found(conditioned, mean, alpha, w, elbo, gap, error, n_rounds), now, residual)


def _start(task: Task, start: GaussianSites | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights and precisions to begin with; for given sites `Phi^T b`, which the first round solves for the weights."""
    if start is not None:
        return start.shift[0] @ task.features.phi, np.ascontiguousarray(start.precision[0].T)
    C = task.Y.shape[1]
    # without examples all points look alike
    var = np.full((1, C), float(task.K.diagonal().mean()))
    prior = softmax_moments(np.zeros((1, C)), var, max_std=task.max_std)
    return np.zeros((C, task.features.phi.shape[1])), task.weight[:, None] * prior.curvature


def _expect(task: Task, mean: NDArray[np.float64], var: NDArray[np.float64]) -> Expectations:
    seen = mean if task.prior_mean is None else mean + task.prior_mean
    moments = softmax_moments(seen, var, max_std=task.max_std)
    a = task.weight[:, None]
    expected = task.weight @ ((task.Y * seen).sum(1) - moments.logsumexp)
    return Expectations(a * moments.prob, a * moments.curvature, float(expected))


def _gap_bound(task: Task, residual: NDArray[np.float64], d: NDArray[np.float64]) -> float:
    """Upper bound of the distance to the optimal bound in nats, as in `certificate`, with `K * K >= K * Sigma`."""
    size = max(1, 2**22 // len(d))
    squares = sum(
        float((d[i : i + size] * (np.square(task.K[i : i + size]) @ d)).sum()) for i in range(0, len(d), size)
    )
    return 0.5 * (float(np.square(residual).sum()) + squares)


def _climb(
    task: Task,
    conditioned: Conditioned,
    u: NDArray[np.float64],
    w: NDArray[np.float64],
    visit: _Visit,
    n_steps: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Newton steps on the means, with variances that follow the sites; return weights and precisions."""
    now, residual, mean = visit.expected, visit.residual, visit.found.mean
    var, first = conditioned.var.astype(np.float64, copy=False), np.square(residual).sum()
    enough = _ENOUGH if conditioned.squares is None else _ENOUGH_FOR_ALL * min(1.0, visit.found.error)
    for step in range(n_steps):
        move = _newton_step(task, conditioned, now, residual)
        u, mean, now = _line_search(task, u, mean, var, now, residual, move)
        if step + 1 < n_steps:
            var = _followed(conditioned, w, now.curvature)
            now = _expect(task, mean, var)
            residual = (task.weight[:, None] * task.Y - now.prob).T @ task.features.phi - u
            if step > 0 and np.square(residual).sum() < enough**2 * first:
                break
    return u, now.curvature


def _followed(conditioned: Conditioned, w: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variances when precisions change from `w`.

    To first order in those of other points, where their covariances are known, and exactly in that of the point itself.
    """
    var = conditioned.var.astype(np.float64, copy=False)
    if conditioned.squares is not None:
        change = (new - w).T.astype(conditioned.squares.dtype)
        response = np.matmul(conditioned.squares, change[..., None])[..., 0].T
        var = np.clip(var - response, 0.3 * var, 3.0 * var)
    cavity = var / np.maximum(1.0 - w * var, 1e-12)
    return cavity / (1.0 + new * cavity)


def _line_search(
    task: Task,
    u: NDArray[np.float64],
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
    now: Expectations,
    residual: NDArray[np.float64],
    move: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], Expectations]:
    """Move the weights, by less if the bound would not rise; return weights, means and expectations there."""
    shift, length = task.features.phi @ move.T, 1.0
    slope = float(np.vdot(residual, move))
    height = now.log_likelihood - 0.5 * float(np.vdot(u, u))
    while True:
        new_u, new_mean = u + length * move, mean + length * shift
        then = _expect(task, new_mean, var)
        gain = then.log_likelihood - 0.5 * float(np.vdot(new_u, new_u)) - height
        if gain >= 1e-4 * length * slope - 1e-10 * abs(height) or length < _SHORTEST:
            return new_u, new_mean, then
        length *= 0.5


def _newton_step(
    task: Task, conditioned: Conditioned, now: Expectations, residual: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Solve `(I + Phi^T J Phi) x = residual` roughly, where `J = diag(c + s s) - s s^T` at every point."""
    phi = task.features.phi
    s = _coupling(now)
    own = now.curvature + s * s
    x, rest = np.zeros_like(residual), residual
    p = z = conditioned.solve(rest)
    first = size = float((rest * z).sum())
    for _ in range(_CG_STEPS):
        q = phi @ p.T
        Tp = p + (own * q - s * (s * q).sum(1, keepdims=True)).T @ phi
        bend = float((p * Tp).sum())
        if bend == 0.0:  # the residual is zero, or its square is
            break
        rate = size / bend
        x, rest = x + rate * p, rest - rate * Tp
        z = conditioned.solve(rest)
        before, size = size, float((rest * z).sum())
        if not size > _CG_TOLERANCE**2 * first:
            break
        p = z + (size / before) * p
    return x


def _coupling(now: Expectations) -> NDArray[np.float64]:
    """Return `s` with `s_c (sum_j s_j - s_c) = a E[p_c (1 - p_c)]`, by scaling rows and columns alike."""
    tiny = np.finfo(np.float64).tiny
    s = np.maximum(now.prob, tiny)
    for _ in range(_SCALINGS):
        s = np.sqrt(s * now.curvature / np.maximum(s.sum(1, keepdims=True) - s, tiny))
    return s

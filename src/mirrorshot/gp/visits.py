"""Evaluation of an iterate of `alternating` and `many_classes`: expectations, gradient and certificate; Newton steps.

All quantities are in weight space (`weight_space`): means `m_c = Phi u_c`, site precisions `w_c`, and the prior
conditioned on these. With `alpha = a (y - E[p])`, the gradient in the weights is `Phi^T alpha - u` and the residual of
the precisions is `d = w - a E[p (1 - p)]`. Both together bound the distance to the optimum (`certificate`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mirrorshot.gp.gaussian import GaussianSites
from mirrorshot.gp.weight_space import Conditioned, Task
from mirrorshot.softmax.moments import softmax_moments

ACCEPTED = 1e-7
"""Largest error bound of the latents of a certified result."""
SCALINGS = 6
"""Iterations of `coupling`."""
CG_STEPS = 8
"""Largest number of conjugate-gradient iterations of a Newton step."""
CG_TOLERANCE = 3e-2
"""Share of the residual at which these iterations end, in the norm of the preconditioner."""


class Expectations(NamedTuple):
    """Weighted expectations at given marginals: `a E[p]`, `a E[p (1 - p)]` and `sum_n a_n E log p(y_n)`."""

    prob: Float[np.ndarray, "N C"]
    curvature: Float[np.ndarray, "N C"]
    log_likelihood: float


class Found(NamedTuple):
    """An iterate: the last or the best is the result.

    `error` bounds the error of latent means, and approximately of leave-one-out latents, where the prior variance is at
    most that of the points.
    """

    conditioned: Conditioned  # the prior conditioned on `precision`
    mean: Float[np.ndarray, "N C"]  # posterior means
    alpha: Float[np.ndarray, "N C"]  # `a (y - E[p])`
    precision: Float[np.ndarray, "N C"]  # site precisions
    elbo: float  # the bound in nats
    gap: float  # upper bound of the gap in nats
    error: float
    n_rounds: int  # rounds of conditioning

    @property
    def is_proven(self) -> bool:
        """Whether the certificate proves that this is the optimum, to 1e-7 in the latents."""
        return self.error <= ACCEPTED

    @property
    def sites(self) -> GaussianSites:
        """The sites, (1, C, N) each."""
        shift = self.alpha + self.precision * self.mean
        return GaussianSites(np.ascontiguousarray(shift.T)[None], np.ascontiguousarray(self.precision.T)[None])


class Visit(NamedTuple):
    """An iterate with its expectations and the gradient in the weights."""

    found: Found
    expected: Expectations
    residual: Float[np.ndarray, "C R"]


def visit(task: Task, conditioned: Conditioned, u: NDArray[np.float64], w: NDArray[np.float64], n_rounds: int) -> Visit:
    """Evaluate weights and precisions, given the prior conditioned on the latter."""
    mean, var = task.features.phi @ u.T, conditioned.var.astype(np.float64, copy=False)
    now = expect(task, mean, var)
    alpha = task.weight[:, None] * task.Y - now.prob
    residual, d = alpha.T @ task.features.phi - u, w - now.curvature
    gap = _gap_bound(task, residual, d)
    error = task.max_std * max(math.sqrt(2.0 * gap), task.max_std * float(np.abs(d).max()))
    elbo = now.log_likelihood - 0.5 * float((u * u).sum() - (w * var).sum() + conditioned.log_det.sum())
    return Visit(Found(conditioned, mean, alpha, w, elbo, gap, error, n_rounds), now, residual)


def expect(task: Task, mean: NDArray[np.float64], var: NDArray[np.float64]) -> Expectations:
    """Return the expectations at given marginals."""
    seen = mean if task.prior_mean is None else mean + task.prior_mean
    moments = softmax_moments(seen, var, max_std=task.max_std)
    a = task.weight[:, None]
    expected = task.weight @ ((task.Y * seen).sum(1) - moments.logsumexp)
    return Expectations(a * moments.prob, a * moments.curvature, float(expected))


def _gap_bound(task: Task, residual: NDArray[np.float64], d: NDArray[np.float64]) -> float:
    """Upper bound of the gap in nats, as in `certificate`, but with `K * K >= K * Sigma`."""
    size = max(1, 2**22 // len(d))
    squares = sum(
        float((d[i : i + size] * (np.square(task.K[i : i + size]) @ d)).sum()) for i in range(0, len(d), size)
    )
    return 0.5 * (float(np.square(residual).sum()) + squares)


def newton_step(
    task: Task,
    precondition: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    now: Expectations,
    residual: Float[np.ndarray, "C R"],
    tolerance: float = CG_TOLERANCE,
) -> Float[np.ndarray, "C R"]:
    """Solve `(I + Phi^T J Phi) x = residual` roughly, where `J = diag(c + s s) - s s^T` at every point."""
    phi = task.features.phi
    s = coupling(now)
    own = now.curvature + s * s
    x, rest = np.zeros_like(residual), residual
    p = z = precondition(rest)
    first = size = float((rest * z).sum())
    for _ in range(CG_STEPS):
        q = phi @ p.T
        Tp = p + (own * q - s * (s * q).sum(1, keepdims=True)).T @ phi
        bend = float((p * Tp).sum())
        if bend == 0.0:  # the residual is zero, or its square underflows
            break
        rate = size / bend
        x, rest = x + rate * p, rest - rate * Tp
        z = precondition(rest)
        before, size = size, float((rest * z).sum())
        if not size > tolerance**2 * first:
            break
        p = z + (size / before) * p
    return x


def coupling(now: Expectations) -> NDArray[np.float64]:
    """Return `s` with `s_c (sum_j s_j - s_c) = a E[p_c (1 - p_c)]`, by symmetric scaling of rows and columns."""
    tiny, eps = np.finfo(np.float64).tiny, np.finfo(np.float64).eps
    s = np.maximum(now.prob, tiny)
    for _ in range(SCALINGS):
        total = s.sum(1, keepdims=True)
        # where one class has all probability, rounding hides the sum of the others
        s = np.sqrt(s * now.curvature / np.maximum(total - s, np.maximum(0.25 * eps * total, tiny)))
    return s

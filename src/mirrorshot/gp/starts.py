"""Starting sites close to the solution, without expectations at the points of a task.

Classes of a few-shot task are exchangeable, and the site of a point and a class depends mostly on whether the point has
that class. Both starts use this:

- `exchangeable_sites` averages the kernel within classes and between classes, and solves that symmetric task. All its
  points are alike, so this costs a few evaluations of the moments at one point per task.
- `AmortisedSites` is a linear map from cheap features of a point to its site, learned from solved tasks.
"""

import math
from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from mirrorshot.gp.gaussian import GaussianSites, SolvedTasks
from mirrorshot.gp.objective import Problem, make_problem
from mirrorshot.softmax.arrays import (
    Array,
    arange,
    as_type,
    at_least,
    at_most,
    diagonal,
    double,
    eye,
    log_softmax,
    namespace,
)  # fmt: skip
from mirrorshot.softmax.moments import softmax_moments

_ITERATIONS = 12
_SHORTEST = 0.02  # smallest fraction of a mirror step


def exchangeable_sites(problem: Problem) -> GaussianSites:
    """Sites of the task with the averaged kernel: one for the own class of a point, one for the others."""
    k0, within, between, shots, n_way = _averaged(problem)
    rest = (n_way - 1) * shots  # points of other classes
    # eigenvalues of the averaged kernel: within a class, between the other classes, and a symmetric 2 x 2 block
    xp = namespace(k0)
    inner = at_least(k0 - within, 0.0)
    common = k0 + (shots - 1) * within
    outer = at_least(common - shots * between, 0.0)
    K_oo, K_tt = common, at_least(common + (rest - shots) * between, 0.0)
    K_ot = xp.sqrt(shots * rest) * between
    K_ot = xp.minimum(abs(K_ot), xp.sqrt(K_oo * K_tt)) * xp.sign(K_ot)
    det_K = at_least(K_oo * K_tt - K_ot * K_ot, 0.0)
    root_o, root_t = xp.sqrt(shots), xp.sqrt(rest)

    zero = xp.zeros_like(k0)
    b_o, b_t, w_o, w_t = zero, zero, zero, zero
    own = xp.zeros_like(problem.class_mask)
    own[:, 0] = True
    exists = arange(own, own.shape[1]) < n_way[:, None]
    rho = xp.full_like(k0, 0.5)
    last_o, last_t, slope = zero, zero, zero
    for _ in range(_ITERATIONS):
        # (K^-1 + W)^-1 = (K + det(K) adj W) / det(I + K W) for 2 x 2 matrices, K possibly singular
        det = 1 + K_oo * w_o + K_tt * w_t + det_K * w_o * w_t
        S_oo, S_tt, S_ot = (K_oo + det_K * w_t) / det, (K_tt + det_K * w_o) / det, K_ot / det
        to_o, to_t = S_ot * root_t / root_o, S_ot * root_o / root_t
        m_o, m_t = S_oo * b_o + to_o * b_t, to_t * b_o + S_tt * b_t
        v_o = (1 - 1 / shots) * inner / (1 + inner * w_o) + S_oo / shots
        v_t = (
            (1 - 1 / shots) * inner / (1 + inner * w_t)
            + (1 - 1 / (n_way - 1)) / shots * outer / (1 + outer * w_t)
            + S_tt / rest
        )
        mean = xp.where(own, m_o[:, None], m_t[:, None])
        var = at_least(xp.where(own, v_o[:, None], v_t[:, None]), 0.0)
        moments = softmax_moments(mean, var, exists, max_std=problem.max_std)
        prob, curvature = moments.prob, moments.curvature
        d_o, d_t = 1 - prob[:, 0] + curvature[:, 0] * m_o - b_o, -prob[:, 1] + curvature[:, 1] * m_t - b_t
        c_o, c_t = curvature[:, 0] - w_o, curvature[:, 1] - w_t
        # secant rule: choose rho at the zero of the slope of the bound along the last step
        pull_o, pull_t = d_o - c_o * m_o, d_t - c_t * m_t
        move_o, move_t = S_oo * pull_o + to_o * pull_t, to_t * pull_o + S_tt * pull_t
        after = shots * last_o * move_o + rest * last_t * move_t
        falls = after < slope
        rho = xp.where(falls, rho * slope / xp.where(falls, slope - after, 1.0), rho)
        rho = at_most(at_least(rho, _SHORTEST), 1.0)
        last_o, last_t, slope = pull_o, pull_t, shots * pull_o * move_o + rest * pull_t * move_t
        b_o, b_t, w_o, w_t = b_o + rho * d_o, b_t + rho * d_t, w_o + rho * c_o, w_t + rho * c_t
    return _spread(problem, b_o, b_t, w_o, w_t)


def _spread(problem: Problem, b_o: Array, b_t: Array, w_o: Array, w_t: Array) -> GaussianSites:
    """Give every point of a task the values for its own class and for the others."""
    keep = problem.weight[:, None, :] * problem.class_mask[:, :, None]
    own = problem.Y > 0
    xp = namespace(own)
    shift = xp.where(own, b_o[:, None, None], b_t[:, None, None])
    precision = xp.where(own, w_o[:, None, None], w_t[:, None, None])
    return GaussianSites(keep * shift, keep * precision)


def _averaged(problem: Problem) -> tuple[Array, Array, Array, Array, Array]:
    """Mean prior variance, mean covariance within and between classes, mean shots and number of classes, each (T,)."""
    K, xp = problem.K.mean(1), namespace(problem.K)
    Y = problem.Y * problem.weight[:, None, :]
    n = at_least(problem.weight.sum(-1), 1.0)
    k0 = (problem.weight * diagonal(K)).sum(-1) / n
    sums = ((Y @ K) * Y).sum((-2, -1))
    counts = Y.sum(-1)
    # a point of weight a counts as a equal points, which form pairs too
    pairs_within = (counts * counts).sum(-1) - problem.weight.sum(-1)
    total = ((problem.weight[:, None] @ K)[:, 0] * problem.weight).sum(-1)
    pairs_between = n * n - (counts * counts).sum(-1)
    within = xp.where(pairs_within > 0, (sums - k0 * n) / at_least(pairs_within, 1e-6), k0)
    between = xp.where(pairs_between > 0, (total - sums) / at_least(pairs_between, 1e-6), 0.0)
    n_way = at_least(as_type(problem.class_mask.sum(-1), K), 2.0)
    return k0, within, between, at_least(n / n_way, 1.0), n_way


class AmortisedSites(NamedTuple):
    """A linear map from features of (point, class) to its site, learned from solved tasks.

    The features come from the posterior mean with the average `alpha` at every point. The map corrects the sites of
    points deep inside their class and of points among other classes.

    Attributes:
        strength: average of `alpha` for a point's own class.
        own: coefficients for a point's own class, (F, 2): columns shift and precision.
        other: coefficients for the other classes, (F, 2).
    """

    strength: Float[Array, ""]
    own: Float[Array, "F 2"]
    other: Float[Array, "F 2"]

    def sites(self, problem: Problem) -> GaussianSites:
        """Starting sites for new tasks, at the cost of one product with the kernel."""
        keep = problem.weight[:, None, :] * problem.class_mask[:, :, None]
        features = _features(problem, self.strength)
        value = namespace(keep).where((problem.Y > 0)[..., None], features @ self.own, features @ self.other)
        return GaussianSites(keep * value[..., 0], keep * at_least(value[..., 1], 0.0))


def amortise(
    K: Float[Array, "T _ N N"],
    y: Int[Array, "T N"],
    posterior: SolvedTasks,
    *,
    weight: Float[Array, "T N"] | None = None,
    class_mask: Bool[Array, "T C"] | None = None,
) -> AmortisedSites:
    """Fit `AmortisedSites` to solved tasks by least squares.

    The posterior is the converged result of `mirror_descent` or `steps.solve`; other arguments are as in the former.
    """
    sites, alpha = posterior.sites, posterior.alpha
    problem = make_problem(K, y, posterior.mean.shape[1], weight, class_mask, None, validate=True)
    real = (problem.weight[:, None, :] * problem.class_mask[:, :, None]) > 0
    own, other = real & (problem.Y > 0), real & (problem.Y == 0)
    strength = alpha[own].mean()
    # the features are nearly collinear: in single precision the normal equations have one correct digit
    xp = namespace(strength)
    features = double(_features(problem, strength))
    target = double(xp.stack([sites.shift, sites.precision], -1))
    ridge = 1e-6 * eye(features, features.shape[-1])

    def solve(chosen: Array) -> Array:
        x, t = features[chosen], target[chosen]
        return as_type(xp.linalg.solve(x.mT @ x / len(x) + ridge, x.mT @ t / len(x)), alpha)

    return AmortisedSites(strength, solve(own), solve(other))


def _features(problem: Problem, strength: Array) -> Float[Array, "T C N F"]:
    """1, approximate class probability p, p (1 - p), scaled mean and its products with p (1 - p) and itself."""
    xp = namespace(problem.K)
    n_way = as_type(problem.class_mask.sum(-1), problem.K)[:, None, None]
    pull = strength * (problem.Y - (1 - problem.Y) / at_least(n_way - 1, 1.0))
    pull = pull * problem.weight[:, None, :] * problem.class_mask[:, :, None]
    mean = (problem.K @ pull[..., None])[..., 0]
    prior_var = diagonal(problem.K)
    score = xp.where(problem.class_mask[:, :, None], mean / xp.sqrt(1 + prior_var / 4), -math.inf)
    p = xp.exp(log_softmax(score.mT)).mT
    spread = p * (1 - p)
    scaled = mean / xp.sqrt(1 + prior_var)
    columns = [xp.ones_like(p), p, spread, scaled, scaled * spread, scaled * scaled]
    return xp.stack(columns, -1)

"""Which items to label next."""

import math

from jaxtyping import Float

from mirrorshot.gp.gaussian import GaussianPosterior, root_of
from mirrorshot.softmax.arrays import Array, at_least, diagonal, namespace, solve_lower, trues
from mirrorshot.softmax.moments import softmax_moments

_CHUNK_ELEMENTS = 2**22  # covariances of the pool that are held at a time


def suggest(
    K: Float[Array, "1 _ M M"], K_cross: Float[Array, "1 _ N M"], posterior: GaussianPosterior, k: int
) -> list[int]:
    """Choose `k` points of a pool whose labels would make the predictions of the whole pool surest.

    With `w_c = E[p_c (1 - p_c)]`, `1/2 sum_c w_c v_c` is the epistemic uncertainty (BALD) of a point to second order.
    A label at `s` is one more site of precision `w_s`, which is the same whatever the label turns out to be, and takes
    `cov(q, s)^2 w_s / (1 + w_s v_s)` off the variance at `q`. The point with the largest reduction over the pool
    is taken. For the next one its latents count as known, so that neither it nor its neighbours are of use again.

    Design note: rejected were the point of largest BALD itself, which tells little about the others (compared in
    `benchmarks/decisions.py`), and conditioning on the site alone: to a model of noisy labels copies remain of use.

    Args:
        K: prior covariance of the pool.
        K_cross: prior covariance of examples and pool.
        posterior: of the examples.
        k: how many, at most the size of the pool.

    Returns:
        Indices into the pool, the most useful first.
    """
    M = K.shape[-1]
    mean = (K_cross.mT @ posterior.alpha[..., None])[..., 0]
    scaled = root_of(posterior.sites.precision)[..., None] * K_cross
    xp, gain = namespace(K), solve_lower(posterior.chol, scaled)  # (1, C, N, M)
    free = trues(K, (M,))
    chosen: list[int] = []
    for _ in range(k):
        var = at_least(diagonal(K) - (gain * gain).sum(-2), 0.0)
        w = softmax_moments(mean.mT, var.mT).curvature.mT
        shrink = w / (1.0 + w * var)
        best = int(xp.where(free, _reduction(K, gain, w, shrink), -math.inf).argmax())
        chosen.append(best)
        free[best] = False
        gain = xp.concatenate([gain, _known(K, gain, var, best)], -2)
    return chosen


def _known(K: Array, gain: Array, var: Array, point: int) -> Float[Array, "1 C 1 M"]:
    """The row of the gain that makes the latents at a point of the pool known: `cov(point, .) / sqrt(v)`."""
    covariance = K[..., point, :] - (gain[..., point, None] * gain).sum(-2)
    v = var[..., point, None]
    unknown = v > 1e-9 * K[..., point, point, None]  # below that it is known already, up to rounding
    xp = namespace(K)
    return xp.where(unknown, covariance / xp.sqrt(xp.where(unknown, v, 1.0)), 0.0)[..., None, :]


def _reduction(K: Array, gain: Array, w: Array, shrink: Array) -> Float[Array, " M"]:
    """`sum_q sum_c w_qc cov_c(q, s)^2 shrink_sc` for every point s of the pool, in chunks of s."""
    size = max(1, _CHUNK_ELEMENTS // (w.shape[1] * w.shape[2]))
    parts = []
    for start in range(0, w.shape[-1], size):
        part = slice(start, start + size)
        covariance = K[..., part, :] - gain[..., part].mT @ gain  # (1, C, S, M)
        reduced = ((covariance * covariance) @ w[..., None])[..., 0] * shrink[..., part]
        parts.append(reduced.sum((0, 1)))
    return namespace(K).concatenate(parts)

"""Choice of the items to label next."""

import math

from jaxtyping import Float

from mirrorshot.gp.weight_space import Posterior
from mirrorshot.softmax.arrays import Array, at_least, diagonal, namespace, trues
from mirrorshot.softmax.moments import softmax_moments

_CHUNK_ELEMENTS = 2**22  # covariances of the pool in memory at a time


def suggest(K: Float[Array, "1 _ M M"], K_cross: Float[Array, "1 _ N M"], posterior: Posterior, k: int) -> list[int]:
    """Return indices of `k` points of a pool whose labels reduce the uncertainty of the whole pool the most.

    With `w_c = E[p_c (1 - p_c)]`, `1/2 sum_c w_c v_c` is the epistemic uncertainty (BALD) of a point to second order. A
    label at `s` is one more site of precision `w_s`, whatever the label is. It reduces the variance at `q` by
    `cov(q, s)^2 w_s / (1 + w_s v_s)`. Each round takes the point with the largest reduction over the pool. Its latents
    then count as known, so that neither it nor its neighbours are useful again. The arguments are the prior covariances
    of the pool and of examples and pool, and the posterior of the examples.

    Rejected: the point of largest BALD, which says little about the others (compared in `benchmarks/decisions.py`), and
    conditioning on the site alone: under a model of noisy labels, copies of a point stay useful.
    """
    M = K.shape[-1]
    mean = (K_cross.mT @ posterior.alpha[..., None])[..., 0]
    xp, gain = namespace(K), posterior.gain_at(K_cross)  # (1, C, R, M)
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
    """Return the row of the gain that makes the latents at a pool point known, `cov(point, .) / sqrt(v)`."""
    covariance = K[..., point, :] - (gain[..., point, None] * gain).sum(-2)
    v = var[..., point, None]
    unknown = v > 1e-9 * K[..., point, point, None]  # a smaller variance is zero up to rounding
    xp = namespace(K)
    return xp.where(unknown, covariance / xp.sqrt(xp.where(unknown, v, 1.0)), 0.0)[..., None, :]


def _reduction(K: Array, gain: Array, w: Array, shrink: Array) -> Float[Array, " M"]:
    """Return `sum_q sum_c w_qc cov_c(q, s)^2 shrink_sc` for every point s of the pool, in chunks of s."""
    size = max(1, _CHUNK_ELEMENTS // (w.shape[1] * w.shape[2]))
    parts = []
    for start in range(0, w.shape[-1], size):
        part = slice(start, start + size)
        covariance = K[..., part, :] - gain[..., part].mT @ gain  # (1, C, S, M)
        reduced = ((covariance * covariance) @ w[..., None])[..., 0] * shrink[..., part]
        parts.append(reduced.sum((0, 1)))
    return namespace(K).concatenate(parts)

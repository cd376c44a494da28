"""What to do with a prediction: how sure it is and why, whether to trust it, and what to label next.

Pure functions of the latents' Gaussian posterior. Every expectation comes from `softmax_moments`, so nothing is sampled
and nothing is random. `FewShotClassifier` offers them with arrays.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from scipy import special
from torch import Tensor

from mirrorshot.gaussian import GaussianPosterior, loo_latent, root_of
from mirrorshot.likelihoods import log_predictive, softmax_moments

_CHUNK_ELEMENTS = 2**22  # covariances of the pool that are held at a time


class EntropyParts(NamedTuple):
    """Uncertainty of a predicted label in nats; `total = aleatoric + epistemic`.

    Attributes:
        total: entropy of the predictive, `H(E[p])`.
        aleatoric: what would remain if the latents were known, `E[H(p)]`.
        epistemic: what more labels can remove: the mutual information of label and latents (BALD).
    """

    total: Float[Tensor, "*batch"]
    aleatoric: Float[Tensor, "*batch"]
    epistemic: Float[Tensor, "*batch"]


def uncertainty(mean: Float[Tensor, "*batch C"], var: Float[Tensor, "*batch C"]) -> EntropyParts:
    """Split the entropy of `E[softmax(f)]`, for independent `f_c ~ N(m_c, v_c)`.

    Args:
        mean: means of the latents; the last dimension is the classes.
        var: their variances.

    Example:
        >>> import torch
        >>> known = uncertainty(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0]))
        >>> round(known.aleatoric.item(), 4), round(known.epistemic.item(), 4)
        (0.6931, 0.0)
    """
    mean = mean - mean.amax(-1, keepdim=True)  # the softmax does not see it, and less cancels
    moments = softmax_moments(mean, var)
    total = torch.special.entr(moments.prob).sum(-1).clamp(min=0.0)
    # E[p_c f_c] = m_c E[p_c] + v_c E[p_c (1 - p_c)], by Stein's lemma
    inner = (mean * moments.prob + var * moments.curvature).sum(-1)
    # E[H(p)] = E[log sum exp f] - sum_c E[p_c f_c]; it lies between zero and the total
    aleatoric = torch.minimum((moments.logsumexp - inner).clamp(min=0.0), total)
    return EntropyParts(total, aleatoric, total - aleatoric)


def novelty(
    mean: Float[Tensor, "*batch C"], var: Float[Tensor, "*batch C"], prior_var: Float[Tensor, "*batch #C"]
) -> Float[Tensor, "*batch"]:
    """How little a point belongs to any class, from 0 to 1: `1 - max_c E[p_c] (1 - v_c / k_c)`.

    The probability of a class counts as far as the examples have determined its latent there: `1 - v_c / k_c` is the
    share of the prior variance that they explain. Probabilities alone compare the classes only with each other.

    Args:
        mean: means of the latents; the last dimension is the classes.
        var: their variances.
        prior_var: the variances before any example.

    Example:
        >>> import torch
        >>> mean, prior = torch.tensor([3.0, 0.0]), torch.tensor([10.0])
        >>> near, far = (novelty(mean, torch.full((2,), v), prior).item() for v in (1.0, 10.0))
        >>> near < 0.5, far
        (True, 1.0)
    """
    positive = prior_var > 0
    # where the prior leaves no freedom the examples say nothing
    kept = torch.where(positive, var / torch.where(positive, prior_var, 1.0), 1.0).clamp(0.0, 1.0)
    believed = softmax_moments(mean, var).prob * (1.0 - kept)
    return (1.0 - believed.amax(-1)).clamp(0.0, 1.0)


def contributions(posterior: GaussianPosterior, K_cross: Float[Tensor, "T _ N M"]) -> Float[Tensor, "T C N M"]:
    """What each example adds to the latent means at new points: `k(x_i, x) alpha_ci`, whose sum over i is the mean."""
    return K_cross * posterior.alpha[..., None]


def loo_log_proba(
    posterior: GaussianPosterior,
    fraction: Float[Tensor, "T N"] | None = None,
    *,
    temperature: float = 1.0,
    leak: Float[Tensor, "T C N"] | None = None,
    prior_mean: Float[Tensor, "T C N"] | None = None,
) -> Float[Tensor, "T N C"]:
    """Logarithm of the probabilities of every class at each example, predicted without it.

    Args:
        posterior: the posterior with all examples.
        fraction: which part of each example is left out, as in `loo_latent`. None: all of it.
        temperature: that of the predictive.
        leak: added to the means, see `selection.centre_leak`.
        prior_mean: mean of the prior, added to the means too; None is zero.
    """
    mean, var = loo_latent(posterior, fraction)
    for shift in (leak, prior_mean):
        mean = mean if shift is None else mean + shift
    return log_predictive(mean.mT, var.mT, temperature=temperature)


class Effects(NamedTuple):
    """What each example does to the latents at new points, each (T, C, N, M).

    Attributes:
        mean: what it adds to the mean; the mean without it is lower by that.
        var: what it takes off the variance; the variance without it is higher by that.
    """

    mean: Float[Tensor, "T C N M"]
    var: Float[Tensor, "T C N M"]


def effects(
    posterior: GaussianPosterior, K_cross: Float[Tensor, "T _ N M"], fraction: Float[Tensor, "T N"] | None = None
) -> Effects:
    """What would change at new points without one example, in closed form, the other sites held.

    With `k_i(x)` the posterior covariance of the point and example i, and `r_i = 1 - w_i Sigma_ii` its slack:
    `k_i alpha_i / r_i` for the mean and `k_i^2 w_i / r_i` for the variance.

    Args:
        posterior: of the examples.
        K_cross: prior covariance of examples and new points.
        fraction: which part of each example is left out, as in `loo_latent`. None: all of it.
    """
    w = posterior.sites.precision
    part = w.new_ones(()) if fraction is None else fraction[:, None, :]
    scaled = torch.linalg.solve_triangular(posterior.chol, root_of(w)[..., None] * K_cross, upper=False)
    covariance = K_cross - posterior.gain.mT @ scaled
    left = (part / ((1 - part) + part * posterior.slack))[..., None]
    return Effects(covariance * posterior.alpha[..., None] * left, covariance.square() * w[..., None] * left)


def kept_without(
    y: Int[Tensor, " N"], weight: Float[Tensor, " N"], removed: Float[Tensor, " N"], n_way: int
) -> Bool[Tensor, " N"]:
    """Whether the class of an example still has one when the weight `removed` of it is left out.

    Example:
        >>> import torch
        >>> kept_without(torch.tensor([0, 0, 1]), torch.ones(3), torch.ones(3), 2)
        tensor([ True,  True, False])
    """
    counts = torch.zeros(n_way, dtype=weight.dtype, device=weight.device).index_add(0, y, weight)
    return counts[y] - removed > 1e-9


def scores_needed(coverage: float) -> int:
    """The fewest scores with which a conformal set of that coverage leaves out anything at all.

    Example:
        >>> scores_needed(0.9), scores_needed(0.5)
        (9, 1)
    """
    return math.ceil(1.0 / (1.0 - coverage) - 1e-9) - 1


def conformal_threshold(
    score: Float[Tensor, " N"], weight: Float[Tensor, " N"], coverage: float, *, interpolate: bool = True
) -> float:
    """The score that a share `coverage` of exchangeable new points reaches: the conformal quantile, interpolated.

    A new point falls with equal chance between any two of the `n` sorted scores, so a share `j / (n + 1)` lies below
    the j-th of them. The position `(n + 1) (1 - coverage)` is seldom whole; between two scores the threshold is
    interpolated. The usual lower one covers up to `1 / (n + 1)` more than asked, which is much for few examples.

    Args:
        score: scores of points of known label; large is typical.
        weight: how many points each stands for.
        coverage: between 0 and 1.
        interpolate: False takes the lower of the two scores, which covers at least as much as asked.

    Example:
        >>> import torch
        >>> round(conformal_threshold(torch.arange(1.0, 20.0), torch.ones(19), 0.9), 6)
        2.0
    """
    order = score.argsort(stable=True)
    rank = weight[order].cumsum(0)
    position = (1.0 - coverage) * (float(rank[-1]) + 1.0)
    upper = min(int((rank < position - 1e-9).sum()), len(order) - 1)
    lower = max(upper - 1, 0)
    # the j-th of equal points has rank j: within the weight of one example the score is constant
    size = float(weight[order[upper]])
    share = min(max((position - float(rank[upper]) + size) / min(size, 1.0), 0.0), 1.0)
    share = share if interpolate or share >= 1.0 - 1e-9 else 0.0
    low, high = float(score[order[lower]]), float(score[order[upper]])
    return low + share * (high - low)


def expected_risk_threshold(
    top: Float[Tensor, " N"], weight: Float[Tensor, " N"], target_risk: float
) -> tuple[float, float]:
    """The lowest threshold of the top probability above which an error rate of at most `target_risk` is expected.

    A calibrated prediction of probability p is wrong with probability 1 - p. So the lowest `t` is taken for which

        mean of (1 - p_i) over the points with p_i >= t  <=  target_risk,

    and `t = 1 - target_risk` where that is lower still: whatever reaches it keeps to the target by itself.

    Args:
        top: probability of the predicted label of each point; there may be none.
        weight: how many points each stands for.
        target_risk: between 0 and 1.

    Returns:
        Threshold, and the mean there; the target if no point reaches the threshold.

    Example:
        >>> import torch
        >>> threshold, risk = expected_risk_threshold(torch.tensor([0.99, 0.9, 0.7, 0.4]), torch.ones(4), 0.1)
        >>> round(threshold, 3), round(risk, 3)
        (0.9, 0.055)
    """
    order = top.argsort(descending=True, stable=True)
    expected = (weight * (1.0 - top))[order].cumsum(0) / weight[order].cumsum(0)
    passed = (expected <= target_risk + 1e-12) & _ends(top[order])
    if not bool(passed.any()):
        return 1.0 - target_risk, target_risk
    last = int(passed.nonzero()[-1])
    return min(float(top[order[last]]), 1.0 - target_risk), float(expected[last])


def errors_tail(top: Float[Tensor, " N"], wrong: Bool[Tensor, " N"], weight: Float[Tensor, " N"]) -> float:
    """How probable it is that at least as many predictions are wrong as are, if their probabilities are right.

    The binomial tail at the mean of `1 - p`; the number of errors of points of different `p` varies less than that.

    Example:
        >>> import torch
        >>> top = torch.full((10,), 0.9)
        >>> round(errors_tail(top, torch.arange(10) < 4, torch.ones(10)), 3)
        0.013
    """
    n, e = float(weight.sum()), float((weight * wrong).sum())
    if e == 0.0:
        return 1.0
    rate = float((weight * (1.0 - top)).sum()) / n
    return float(special.betainc(e, n - e + 1.0, rate))


def examples_needed(target_risk: float, delta: float) -> int:
    """The fewest examples, all predicted rightly, from which `risk_threshold` can find a threshold.

    Example:
        >>> examples_needed(0.05, 0.05)
        59
    """
    return math.ceil(math.log(delta) / math.log1p(-target_risk) - 1e-9)


def risk_threshold(
    top: Float[Tensor, " N"],
    wrong: Bool[Tensor, " N"],
    weight: Float[Tensor, " N"],
    target_risk: float,
    delta: float,
) -> tuple[float, float]:
    """The lowest threshold of the top probability above which the error rate is at most `target_risk`, and its bound.

    Of `k` points above a threshold `e` are wrong; the bound is the exact upper confidence bound of Clopper and Pearson.
    Thresholds are tested from the highest that could pass down to the first that fails, which keeps the confidence of
    all tests together (fixed sequence testing).

    Args:
        top: probability of the predicted label of each point.
        wrong: whether that label is wrong.
        weight: how many points each stands for.
        target_risk: between 0 and 1.
        delta: probability that the promise fails.

    Returns:
        Threshold and bound; an infinite threshold and a bound of one if none will do.

    Example:
        >>> import torch
        >>> top, wrong = torch.linspace(0.3, 0.99, 40), torch.arange(40) < 3
        >>> threshold, risk = risk_threshold(top, wrong, torch.ones(40), 0.1, 0.1)
        >>> round(threshold, 3), round(risk, 3)
        (0.335, 0.099)
    """
    order = top.argsort(descending=True, stable=True)
    k = weight[order].cumsum(0)
    e = (weight * wrong)[order].cumsum(0)
    right = (k - e).clamp(min=1e-9)
    exact = torch.as_tensor(special.betaincinv((e + 1.0).numpy(), right.numpy(), 1.0 - delta), dtype=k.dtype)
    bound = torch.where(k - e > 1e-9, exact, 1.0)
    ends = _ends(top[order])
    passed = ends & (bound <= target_risk + 1e-12)
    failed = ends & ~passed & (k >= examples_needed(target_risk, delta) - 1e-9)
    passed = passed & (failed.cumsum(0) == 0)
    if not bool(passed.any()):
        return math.inf, 1.0
    last = int(passed.nonzero()[-1])
    return float(top[order[last]]), float(bound[last])


def _ends(ordered: Float[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Where a threshold can lie: points of equal probability are accepted together."""
    return torch.cat([ordered[1:] < ordered[:-1], torch.ones(min(len(ordered), 1), dtype=torch.bool)])


def suggest(
    K: Float[Tensor, "1 _ M M"], K_cross: Float[Tensor, "1 _ N M"], posterior: GaussianPosterior, k: int
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
    gain = torch.linalg.solve_triangular(posterior.chol, scaled, upper=False)  # (1, C, N, M)
    free = torch.ones(M, dtype=torch.bool, device=K.device)
    chosen: list[int] = []
    for _ in range(k):
        var = (K.diagonal(dim1=-2, dim2=-1) - gain.square().sum(-2)).clamp(min=0.0)
        w = softmax_moments(mean.mT, var.mT).curvature.mT
        shrink = w / (1.0 + w * var)
        best = int(_reduction(K, gain, w, shrink).masked_fill(~free, -torch.inf).argmax())
        chosen.append(best)
        free[best] = False
        gain = torch.cat([gain, _known(K, gain, var, best)], -2)
    return chosen


def _known(K: Tensor, gain: Tensor, var: Tensor, point: int) -> Float[Tensor, "1 C 1 M"]:
    """The row of the gain that makes the latents at a point of the pool known: `cov(point, .) / sqrt(v)`."""
    covariance = K[..., point, :] - (gain[..., point, None] * gain).sum(-2)
    v = var[..., point, None]
    unknown = v > 1e-9 * K[..., point, point, None]  # below that it is known already, up to rounding
    return torch.where(unknown, covariance / torch.where(unknown, v, 1.0).sqrt(), 0.0)[..., None, :]


def _reduction(K: Tensor, gain: Tensor, w: Tensor, shrink: Tensor) -> Float[Tensor, " M"]:
    """`sum_q sum_c w_qc cov_c(q, s)^2 shrink_sc` for every point s of the pool, in chunks of s."""
    size = max(1, _CHUNK_ELEMENTS // (w.shape[1] * w.shape[2]))
    parts = []
    for start in range(0, w.shape[-1], size):
        part = slice(start, start + size)
        covariance = K[..., part, :] - gain[..., part].mT @ gain  # (1, C, S, M)
        reduced = (covariance.square() @ w[..., None])[..., 0] * shrink[..., part]
        parts.append(reduced.sum((0, 1)))
    return torch.cat(parts)

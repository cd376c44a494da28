"""Choice of the hyper-parameters and the predictive temperature from the support alone.

A candidate is a kernel and a centre; its leave-one-out predictive likelihood follows in closed form from the sites. The
temperature sharpens the predictive: under a Gaussian-process prior a new point keeps so much variance that raw
probabilities are far too modest for every outputscale (the variance grows with it). The temperature has a prior
(`mirrorshot.classifier.prior`), because a handful of points does not determine it, and one point per class gives no
information about it.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mirrorshot.classifier.decisions import loo_latents
from mirrorshot.classifier.link import Link, moderated, moderation_of
from mirrorshot.classifier.prior import (
    BROAD_TEMPERATURE,
    OTHER_TEMPERATURE,
    TABLE_TEMPERATURE,
    TemperaturePrior,
    has_few_features,
)
from mirrorshot.gp.kernels import Cosine, Kernel, ScaledKernel, make_kernel
from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.weight_space import Posterior
from mirrorshot.softmax.arrays import NDArray, diagonal, log_softmax, logsumexp

DEFAULT_OUTPUTSCALE = {"rbf": 30.0, "matern": 30.0, "linear": 10.0, "polynomial": 10.0}
OUTPUTSCALES = (3.0, 10.0, 30.0, 100.0)
LENGTHSCALES = (1.0, 0.5)  # in units of the root mean square distance of two examples

_USUAL_SPREAD, _LEAST_SPREAD, _NO_SPREAD = 0.15, 0.03, 1e-6  # of the cosines between classes
_CHUNK_ELEMENTS = 2**15  # probabilities that are tempered at a time: they fit into a processor's cache
_TEMPERATURES = np.geomspace(0.03, 20.0, 80)


class Support(NamedTuple):
    """The labelled examples of one task.

    Attributes:
        x: features.
        y: labels 0 .. n_way - 1.
        weight: how often each example counts, positive.
        n_way: number of classes; some may have no example.
        prior_mean: mean of the prior of the latents; None is zero.
    """

    x: Float[NDArray[np.float64], "1 N D"]
    y: Int[NDArray[np.int64], " N"]
    weight: Float[NDArray[np.float64], " N"]
    n_way: int
    prior_mean: Float[NDArray[np.float64], "1 C N"] | None = None


class Candidate(NamedTuple):
    """A kernel, the centre of its features, its covariances, its outputscale and its log prior probability."""

    kernel: Kernel
    centre: Float[NDArray[np.float64], "1 1 D"]
    K: Float[NDArray[np.float64], "1 _ N N"]
    outputscale: float
    log_prior: float


class Selection(NamedTuple):
    """Result of `select`.

    Attributes:
        chosen: index of the chosen candidate.
        link: its link, with the mean and standard deviation of the log temperature.
        log_likelihood: leave-one-out predictive log-likelihood of each candidate at its best temperature, (G,).
        evidence: logarithm of the leave-one-out likelihood of the chosen candidate, averaged over the prior of the
            temperature, with equal weight for every class; `fit` compares kernels by it. Rejected: equal weight for
            every example. With 20 examples of one class and 3 of others it prefers kernels that learn little but the
            counts.
    """

    chosen: int
    link: Link
    log_likelihood: Float[NDArray[np.float64], " G"]
    evidence: float


def make_candidates(
    support: Support,
    name: str,
    centre: Float[NDArray[np.float64], "1 1 D"],
    outputscale: float | None,
    lengthscale: float | None,
) -> list[Candidate]:
    """Return the named kernel with every outputscale and lengthscale that is not given."""
    stationary = name in ("rbf", "matern")
    unit = _rms_distance(support) if stationary else 1.0
    scales = OUTPUTSCALES if outputscale is None else (outputscale,)
    lengths = [unit * factor for factor in LENGTHSCALES] if lengthscale is None else [lengthscale]
    candidates = []
    for length in lengths if stationary else [1.0]:
        options: dict[str, Any] = {"centre": True}
        if stationary:
            options["lengthscale"] = length
        if name == "polynomial":
            options["normalise"] = True
        unscaled = make_kernel(name, **options)(support.x, centre=centre)
        size = float((support.weight * diagonal(unscaled)[0, 0]).sum() / support.weight.sum())
        for scale in scales:
            # the outputscale is the mean prior variance for embeddings of any size
            factor = scale / size if size > 0 else scale
            kernel = make_kernel(name, outputscale=factor, **options)
            assert isinstance(kernel, ScaledKernel)
            K = kernel.outputscale[0] * unscaled  # equal to kernel(support.x), bit by bit
            log_prior = -0.5 * math.log(scale / 10.0) ** 2 if outputscale is None else 0.0
            candidates.append(Candidate(kernel, centre, K, scale, log_prior))
    return candidates


def choose_centre(support: Support, rule: str, share: float | None = None) -> Float[NDArray[np.float64], "1 1 D"]:
    """Return the centre: zero ("none"), the mean of the features ("mean"), or the mean shrunk towards zero ("auto").

    "auto" multiplies the mean by twice the positive-part James-Stein factor `1 - (variance of the mean) / |mean|^2`, at
    most 1, with the classes as independent draws. Embeddings and pixels, which are far from zero, are centred;
    standardised measurements stay as they are. If `share`, from a prior, is given, it replaces the factor.

    Rejected: the James-Stein factor without doubling, 0.5 to 1 points less accurate on word embeddings at one shot.
    """
    x, weight = support.x[0], support.weight
    mean = (weight[:, None] * x).sum(0) / weight.sum()
    if rule == "none":
        return np.zeros_like(mean)[None, None]
    if rule == "mean":
        return mean[None, None]
    if share is not None:
        return (share * mean)[None, None]
    labelled = one_hot(support.y, support.n_way, x.dtype) * weight
    counts, sums = labelled.sum(1), labelled @ x
    class_means = sums[counts > 0] / counts[counts > 0, None]
    n = len(class_means)
    if n == 1:
        return np.zeros_like(mean)[None, None]  # with one class, its position and a common offset are the same
    variance = np.square(class_means - class_means.mean(0)).sum() / (n * (n - 1))
    factor = min(2.0 * max(1 - variance / max(mean @ mean, np.finfo(x.dtype).tiny), 0.0), 1.0)
    return (factor * mean)[None, None]


def _rms_distance(support: Support) -> float:
    x, weight = support.x[0], support.weight / support.weight.sum()
    spread = (weight[:, None] * np.square(x - weight @ x)).sum()
    distance = math.sqrt(2.0 * float(spread))
    return distance if distance > 0 else 1.0


def centre_share(support: Support, centre: Float[NDArray[np.float64], "1 1 D"]) -> float:
    """Return the length of the centre relative to that of the mean of the examples."""
    mean = (support.weight[:, None] * support.x[0]).sum(0) / support.weight.sum()
    length = float(np.linalg.norm(mean))
    return float(np.linalg.norm(centre)) / length if length > 0 else 0.0


def centre_leak(support: Support, candidate: Candidate, posterior: Posterior) -> Float[NDArray[np.float64], "1 C N"]:
    """Return the change of each leave-one-out latent mean because the centre moves away from the point left out.

    The mean of the examples contains a share of each. Without point i it lies `e_i (x_i - c)` further away from it.
    Seen from there, every other point has moved towards point i, and to first order `cos_ij` grows by
    `e_i (l_i / l_j) (1 - cos_ij^2)`, with `l` the distances from the centre. Without this correction, leave-one-out on
    centred features looks better than it is. Zero for kernels that do not measure angles.
    """
    if not isinstance(candidate.kernel, Cosine) or not candidate.centre.any():
        return np.zeros_like(posterior.alpha)
    total = support.weight.sum()
    removed = np.minimum(support.weight, 1.0)
    left = total - removed
    moved = centre_share(support, candidate.centre) * removed / np.where(left > 0, left, 1.0)
    length = np.linalg.norm((support.x - candidate.centre)[0], axis=-1)
    inverse = np.where(length > 0, 1.0 / np.where(length > 0, length, 1.0), 0.0)
    cosine = candidate.K[0, 0] / candidate.outputscale
    nearer = candidate.outputscale * (moved * length)[:, None] * inverse * (1 - cosine * cosine)
    return np.asarray(posterior.alpha @ nearer.T)


def select(
    support: Support,
    candidates: list[Candidate],
    posteriors: list[Posterior],
    temperature: float | None,
    belief: TemperaturePrior | None = None,
) -> Selection:
    """Choose a candidate and a temperature by leave-one-out predictive likelihood.

    `posteriors` belong to the candidates. If `temperature` is None it is chosen, with the prior `belief` (None: broad).
    """
    y, weight = support.y, support.weight
    counts = np.bincount(y, weight, support.n_way)
    removed = np.minimum(1.0 / weight, 1.0)  # one unit of weight is left out
    log_prior = np.array([c.log_prior for c in candidates])
    shots = float(weight.sum() / (counts > 0).sum())
    n_way, n_features = int((counts > 0).sum()), support.x.shape[-1]
    belief = _broad_belief(candidates[0].kernel, n_features) if belief is None else belief
    centres = np.array(
        [belief.mean(shots, n_way, n_features, c.outputscale, _log_spread(support, c)) for c in candidates]
    )
    grid = _TEMPERATURES if temperature is None else np.array([temperature])
    prior = log_softmax(-0.5 * np.square((np.log(grid) - centres[:, None]) / belief.std))  # (G, K)
    # a point counts only if its class has another example
    counted = weight * (counts[y] - weight * removed > 1e-9)
    moderation = moderation_of(candidates[0].kernel, n_features)
    tempered = []
    for candidate, posterior in zip(candidates, posteriors, strict=True):
        leak = centre_leak(support, candidate, posterior)
        mean, var = loo_latents(posterior, removed[None], leak=leak, prior_mean=support.prior_mean)
        tempered.append(_tempered(moderated(mean[0], var[0], moderation), y, grid))
    likelihood = np.stack([each @ counted for each in tempered])  # (G, K)
    chosen = int((logsumexp(likelihood + prior) + log_prior).argmax())
    share = np.exp(log_softmax(likelihood[chosen] + prior[chosen]))
    centre = float((share * np.log(grid)).sum())
    std = math.sqrt(float((share * np.square(np.log(grid) - centre)).sum()))
    link = Link(math.exp(centre), std if temperature is None else 0.0, moderation)
    fair = tempered[chosen] @ _balanced(counted, y)
    return Selection(chosen, link, likelihood.max(-1), float(logsumexp(fair + prior[chosen])))


def _balanced(counted: Float[NDArray[np.float64], " N"], y: Int[NDArray[np.int64], " N"]) -> NDArray[np.float64]:
    """Return weights with the same total and an equal sum for every class that counts."""
    totals = np.bincount(y, counted)
    return np.asarray(counted * counted.sum() / (np.maximum(totals[y], 1e-300) * max((totals > 0).sum(), 1)))


def _broad_belief(kernel: Kernel, n_features: int) -> TemperaturePrior:
    if not isinstance(kernel, Cosine):
        return OTHER_TEMPERATURE
    return TABLE_TEMPERATURE if has_few_features(n_features) else BROAD_TEMPERATURE


def log_spread(
    cosine: Float[NDArray[np.float64], "N N"],
    y: Int[NDArray[np.int64], " N"],
    weight: Float[NDArray[np.float64], " N"],
) -> float:
    """Return log(s / 0.15), with `s` the standard deviation of the cosines between examples of different classes.

    `s` estimates the noise in the cosines of queries, even from one example of each class. The result is zero, the
    usual value, if all cosines are equal, as with one example of each of two classes.

    Example:
        >>> round(log_spread(np.array([[1, 0.2, 0.5], [0.2, 1, 0.8], [0.5, 0.8, 1]]), np.arange(3), np.ones(3)), 3)
        0.49
    """
    pairs = np.outer(weight, weight) * (y[:, None] != y)
    total = float(pairs.sum()) or 1.0
    deviation = cosine - (pairs * cosine).sum() / total
    spread = math.sqrt(float((pairs * np.square(deviation)).sum()) / total)
    if spread < _NO_SPREAD:
        return 0.0
    return math.log(min(max(spread, _LEAST_SPREAD), 1.0) / _USUAL_SPREAD)


def _log_spread(support: Support, candidate: Candidate) -> float:
    if not isinstance(candidate.kernel, Cosine):
        return 0.0
    return log_spread(candidate.K[0, 0] / candidate.outputscale, support.y, support.weight)


def _tempered(
    scores: Float[NDArray[np.float64], "N C"], y: Int[NDArray[np.int64], " N"], grid: Float[NDArray[np.float64], " K"]
) -> Float[NDArray[np.float64], "K N"]:
    # z_y / tau - log sum_c exp(z_c / tau), relative to the largest score
    highest = scores.max(1)
    own, rest = scores[np.arange(len(y)), y] - highest, scores - highest[:, None]
    found = np.empty((len(grid), len(y)))
    size = max(1, _CHUNK_ELEMENTS // scores.size)
    for i in range(0, len(grid), size):
        rate = 1.0 / grid[i : i + size, None]
        part = rest * rate[..., None]
        found[i : i + size] = rate * own - np.log(np.exp(part, out=part).sum(-1))
    return found

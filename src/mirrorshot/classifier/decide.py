"""Decisions from predictions: uncertainty, novelty, suspicious labels, and examples to label next."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.classifier import decisions
from mirrorshot.classifier.decisions import Uncertainty
from mirrorshot.classifier.fitted import Fitted, PriorMeans, Queries, few_threads
from mirrorshot.classifier.inputs import check_count
from mirrorshot.classifier.memory import check_pool_memory
from mirrorshot.classifier.predict import latents, loo_proba
from mirrorshot.classifier.selection import centre_share
from mirrorshot.gp.gaussian import GaussianSites, condition, loo_latent, predict_latent
from mirrorshot.softmax.arrays import NDArray
from mirrorshot.types import InvalidInputError

_RECENTRED = 64  # up to this many examples, each is left out of the centre when it is predicted from the others


class Suspects(NamedTuple):
    """Examples from the most to the least suspicious.

    Attributes:
        row: their indices among the examples.
        proba: probability of their label, predicted from the other examples.
        label: the most probable label according to the other examples.
    """

    row: NDArray[np.intp]
    proba: NDArray[np.float64]
    label: NDArray[Any]


def uncertainty(fitted: Fitted, x: Queries, prior_mean: PriorMeans) -> Uncertainty:
    """Return the uncertainty of the label of each query."""
    mean, var = latents(fitted, x, prior_mean)
    with few_threads(mean.size):
        return decisions.uncertainty(mean, var, fitted.link.log_proba(mean, var))


def novelty(fitted: Fitted, x: Queries, prior_mean: PriorMeans) -> NDArray[np.float64]:
    """Return the novelty of each query, from 0 (of a known class) to 1."""
    mean, var = latents(fitted, x, prior_mean)
    with few_threads(mean.size):
        return decisions.novelty(mean, var, fitted.prior_var(x)[0].T)


def novelty_threshold(fitted: Fitted, rate: float) -> float:
    """Return the novelty that a share `rate` of the examples exceeds, each predicted from the others.

    With one example of each class it is the largest novelty, because single examples do not show how much items of a
    class differ.
    """
    y, weight = fitted.support.y, fitted.support.weight
    if len(y) < 3:
        return 1.0
    kept = decisions.kept_without(y, weight, weight, fitted.support.n_way)
    with few_threads(len(y) * fitted.support.n_way):
        found = _loo_novelty(fitted)
    if not kept.any():
        return float(found.max())
    return 1.0 - decisions.conformal_threshold(1.0 - found[kept], weight[kept], 1.0 - rate)


def _loo_novelty(fitted: Fitted) -> Float[NDArray[np.float64], " N"]:
    """Return the novelty of each example, predicted from the others.

    The centre contains a share of each example, so that a few others would explain it almost wholly. Up to `_RECENTRED`
    examples, the centre is therefore that of the others; their sites stay.
    """
    x, y, _, _, prior_mean = fitted.support
    if len(y) <= _RECENTRED:
        mean, var, prior_var = (np.concatenate(part) for part in zip(*_recentred(fitted), strict=True))
    else:
        mean, var = (part[0].T for part in loo_latent(fitted.posterior))
        prior_var = fitted.kernel.diagonal(x, centre=fitted.centre)[0].T
    return decisions.novelty(mean if prior_mean is None else mean + prior_mean[0].T, var, prior_var)


def _recentred(fitted: Fitted) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the mean, variance and prior variance of the latents at each example, given the others and their centre."""
    x, weight, sites = fitted.support.x, fitted.support.weight, fitted.posterior.sites
    total, share = weight @ x[0], centre_share(fitted.support, fitted.centre)
    for i in range(len(weight)):
        rest = np.arange(len(weight)) != i
        centre = (share * (total - weight[i] * x[0, i]) / weight[rest].sum())[None, None]
        posterior = condition(
            fitted.kernel(x[:, rest], centre=centre), GaussianSites(sites.shift[..., rest], sites.precision[..., rest])
        )
        cross, prior_var = fitted.kernel.cross(x[:, rest], x[:, [i]], centre=centre)
        mean, var = predict_latent(posterior, cross, prior_var)
        yield mean[..., 0], var[..., 0], prior_var[..., 0]


def suspects(fitted: Fitted) -> Suspects:
    """Rank the examples by the probability of their label, predicted without them."""
    y, weight = fitted.support.y, fitted.support.weight
    prob = loo_proba(fitted, np.ones_like(weight))
    kept = decisions.kept_without(y, weight, weight, fitted.support.n_way)
    own = prob[np.arange(len(y)), y]
    order = np.flatnonzero(kept)[own[kept].argsort(kind="stable")]
    best = prob.argmax(1)[order]
    return Suspects(np.flatnonzero(fitted.used)[order], own[order], fitted.classes[best])


def suggest(fitted: Fitted, pool: Queries, k: int) -> NDArray[np.intp]:
    """Return the indices of the `k` queries of a pool whose labels are the most informative."""
    if fitted.support.prior_mean is not None:
        raise InvalidInputError("Expected a classifier without prior scores, which `suggest` does not support.")
    check_count("k", k, pool.shape[1], "the size of the pool")
    check_pool_memory(pool.shape[1])
    with few_threads(pool.shape[1] * fitted.support.n_way):
        K = fitted.kernel(fitted.map(pool), centre=fitted.centre)
        return np.asarray(decisions.suggest(K, fitted.cross(pool)[0], fitted.posterior, int(k)), dtype=np.intp)

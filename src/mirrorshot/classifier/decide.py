"""Decisions on the predictions of a fitted classifier: uncertainty, novelty, suspicious labels, what to label next."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mirrorshot.classifier import decisions, edit
from mirrorshot.classifier.fit import Settings
from mirrorshot.classifier.fitted import Fitted, few_threads
from mirrorshot.classifier.inputs import check_count
from mirrorshot.classifier.predict import latents, loo_proba
from mirrorshot.gp.gaussian import loo_latent
from mirrorshot.types import InvalidInputError

_MOST_SINGLES = 30  # single examples that are predicted from the others by fits without them


class Uncertainty(NamedTuple):
    """Uncertainty of predicted labels in nats, each of shape (n_queries,); `total = aleatoric + epistemic`.

    Attributes:
        total: entropy of the predictive.
        aleatoric: what would remain however many examples there were: the classes overlap.
        epistemic: what more examples can remove (BALD, the mutual information of the label and the latents).
    """

    total: NDArray[np.float64]
    aleatoric: NDArray[np.float64]
    epistemic: NDArray[np.float64]


class Suspects(NamedTuple):
    """Examples from the most to the least suspicious.

    Attributes:
        row: their indices in the `X` of `fit`.
        proba: probability of the label they have, predicted from the other examples.
        label: the most probable label according to the other examples.
    """

    row: NDArray[np.intp]
    proba: NDArray[np.float64]
    label: NDArray[Any]


def uncertainty(
    fitted: Fitted, x: Float[NDArray[np.float64], "1 M D"], prior_mean: Float[NDArray[np.float64], "1 C M"]
) -> Uncertainty:
    """Return the uncertainty of the label of each query, before the temperature."""
    mean, var = latents(fitted, x, prior_mean)
    with few_threads(mean.size):
        return Uncertainty(*decisions.uncertainty(mean, var))


def novelty(
    fitted: Fitted, x: Float[NDArray[np.float64], "1 M D"], prior_mean: Float[NDArray[np.float64], "1 C M"]
) -> NDArray[np.float64]:
    """Return how much each query looks like none of the classes."""
    mean, var = latents(fitted, x, prior_mean)
    with few_threads(mean.size):
        return decisions.novelty(mean, var, fitted.prior_var(x)[0].T)


def novelty_threshold(fitted: Fitted, settings: Settings, rate: float) -> float:
    """Return the novelty that a share `rate` of the examples exceeds, each predicted from the others.

    With one example of each class: the largest novelty of an example for a classifier of the other classes.
    """
    x, y, weight, n_way, prior_mean = fitted.support
    kept = decisions.kept_without(y, weight, weight, n_way)
    if not kept.any():
        return _novelty_between_classes(fitted, settings)
    with few_threads(len(y) * n_way):
        mean, var = loo_latent(fitted.posterior)
        mean = mean if prior_mean is None else mean + prior_mean
        prior_var = fitted.kernel.diagonal(x, centre=fitted.centre)
        found = decisions.novelty(mean[0].T, var[0].T, prior_var[0].T)
    return 1.0 - decisions.conformal_threshold(1.0 - found[kept], weight[kept], 1.0 - rate)


def _novelty_between_classes(fitted: Fitted, settings: Settings) -> float:
    """Return the largest novelty of an example for the other classes; 1 with two classes, or more than thirty.

    Single examples do not show how much items of a class differ, but how much the classes do: each of them is novel to
    a classifier that has never seen its class. Every class costs a fit.
    """
    index = np.flatnonzero(fitted.used)
    if not 3 <= len(index) <= _MOST_SINGLES:
        return 1.0
    return max(_novelty_for_others(fitted, settings, i) for i in index)


def _novelty_for_others(fitted: Fitted, settings: Settings, index: np.intp) -> float:
    others = edit.reduce(fitted, settings, index, drop_class=True)
    x, prior = fitted.examples.x[None, index, None], np.zeros((1, len(others.classes), 1))
    if fitted.examples.prior is not None:
        prior = fitted.examples.prior[index, np.isin(fitted.classes, others.classes)][None, :, None]
    return float(novelty(others, x, prior)[0])


def suspects(fitted: Fitted) -> Suspects:
    """Rank the examples by the probability of their label, predicted without them."""
    y, weight = fitted.support.y, fitted.support.weight
    prob = loo_proba(fitted, np.ones_like(weight))
    kept = decisions.kept_without(y, weight, weight, fitted.support.n_way)
    own = prob[np.arange(len(y)), y]
    order = np.flatnonzero(kept)[own[kept].argsort(kind="stable")]
    best = prob.argmax(1)[order]
    return Suspects(np.flatnonzero(fitted.used)[order], own[order], fitted.classes[best])


def suggest(fitted: Fitted, pool: Float[NDArray[np.float64], "1 M D"], k: int) -> NDArray[np.intp]:
    """Return the indices of the `k` queries of a pool whose labels would teach most."""
    if fitted.support.prior_mean is not None:
        raise InvalidInputError("Expected a classifier without prior scores, which `suggest` does not support.")
    check_count("k", k, pool.shape[1], "the size of the pool")
    with few_threads(pool.shape[1] * fitted.support.n_way):
        K = fitted.kernel(fitted.map(pool), centre=fitted.centre)
        return np.asarray(decisions.suggest(K, fitted.cross(pool)[0], fitted.posterior, int(k)), dtype=np.intp)

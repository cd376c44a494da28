"""Explanations of predictions: contributions of the examples, and predictions without them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.classifier import decisions
from mirrorshot.classifier.fitted import Fitted, PriorMeans, Queries, few_threads
from mirrorshot.classifier.inputs import check_count
from mirrorshot.classifier.predict import log_proba
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.softmax.arrays import NDArray


class Evidence(NamedTuple):
    """The examples with the largest contributions to a prediction, the largest first, each of shape (n_queries, k).

    Attributes:
        row: their indices among the examples.
        weight: their contribution to the latent of the predicted class (exact, see `explain`).
        influence: increase of the probability of the predicted class by the example.
    """

    row: NDArray[np.intp]
    weight: NDArray[np.float64]
    influence: NDArray[np.float64]


def contributions(fitted: Fitted, x: Queries) -> NDArray[np.float64]:
    """Return the contribution of each example to the latent of each class, (M, C, n_examples)."""
    with few_threads(x.shape[1] * fitted.support.n_way):
        added = decisions.contributions(fitted.posterior, fitted.cross(x)[0])[0].transpose(2, 0, 1)
    return _for_all_examples(fitted, added)


def influence(fitted: Fitted, x: Queries, prior_mean: PriorMeans) -> NDArray[np.float64]:
    """Return the probability of each class minus its probability without each example, (M, C, n_examples)."""
    with few_threads(x.shape[1] * fitted.support.n_way * len(fitted.support.y)):
        cross, prior_var = fitted.cross(x)
        mean, var = predict_latent(fitted.posterior, cross, prior_var)
        mean = mean + prior_mean
        effect = decisions.effects(fitted.posterior, cross)
        # (C, N, M) -> (M, N, C)
        without = _proba(fitted, (mean[:, :, None] - effect.mean)[0], (var[:, :, None] + effect.var)[0])
        whole = _proba(fitted, mean[0][:, None], var[0][:, None])
    return _for_all_examples(fitted, (whole - without).transpose(0, 2, 1))


def evidence(fitted: Fitted, x: Queries, prior_mean: PriorMeans, k: int) -> Evidence:
    """Return the `k` examples with the largest contributions to the predicted class of each query."""
    check_count("k", k, len(fitted.used), "the number of examples")
    best = log_proba(fitted, x, prior_mean).argmax(1)[:, None, None]
    parts = contributions(fitted, x), influence(fitted, x, prior_mean)
    weight, change = (np.take_along_axis(part, best, 1)[:, 0] for part in parts)
    row = (-weight).argsort(1, kind="stable")[:, :k]
    return Evidence(row, np.take_along_axis(weight, row, 1), np.take_along_axis(change, row, 1))


def _proba(
    fitted: Fitted, mean: Float[NDArray[np.float64], "C N M"], var: Float[NDArray[np.float64], "C N M"]
) -> Float[NDArray[np.float64], "M N C"]:
    latents = (part.transpose(2, 1, 0) for part in (mean, var))
    return np.asarray(np.exp(fitted.link.log_proba(*latents)))


def _for_all_examples(fitted: Fitted, part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Insert zeros for examples of weight zero."""
    whole = np.zeros((*part.shape[:2], len(fitted.used)))
    whole[..., fitted.used] = part
    return whole

"""Predictions of a fitted classifier: latents, probabilities, and leave-one-out probabilities."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from mirrorshot.classifier import decisions
from mirrorshot.classifier.fitted import Fitted, PriorMeans, Queries, few_threads
from mirrorshot.classifier.inputs import query_prior_mean
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.softmax.arrays import NDArray

_QUERY_ELEMENTS = 2**24  # queries are predicted in chunks of at most this many covariances


def queries(fitted: Fitted, x: Queries, prior_scores: ArrayLike | None) -> tuple[Fitted, Queries, PriorMeans]:
    """Return the arguments of the functions below: the fit, the queries, and their prior means."""
    support = fitted.support
    is_wanted = support.prior_mean is not None
    return fitted, x, query_prior_mean(prior_scores, x.shape[1], support.n_way, is_wanted=is_wanted)


def latents(
    fitted: Fitted, x: Queries, prior_mean: PriorMeans
) -> tuple[Float[NDArray[np.float64], "M C"], Float[NDArray[np.float64], "M C"]]:
    """Return mean and variance of the latents at queries, in chunks of bounded memory."""
    n_way = fitted.support.n_way
    chunk = max(1, _QUERY_ELEMENTS // (n_way * len(fitted.support.y)))
    with few_threads(x.shape[1] * n_way):
        pieces = [x[:, i : i + chunk] for i in range(0, max(x.shape[1], 1), chunk)]
        parts = [predict_latent(fitted.posterior, *fitted.cross(piece)) for piece in pieces]
        mean, var = parts[0] if len(parts) == 1 else (np.concatenate(arrays, -1) for arrays in zip(*parts, strict=True))
        return np.ascontiguousarray((mean + prior_mean)[0].T), np.ascontiguousarray(var[0].T)


def log_proba(fitted: Fitted, x: Queries, prior_mean: PriorMeans) -> Float[NDArray[np.float64], "M C"]:
    """Return the logarithm of the class probabilities of queries."""
    mean, var = latents(fitted, x, prior_mean)
    with few_threads(mean.size):
        return fitted.link.log_proba(mean, var)


def proba(fitted: Fitted, x: Queries, prior_mean: PriorMeans) -> NDArray[np.float64]:
    """Return the class probabilities of queries, (M, C)."""
    return np.asarray(np.exp(log_proba(fitted, x, prior_mean)))


def loo_proba(
    fitted: Fitted, fraction: Float[NDArray[np.float64], " N"], leak: Float[NDArray[np.float64], "1 C N"] | None = None
) -> Float[NDArray[np.float64], "N C"]:
    """Return the class probabilities of each support point, predicted without a fraction of it.

    Design note: by default without `selection.centre_leak`. The centre still contains the point left out, which makes
    up for the missing example. With the correction, sets cover too much and fewer wrong labels come first.
    """
    support = fitted.support
    with few_threads(len(support.y) * support.n_way):
        mean, var = decisions.loo_latents(fitted.posterior, fraction[None], leak=leak, prior_mean=support.prior_mean)
        return np.asarray(np.exp(fitted.link.log_proba(mean[0], var[0])))

"""Promises of a fitted classifier: label sets with a coverage, and rejection with a risk.

Both use leave-one-out predictions of the examples.
"""

import math
import warnings
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mirrorshot.classifier import decisions
from mirrorshot.classifier.fitted import Fitted, PriorMeans, Queries, few_threads
from mirrorshot.classifier.predict import loo_proba, proba
from mirrorshot.classifier.selection import Candidate, centre_leak
from mirrorshot.gp.gaussian import predict_latent
from mirrorshot.gp.linalg import one_hot
from mirrorshot.softmax.arrays import NDArray, diagonal
from mirrorshot.types import InvalidInputError

_CONTRADICTION = 0.01  # warn if so many errors have a probability below this


class Rejection(NamedTuple):
    """Queries for which the classifier abstains.

    Attributes:
        rejected: whether the classifier should abstain, shape (n_queries,).
        threshold: the probability that the best class must reach; infinite if no threshold keeps to the target.
        risk: error rate among the accepted queries, according to the examples: the expected rate, or with `delta` its
            upper bound. At most `target_risk`; 1 if the threshold is infinite.
    """

    rejected: NDArray[np.bool_]
    threshold: float
    risk: float


class _Countable(NamedTuple):
    """The support, and the share `fraction` of each example to leave out: at most one unit of its weight.

    `kept` says whether the class of an example remains without that part.
    """

    y: Int[NDArray[np.int64], " N"]
    weight: Float[NDArray[np.float64], " N"]
    kept: Bool[NDArray[np.bool_], " N"]
    fraction: Float[NDArray[np.float64], " N"]


def predict_set(
    fitted: Fitted,
    x: Queries,
    prior_mean: PriorMeans,
    coverage: float,
    *,
    guarantee: bool,
) -> NDArray[np.bool_]:
    """Return the label sets of queries as a mask, (M, C).

    Conformal prediction with leave-one-out scores: the score of an example is the probability of its label, predicted
    from the others. A label is in the set if its score reaches the quantile of these scores
    (`decisions.conformal_threshold`). The score of a label at a query is predicted without one (average) example of
    that class, as the examples' scores are; with `guarantee` from all examples.
    """
    score, weight = _loo_scores(fitted)
    _check_scores(float(weight.sum()), coverage)
    threshold = decisions.conformal_threshold(score, weight, coverage, interpolate=not guarantee)
    found = proba(fitted, x, prior_mean) if guarantee else _scores(fitted, x, prior_mean)
    return np.asarray(found >= threshold)


def reject(
    fitted: Fitted,
    x: Queries,
    prior_mean: PriorMeans,
    target_risk: float,
    delta: float | None,
) -> Rejection:
    """Return the queries for which the classifier should abstain.

    A query is accepted if the probability of its best class reaches a threshold. Without `delta` it follows from the
    expected errors of the examples, each predicted from the others (`decisions.expected_risk_threshold`). If the
    probabilities are calibrated, errors among the accepted queries keep to the target on average over tasks; they are
    rather fewer, because a query is predicted from one example more. If clearly more examples are wrong than their
    probabilities allow, there is a warning. With one example for each class nothing can be left out, and the threshold
    is `1 - target_risk`.

    With `delta` the errors are counted, and calibration is not assumed: with a confidence of `1 - delta` over the draw
    of the examples, the risk is below an exact bound (`decisions.risk_threshold`). If no threshold passes, everything
    is rejected, with a warning.
    """
    y, weight, kept, fraction = _countable(fitted)
    prob = loo_proba(fitted, fraction)[kept]
    top, wrong, weight = prob.max(1), prob.argmax(1) != y[kept], weight[kept]
    if delta is None:
        threshold, risk = decisions.expected_risk_threshold(top, weight, target_risk)
        _warn_of_errors(top, wrong, weight)
    else:
        _check_number_of_examples(float(weight.sum()), target_risk, delta)
        threshold, risk = decisions.risk_threshold(top, wrong, weight, target_risk, delta)
        _warn_of_no_threshold(threshold, target_risk, weight)
    return Rejection(proba(fitted, x, prior_mean).max(1) < threshold, threshold, risk)


def _countable(fitted: Fitted) -> _Countable:
    y, weight = fitted.support.y, fitted.support.weight
    removed = np.minimum(weight, 1.0)
    return _Countable(y, weight, decisions.kept_without(y, weight, removed, fitted.support.n_way), removed / weight)


def _loo_scores(fitted: Fitted) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the leave-one-out probability of the label of each countable example, and the weights."""
    y, weight, kept, fraction = _countable(fitted)
    K = fitted.kernel(fitted.support.x, centre=fitted.centre)
    candidate = Candidate(fitted.kernel, fitted.centre, K, fitted.outputscale, 0.0)
    with few_threads(len(y) * fitted.support.n_way):
        leak = centre_leak(fitted.support, candidate, fitted.posterior)
    return loo_proba(fitted, fraction, leak)[np.arange(len(y)), y][kept], weight[kept]


def _scores(fitted: Fitted, x: Queries, prior_mean: PriorMeans) -> NDArray[np.float64]:
    """Return the probability of each label at each query, without one (average) example of its class."""
    y, weight, kept, fraction = _countable(fitted)
    C = fitted.support.n_way
    with few_threads(x.shape[1] * C * C):
        cross, prior_var = fitted.cross(x)
        mean, var = predict_latent(fitted.posterior, cross, prior_var)
        effect = decisions.effects(fitted.posterior, cross, fraction[None])
        share = one_hot(y, C, mean.dtype).T * (weight * kept)[:, None]
        share = share / np.maximum(share.sum(0), np.finfo(share.dtype).tiny)  # (N, C)
        # latents of class c at a query, without an example of class l: (M, l, c)
        means = (mean + prior_mean)[0].T[:, None] - (effect.mean[0].mT @ share).transpose(1, 2, 0)
        variances = var[0].T[:, None] + (effect.var[0].mT @ share).transpose(1, 2, 0)
        log_prob = fitted.link.log_proba(means, variances)
    return np.exp(diagonal(log_prob))


def _warn_of_errors(top: NDArray[np.float64], wrong: NDArray[np.bool_], weight: NDArray[np.float64]) -> None:
    if decisions.errors_tail(top, wrong, weight) >= _CONTRADICTION:
        return
    expected = float((weight * (1.0 - top)).sum())
    warnings.warn(
        f"The examples contradict the probabilities: {float((weight * wrong).sum()):g} of {float(weight.sum()):g} are "
        f"wrong when predicted from the others, and {expected:.1f} were to be expected. More of the accepted may be "
        "wrong than asked. Look at `suspects`, or pass `delta`.",
        UserWarning,
        stacklevel=4,
    )


def _warn_of_no_threshold(threshold: float, target_risk: float, weight: NDArray[np.float64]) -> None:
    if math.isinf(threshold):
        warnings.warn(
            f"No threshold keeps the risk at {target_risk:g}, as far as {float(weight.sum()):g} examples can tell: "
            "everything is rejected. Add examples, or allow a higher risk.",
            UserWarning,
            stacklevel=4,
        )


def _check_number_of_examples(n: float, target_risk: float, delta: float) -> None:
    needed = decisions.examples_needed(target_risk, delta)
    if n < needed:
        raise InvalidInputError(
            f"Expected at least {needed} examples whose class has another one, for a risk of {target_risk:g} with "
            f"delta = {delta:g}, but got {n:g}. Add examples, allow a higher risk or delta, or leave delta out."
        )


def _check_scores(n: float, coverage: float) -> None:
    needed = decisions.scores_needed(coverage)
    if n < needed:
        raise InvalidInputError(
            f"Expected at least {needed} examples whose class has another one, for a coverage of {coverage:g}, but got "
            f"{n:g}. Add examples, or ask for a coverage of at most {math.floor(1000 * n / (n + 1)) / 1000:g}."
        )

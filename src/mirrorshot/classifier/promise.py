"""Promises of a fitted classifier: sets of labels with a coverage, and rejection with a risk.

Both follow from leave-one-out predictions of the examples.
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

_CONTRADICTION = 0.01  # probability of so many errors, below which the probabilities are not believed


class Rejection(NamedTuple):
    """Which queries to leave to someone else.

    Attributes:
        rejected: whether the classifier should abstain, shape (n_queries,).
        threshold: the probability that the best class must reach; infinite if no threshold will do.
        risk: what the examples say about the error rate among the accepted, at most `target_risk`: what is to be
            expected, or with `delta` the bound.
    """

    rejected: NDArray[np.bool_]
    threshold: float
    risk: float


class _Countable(NamedTuple):
    """The support, and what is left out of each example: at most one unit of its weight.

    Attributes:
        y: labels.
        weight: weights.
        kept: whether the class of an example keeps another one without it.
        fraction: share of the example that is left out.
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
    """Return which labels are in the set of each query, (M, C).

    Conformal prediction with leave-one-out scores: the score of an example is the probability of its label,
    predicted from the others. A label is in the set if its own score reaches the quantile of the examples' scores
    that lies at `(n + 1) (1 - coverage)`, interpolated between two of them. For a fair comparison the score of a
    label at a query is predicted without an (average) example of that class, as the examples' scores are.
    Coverage is an average over tasks and queries. A query unlike all examples can have an empty set.
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
    """Return for which queries to abstain.

    A query is accepted if the probability of its best class reaches a threshold `t`. A prediction of probability p
    is wrong with probability 1 - p, so with `p_i` the top probability of each example, predicted from the others,
    the lowest `t` is taken for which

        mean of (1 - p_i) over the examples with p_i >= t  <=  target_risk,

    and `t = 1 - target_risk` where that is lower still. The errors among the accepted then keep to the target on
    average over tasks as far as the probabilities are calibrated; they are rather fewer, because a query is
    predicted from one example more. If clearly more examples are predicted wrongly than their probabilities allow,
    there is a warning. With one example for each class nothing can be left out: `t = 1 - target_risk`.

    With `delta` the errors are counted, whatever the probabilities say: with a confidence of `1 - delta` over the
    draw of the examples the risk is below the exact (Clopper-Pearson) bound. Of `k` examples that reach `t`, `e`
    are wrong; `P(Binomial(k, target_risk) <= e) <= delta` is tested downwards from the first `t` that could pass,
    until one fails. If no threshold will do, everything is rejected, with a warning.
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
    """Return the probability of the label of each countable example, predicted without it, and the weights."""
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

"""The methods of `FewShotClassifier` that promise a rate: sets of labels, and abstaining."""

import math
import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mirrorshot import decisions
from mirrorshot.estimator.base import SMALL, FittedBase, check_share
from mirrorshot.gaussian import predict_latent
from mirrorshot.likelihoods import log_predictive
from mirrorshot.selection import Candidate, centre_leak
from mirrorshot.threads import one_thread
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


class PromisesMixin(FittedBase):
    """Sets of labels with a coverage, and rejection with a risk, from leave-one-out predictions of the examples."""

    def predict_set(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        guarantee: bool = False,
        prior_scores: ArrayLike | None = None,
    ) -> NDArray[np.bool_]:
        """Sets of labels that contain the right one with a probability of `coverage`.

        Conformal prediction with leave-one-out scores: the score of an example is the probability of its label,
        predicted from the others. A label is in the set if its own score reaches the quantile of the examples' scores
        that lies at `(n + 1) (1 - coverage)`, interpolated between two of them. For a fair comparison the score of a
        label at a query is predicted without an (average) example of that class, as the examples' scores are.
        Coverage is an average over tasks and queries. A query unlike all examples can have an empty set.

        Args:
            X: embeddings, shape (n_queries, n_features).
            coverage: between 0 and 1. `n` examples allow at most `n / (n + 1)`; those that are the only one of their
                class do not count.
            guarantee: be on the safe side: the lower of the two scores, not interpolated, and all examples for the
                query. Sets are larger, and cover more than asked. Even so no proof is possible without a set of
                examples that was not learned from.
            prior_scores: as in `predict_latent`.

        Returns:
            Whether each label is in the set, shape (n_queries, n_classes); columns in the order of `classes_`.

        Raises:
            InvalidInputError: if there are too few examples for the coverage.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:50], y[:50])
            >>> in_set = few.predict_set(X[50:53], coverage=0.9)
            >>> [few.classes_[row].tolist() for row in in_set]
            [[2], [2], [7]]
        """
        check_is_fitted(self)
        self = self._snapshot()
        check_share("coverage", coverage)
        score, weight = self._loo_scores()
        _check_scores(float(weight.sum()), coverage)
        threshold = decisions.conformal_threshold(score, weight, coverage, interpolate=not guarantee)
        found = self.predict_proba(X, prior_scores) if guarantee else self._scores(X, prior_scores)
        return np.asarray(found >= threshold)

    def reject(
        self,
        X: ArrayLike,
        target_risk: float = 0.05,
        *,
        delta: float | None = None,
        prior_scores: ArrayLike | None = None,
    ) -> Rejection:
        """For which queries to abstain, so that at most a share `target_risk` of the accepted ones is wrong.

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

        Args:
            X: embeddings, shape (n_queries, n_features).
            target_risk: between 0 and 1.
            delta: between 0 and 1, or None. 0.05 at a risk of 0.05 needs 59 examples.
            prior_scores: as in `predict_latent`.

        Raises:
            InvalidInputError: if there are too few examples for `delta`, however good they are.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from sklearn.utils import shuffle
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = shuffle(*load_digits(return_X_y=True), random_state=1)
            >>> few = FewShotClassifier().fit(X[:50], y[:50])
            >>> found = few.reject(X[50:], target_risk=0.1)
            >>> wrong = few.predict(X[50:]) != y[50:]
            >>> wrong.mean().round(2).item(), wrong[~found.rejected].mean().round(2).item()
            (0.14, 0.04)
        """
        check_is_fitted(self)
        self = self._snapshot()
        check_share("target_risk", target_risk)
        if delta is not None:
            check_share("delta", delta)
        y, weight, kept, removed = self._countable()
        best = self._loo_proba(removed / weight)[kept].max(1)
        top, wrong, weight = best.values, best.indices != y[kept], weight[kept]
        if delta is None:
            threshold, risk = decisions.expected_risk_threshold(top, weight, target_risk)
            _warn_of_errors(top, wrong, weight)
        else:
            _check_number_of_examples(float(weight.sum()), target_risk, delta)
            threshold, risk = decisions.risk_threshold(top, wrong, weight, target_risk, delta)
            if math.isinf(threshold):
                warnings.warn(
                    f"No threshold keeps the risk at {target_risk:g}, as far as {float(weight.sum()):g} examples can "
                    "tell: everything is rejected. Add examples, or allow a higher risk.",
                    UserWarning,
                    stacklevel=2,
                )
        return Rejection(self.predict_proba(X, prior_scores).max(1) < threshold, threshold, risk)

    def _countable(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Labels and weights, which examples' class has another one, and the one unit of weight that is left out."""
        y, weight = self._support.y, self._support.weight
        removed = weight.clamp(max=1.0)
        return y, weight, decisions.kept_without(y, weight, removed, self._support.n_way), removed

    @torch.no_grad()
    def _loo_scores(self) -> tuple[Tensor, Tensor]:
        """Probability of the label of each example that counts, predicted without it, and their weights."""
        y, weight, kept, removed = self._countable()
        candidate = Candidate(self.kernel_, self._centre, self.outputscale_, 0.0)
        with one_thread(is_small=len(y) * self._support.n_way <= SMALL):
            leak = centre_leak(self._support, candidate, self._posterior)
            log_prob = decisions.loo_log_proba(
                self._posterior,
                (removed / weight)[None],
                temperature=self.temperature_,
                leak=leak,
                prior_mean=self._support.prior_mean,
            )
        return log_prob[0].gather(1, y[:, None])[kept, 0].exp(), weight[kept]

    @torch.no_grad()
    def _scores(self, X: ArrayLike, prior_scores: ArrayLike | None) -> NDArray[np.float64]:
        """Probability of each label at each query, predicted without one (average) example of its class, (M, C)."""
        x = torch.tensor(self._check_queries(X))[None]
        prior_mean = self._prior_mean(prior_scores, x.shape[1])
        y, weight, kept, removed = self._countable()
        C = self._support.n_way
        with one_thread(is_small=x.shape[1] * C * C <= SMALL):
            cross = self.kernel_(self._support.x, x, centre=self._centre)
            mean, var = predict_latent(self._posterior, cross, self.kernel_.diagonal(x, centre=self._centre))
            effect = decisions.effects(self._posterior, cross, (removed / weight)[None])
            share = torch.nn.functional.one_hot(y, C).to(mean.dtype) * (weight * kept)[:, None]
            share = share / share.sum(0).clamp(min=torch.finfo(share.dtype).tiny)  # (N, C)
            # latents of class c at a query, without an example of class l: (M, l, c)
            means = (mean + prior_mean)[0].mT[:, None] - torch.einsum("cnm,nl->mlc", effect.mean[0], share)
            variances = var[0].mT[:, None] + torch.einsum("cnm,nl->mlc", effect.var[0], share)
            log_prob = log_predictive(means, variances, temperature=self.temperature_)
        return np.asarray(log_prob.diagonal(dim1=-2, dim2=-1).exp().numpy())


def _warn_of_errors(top: Tensor, wrong: Tensor, weight: Tensor) -> None:
    if decisions.errors_tail(top, wrong, weight) >= _CONTRADICTION:
        return
    expected = float((weight * (1.0 - top)).sum())
    warnings.warn(
        f"The examples contradict the probabilities: {float((weight * wrong).sum()):g} of {float(weight.sum()):g} are "
        f"wrong when predicted from the others, and {expected:.1f} were to be expected. More of the accepted may be "
        "wrong than asked. Look at `suspects`, or pass `delta`.",
        UserWarning,
        stacklevel=3,
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

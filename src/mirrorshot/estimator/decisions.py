"""The methods of `FewShotClassifier` that help to act on its predictions."""

import abc
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mirrorshot import decisions
from mirrorshot.gaussian import GaussianPosterior, loo_latent
from mirrorshot.kernels import Kernel
from mirrorshot.selection import Support
from mirrorshot.threads import one_thread
from mirrorshot.types import InvalidInputError

SMALL = 2**12  # latents (examples or queries times classes) that one thread computes fastest


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
        row: their rows in the `X` of `fit`.
        proba: probability of the label they have, predicted from the other examples.
        label: the most probable label according to the other examples.
    """

    row: NDArray[np.intp]
    proba: NDArray[np.float64]
    label: NDArray[Any]


class DecisionsMixin(abc.ABC):
    """Uncertainty, novelty, explanations, suspicious labels, what to label next, and sets of labels.

    All of it follows from the posterior that `fit` has found, without sampling; nothing here changes the classifier.
    """

    classes_: NDArray[Any]
    kernel_: Kernel
    temperature_: float
    _support: Support
    _posterior: GaussianPosterior
    _centre: Tensor
    _used: NDArray[np.bool_]

    @abc.abstractmethod
    def _check_queries(self, X: ArrayLike) -> NDArray[np.float64]:
        """The queries as an array that fits what was learned."""

    @abc.abstractmethod
    def predict_latent(
        self, X: ArrayLike, prior_scores: ArrayLike | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the latent function of each class, each of shape (n_queries, n_classes)."""

    @abc.abstractmethod
    def predict_proba(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Class probabilities, shape (n_queries, n_classes); columns in the order of `classes_`."""

    def uncertainty(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> Uncertainty:
        """How uncertain the label of each query is, and how much of that more examples could remove.

        It is the uncertainty of the model, before the temperature, which only rescales the predictive probabilities;
        so `total` is not the entropy of `predict_proba`.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> few.uncertainty(X[30:33]).epistemic.round(2).tolist()
            [0.74, 0.72, 0.88]
        """
        mean, var = self.predict_latent(X, prior_scores)
        with one_thread(is_small=mean.size <= SMALL):
            parts = decisions.uncertainty(torch.tensor(mean), torch.tensor(var))
        return Uncertainty(*(part.numpy() for part in parts))

    def novelty(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """How much each query looks like none of the classes, from 0 to 1, shape (n_queries,).

        One minus the probability of the best class (before the temperature) times the share of its prior variance that
        the examples explain at the query. It ranks queries; it is no probability.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> known = y < 5
            >>> few = FewShotClassifier().fit(X[known][:30], y[known][:30])
            >>> bool(few.novelty(X[~known]).mean() > few.novelty(X[known][30:]).mean())
            True
        """
        mean, var = self.predict_latent(X, prior_scores)
        x = torch.tensor(self._check_queries(X))[None]
        with torch.no_grad(), one_thread(is_small=mean.size <= SMALL):
            prior_var = self.kernel_.diagonal(x, centre=self._centre)[0].mT
            return np.asarray(decisions.novelty(torch.tensor(mean), torch.tensor(var), prior_var).numpy())

    def novelty_threshold(self, rate: float = 0.05) -> float:
        """The novelty that about a share `rate` of new queries of the known classes exceeds.

        From the novelty of each example when it is predicted from the others; with fewer than `1 / rate` examples it is
        the largest of these, and without two examples of any class nothing is known and it is 1: no query exceeds it.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:50], y[:50])
            >>> 0.0 < few.novelty_threshold() < 1.0
            True
        """
        check_is_fitted(self)
        _check_coverage(1.0 - rate)
        x, y, weight = self._support.x, self._support.y, self._support.weight
        kept = decisions.kept_without(y, weight, weight, self._support.n_way)
        if not bool(kept.any()):
            return 1.0
        with torch.no_grad(), one_thread(is_small=len(y) * self._support.n_way <= SMALL):
            mean, var = loo_latent(self._posterior)
            mean = mean if self._support.prior_mean is None else mean + self._support.prior_mean
            prior_var = self.kernel_.diagonal(x, centre=self._centre)[0].mT
            novelty = decisions.novelty(mean[0].mT, var[0].mT, prior_var)
        return 1.0 - decisions.conformal_threshold(1.0 - novelty[kept], weight[kept], 1.0 - rate)

    def explain(self, X: ArrayLike) -> NDArray[np.float64]:
        """What each example adds to the latent of each class, shape (n_queries, n_classes, n_examples).

        The sum over the examples is exactly the mean of `predict_latent`, less the prior scores if there are any; an
        example of weight zero adds nothing.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> weight = few.explain(X[30:31])[0, 0]  # for class 0
            >>> int(y[weight.argmax()])
            0
        """
        check_is_fitted(self)
        x = torch.tensor(self._check_queries(X))[None]
        with torch.no_grad(), one_thread(is_small=x.shape[1] * self._support.n_way <= SMALL):
            cross = self.kernel_(self._support.x, x, centre=self._centre)
            added = decisions.contributions(self._posterior, cross)[0].permute(2, 0, 1).numpy()
        weights = np.zeros((*added.shape[:2], len(self._used)))
        weights[..., self._used] = added
        return weights

    def suspects(self) -> Suspects:
        """Examples whose label the other examples contradict, the most suspicious first.

        Ranked by the probability of the label that an example has, predicted without it. An example that is the
        only one of its class is not in the list: without it nothing is known about the class.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> X, y = X[y < 5][:30], y[y < 5][:30]
            >>> y[7] = 4  # it is a 2
            >>> found = FewShotClassifier().fit(X, y).suspects()
            >>> int(found.row[0]), int(found.label[0])
            (7, 2)
        """
        check_is_fitted(self)
        y, weight = self._support.y, self._support.weight
        prob = self._loo_proba(torch.ones_like(weight))
        kept = decisions.kept_without(y, weight, weight, self._support.n_way).numpy()
        own = prob.gather(1, y[:, None])[:, 0].numpy()
        order = np.flatnonzero(kept)[own[kept].argsort(kind="stable")]
        best = prob.argmax(1).numpy()[order]
        return Suspects(np.flatnonzero(self._used)[order], own[order], self.classes_[best])

    def suggest(self, X_pool: ArrayLike, k: int = 1) -> NDArray[np.intp]:
        """Which `k` of some unlabelled examples to label next: rows of `X_pool`, the most useful first.

        Each is the one whose label, whatever it turns out to be, takes most uncertainty off the whole pool, given the
        earlier ones (`mirrorshot.decisions.suggest` says how). Memory grows with the square of the pool: of more than
        10,000, draw a part.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:10], y[:10])
            >>> few.suggest(X[10:200], k=3).shape
            (3,)
        """
        check_is_fitted(self)
        if self._support.prior_mean is not None:
            raise InvalidInputError(
                "Expected a classifier without prior scores, which `suggest` does not know, but got one."
            )
        _check_pool(X_pool)
        pool = torch.tensor(self._check_queries(X_pool))[None]
        _check_number(k, pool.shape[1])
        with torch.no_grad(), one_thread(is_small=pool.shape[1] * self._support.n_way <= SMALL):
            K = self.kernel_(pool, centre=self._centre)
            cross = self.kernel_(self._support.x, pool, centre=self._centre)
            return np.asarray(decisions.suggest(K, cross, self._posterior, int(k)), dtype=np.intp)

    def predict_set(
        self, X: ArrayLike, coverage: float = 0.9, prior_scores: ArrayLike | None = None
    ) -> NDArray[np.bool_]:
        """Sets of labels that contain the right one with a probability of about `coverage`.

        A label is in the set if its probability reaches a quantile of the probabilities that the examples' own labels
        get when each is predicted from the others (conformal prediction with leave-one-out scores). The coverage is
        an average over tasks and queries, and approximate: the score of a query comes from one example more. A query
        unlike all examples can have an empty set.

        Args:
            X: embeddings, shape (n_queries, n_features).
            coverage: between 0 and 1. `n` examples allow at most `n / (n + 1)`; those that are the only one of their
                class do not count.
            prior_scores: as in `predict_proba`.

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
        _check_coverage(coverage)
        y, weight = self._support.y, self._support.weight
        removed = weight.clamp(max=1.0)  # one unit of weight is left out
        kept = decisions.kept_without(y, weight, removed, self._support.n_way)
        _check_scores(float(weight[kept].sum()), coverage)
        score = self._loo_proba(removed / weight).gather(1, y[:, None])[:, 0]
        threshold = decisions.conformal_threshold(score[kept], weight[kept], coverage)
        return np.asarray(self.predict_proba(X, prior_scores) >= threshold)

    @torch.no_grad()
    def _loo_proba(self, fraction: Tensor) -> Tensor:
        """Probabilities (N, C) of the support, each point without a fraction of itself.

        Design note: without `selection.centre_leak`. What the centre knows of a point that is left out makes up for the
        example that is missing; with the correction sets cover too much and fewer wrong labels come first.
        """
        with one_thread(is_small=len(self._support.y) * self._support.n_way <= SMALL):
            prior = self._support.prior_mean
            log_prob = decisions.loo_log_proba(
                self._posterior, fraction[None], temperature=self.temperature_, prior_mean=prior
            )
            return log_prob[0].exp()


def _check_pool(X: Any) -> None:
    if hasattr(X, "__len__") and len(X) == 0:
        raise InvalidInputError("Expected `X_pool` to hold at least one example, but got none.")


def _check_number(k: Any, size: int) -> None:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= size:
        raise InvalidInputError(f"Expected `k` to be an integer from 1 to {size}, the size of the pool, but got {k!r}.")


def _check_coverage(coverage: Any) -> None:
    is_number = isinstance(coverage, (int, float, np.number)) and not isinstance(coverage, bool)
    if not is_number or not 0.0 < coverage < 1.0:
        raise InvalidInputError(f"Expected `coverage` to be a number between 0 and 1, but got {coverage!r}.")


def _check_scores(n: float, coverage: float) -> None:
    needed = decisions.scores_needed(coverage)
    if n < needed:
        raise InvalidInputError(
            f"Expected at least {needed} examples whose class has another one, for a coverage of {coverage:g}, but got "
            f"{n:g}. Add examples, or ask for a coverage of at most {math.floor(1000 * n / (n + 1)) / 1000:g}."
        )

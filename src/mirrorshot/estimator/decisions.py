"""The methods of `FewShotClassifier` that help to act on its predictions."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from mirrorshot import decisions
from mirrorshot.estimator.base import SMALL, FittedBase, check_share
from mirrorshot.gaussian import loo_latent
from mirrorshot.threads import one_thread
from mirrorshot.types import InvalidInputError


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


class DecisionsMixin(FittedBase):
    """Uncertainty, novelty, suspicious labels, and what to label next.

    All of it follows from the posterior that `fit` has found, without sampling; nothing here changes the classifier.
    """

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
        self = self._snapshot()
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
        self = self._snapshot()
        check_share("rate", rate)
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
        self = self._snapshot()
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
        self = self._snapshot()
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


def _check_pool(X: Any) -> None:
    if hasattr(X, "__len__") and len(X) == 0:
        raise InvalidInputError("Expected `X_pool` to hold at least one example, but got none.")


def _check_number(k: Any, size: int) -> None:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= size:
        raise InvalidInputError(f"Expected `k` to be an integer from 1 to {size}, the size of the pool, but got {k!r}.")

"""The methods of `FewShotClassifier` that say which examples a prediction rests on."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mirrorshot import decisions
from mirrorshot.estimator.base import SMALL, FittedBase
from mirrorshot.gaussian import predict_latent
from mirrorshot.likelihoods import log_predictive
from mirrorshot.threads import one_thread
from mirrorshot.types import InvalidInputError


class Evidence(NamedTuple):
    """The examples that carry a prediction, the strongest first, each of shape (n_queries, k).

    Attributes:
        row: their rows among the examples.
        weight: what each adds to the latent of the predicted class (exact, see `explain`).
        influence: by how much the probability of the predicted class is higher with the example than without it.
    """

    row: NDArray[np.intp]
    weight: NDArray[np.float64]
    influence: NDArray[np.float64]


class ExplanationsMixin(FittedBase):
    """Weights of the examples, and what would be predicted without them."""

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
        self = self._snapshot()
        x = torch.tensor(self._check_queries(X))[None]
        with torch.no_grad(), one_thread(is_small=x.shape[1] * self._support.n_way <= SMALL):
            cross = self.kernel_(self._support.x, x, centre=self._centre)
            added = decisions.contributions(self._posterior, cross)[0].permute(2, 0, 1).numpy()
        weights = np.zeros((*added.shape[:2], len(self._used)))
        weights[..., self._used] = added
        return weights

    def influence(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """What each example changes in the probabilities, shape (n_queries, n_classes, n_examples).

        The probability of a class minus the one predicted without the example: its Gaussian site is taken out in
        closed form (`mirrorshot.decisions.effects`) while kernel, centre, temperature and the other sites stay. A fit
        without the example differs a little, because the others then move; `remove` gives that exactly.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> change = few.influence(X[30:31])[0, 0]  # of class 0
            >>> int(y[change.argmax()])
            0
        """
        check_is_fitted(self)
        self = self._snapshot()
        x = torch.tensor(self._check_queries(X))[None]
        prior_mean = self._prior_mean(prior_scores, x.shape[1])
        with torch.no_grad(), one_thread(is_small=x.shape[1] * self._support.n_way * len(self._support.y) <= SMALL):
            cross = self.kernel_(self._support.x, x, centre=self._centre)
            mean, var = predict_latent(self._posterior, cross, self.kernel_.diagonal(x, centre=self._centre))
            mean = mean + prior_mean
            effect = decisions.effects(self._posterior, cross)
            # (C, N, M) -> (M, N, C)
            without = self._proba((mean[:, :, None] - effect.mean)[0], (var[:, :, None] + effect.var)[0])
            whole = self._proba(mean[0][:, None], var[0][:, None])
        change = np.zeros((x.shape[1], self._support.n_way, len(self._used)))
        change[..., self._used] = (whole - without).permute(0, 2, 1).numpy()
        return change

    def _proba(self, mean: Tensor, var: Tensor) -> Tensor:
        """Probabilities (M, N, C) from latents (C, N, M)."""
        latents = (part.permute(2, 1, 0) for part in (mean, var))
        return log_predictive(*latents, temperature=self.temperature_).exp()

    def evidence(self, X: ArrayLike, k: int = 3, *, prior_scores: ArrayLike | None = None) -> Evidence:
        """The `k` examples that speak most for the predicted class of each query.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> found = few.evidence(X[30:32], k=2)
            >>> y[found.row].tolist(), few.predict(X[30:32]).tolist()
            ([[0, 0], [9, 9]], [0, 9])
        """
        check_is_fitted(self)
        self = self._snapshot()
        _check_number(k, len(self._used))
        best = self.predict_proba(X, prior_scores).argmax(1)[:, None, None]
        parts = self.explain(X), self.influence(X, prior_scores)
        weight, change = (np.take_along_axis(part, best, 1)[:, 0] for part in parts)
        row = (-weight).argsort(1, kind="stable")[:, :k]
        return Evidence(row, np.take_along_axis(weight, row, 1), np.take_along_axis(change, row, 1))


def _check_number(k: Any, size: int) -> None:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= size:
        raise InvalidInputError(
            f"Expected `k` to be an integer from 1 to {size}, the number of examples, but got {k!r}."
        )

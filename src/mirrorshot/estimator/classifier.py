"""The classifier itself: fit and predict."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from mirrorshot.estimator.base import SMALL, check_embeddings, check_not_tiny, check_scores, to_numpy
from mirrorshot.estimator.decisions import DecisionsMixin
from mirrorshot.estimator.editing import EditingMixin
from mirrorshot.estimator.explanations import ExplanationsMixin
from mirrorshot.estimator.memory import check_memory
from mirrorshot.estimator.promises import PromisesMixin
from mirrorshot.estimator.rows import Rows, support_of
from mirrorshot.estimator.saving import SavingMixin
from mirrorshot.estimator.solving import SCREENING_TOLERANCE, descend, refine, solve
from mirrorshot.gaussian import GaussianSites, predict_latent
from mirrorshot.kernels import KERNELS, Kernel
from mirrorshot.likelihoods import log_predictive
from mirrorshot.selection import Candidate, Support, choose_centre, make_candidates, select
from mirrorshot.threads import one_thread
from mirrorshot.types import InvalidInputError

Self = TypeVar("Self", bound="FewShotClassifier")
_QUERY_ELEMENTS = 2**24  # queries are predicted in chunks of at most this many covariances


class FewShotClassifier(
    EditingMixin, DecisionsMixin, ExplanationsMixin, PromisesMixin, SavingMixin, ClassifierMixin, BaseEstimator
):
    """Gaussian-process classifier for a handful of labelled examples per class.

    One latent function per class has a Gaussian-process prior over the embeddings; a softmax turns them into class
    probabilities; mirror descent finds the best Gaussian posterior. Kernel parameters and the sharpness of the
    probabilities are chosen from the examples themselves (leave-one-out predictive likelihood), so no validation set is
    needed, and one example per class is enough. Nothing is random: the same data give the same answer.

    Predictions in one thread while another one fits or edits come from one fit, the earlier or the new one. Fits and
    edits of one classifier in several threads need a lock. A fit of `C` classes and `N` examples takes about
    `100 C N^2` bytes; beyond the memory of the machine it is refused before it starts (the environment variable
    `MIRRORSHOT_MAX_MEMORY_GIB` sets another limit). Embeddings are finite, with absolute values from 1e-100 to 1e100.

    Args:
        kernel: "cosine" (for embeddings), "rbf", "matern", "linear", "polynomial", or a `mirrorshot.kernels.Kernel`,
            whose parameters are then used as they are.
        outputscale: prior variance of the latents, or "loo" to choose it among 3, 10 and 30. It mostly changes how
            sharp the probabilities are, which the temperature undoes.
        lengthscale: length scale of "rbf" and "matern", or "loo" to choose it. Other kernels ignore it.
        centre: what is subtracted from the embeddings first. "auto": the mean of the examples, shrunk
            towards the origin as far as the examples cannot tell it from zero; "mean"; or "none".
        temperature: predictions are raised to the power 1 / temperature; or "loo" to choose it.

    Attributes:
        classes_: the class labels.
        n_features_in_: number of features.
        kernel_: the kernel that was chosen.
        outputscale_, temperature_: what was chosen.
        loo_log_likelihood_: leave-one-out predictive log-likelihood of the examples, in nats. The Gaussian site of the
            example that is left out is taken out in closed form; the sites of the others, kernel and centre stay.
        elbo_: lower bound of the log evidence of the labels, in nats.
        gap_: nats by which `elbo_` is below the best bound, at most: proven by its gradient
            (`mirrorshot.inference.certificate`), up to the accuracy of the quadrature.
        start_: where inference started: "prior", or "previous" if an edit got from the earlier posterior to the new one
            with a proof. An edit without one is solved anew, and says "prior".
        n_iter_: steps of inference taken.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> few = FewShotClassifier().fit(X[:30], y[:30])
        >>> few.predict(X[30:36])
        array([0, 9, 5, 5, 6, 5])
        >>> few.predict_proba(X[30:33]).max(axis=1).round(2).tolist()
        [0.99, 0.99, 0.98]
    """

    def __init__(
        self,
        kernel: str | Kernel = "cosine",
        *,
        outputscale: float | str = 10.0,
        lengthscale: float | str = "loo",
        centre: str = "auto",
        temperature: float | str = "loo",
    ) -> None:
        self.kernel = kernel
        self.outputscale = outputscale
        self.lengthscale = lengthscale
        self.centre = centre
        self.temperature = temperature

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, prior_scores: ArrayLike | None = None
    ) -> "FewShotClassifier":
        """Learn from labelled examples.

        Args:
            X: embeddings, shape (n_examples, n_features).
            y: labels of any kind, shape (n_examples,).
            sample_weight: how often each example counts; an example of weight 2 is the same as two examples.
            prior_scores: what is believed of each example before any label, shape (n_examples, n_classes), columns in
                the order of `classes_`: for instance zero-shot scores of a text-image model. They are the prior mean of
                the latents, in their unit (a difference of 1 is a factor e between probabilities, before the
                temperature); the examples correct them. Queries then need theirs.

        Returns:
            The classifier itself. If an error is raised, an earlier fit stays as it was.
        """
        self._check_parameters()
        x, targets, weight = self._check_examples(X, y, sample_weight)
        rows = Rows(x, targets, weight, None)
        if prior_scores is not None:
            rows = rows._replace(prior=check_scores(prior_scores, len(x), len(rows.classes())))
        return self._accept(self._learn(rows, None), X)

    def _check_examples(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
        x: NDArray[np.float64]
        x, targets = check_X_y(to_numpy(X), to_numpy(y), dtype=np.float64, ensure_all_finite=False, estimator=self)
        x = check_embeddings(x, X)
        check_classification_targets(targets)
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        return x, targets, weight

    def _learn(self, rows: Rows, start: Callable[[Rows], GaussianSites] | None) -> dict[str, Any]:
        """What is learned from the rows, as attributes; nothing of the object changes."""
        classes, used = rows.classes(), rows.weight > 0
        _check_classes(rows, classes, used)
        check_not_tiny(rows.x[used])
        support = support_of(rows)
        with one_thread(is_small=len(support.y) * support.n_way <= SMALL):
            fitted = self._infer(support, None if start is None else start(rows))
        return {"classes_": classes, "_used": used, "_rows": rows, **fitted}

    def _accept(self: Self, fitted: dict[str, Any], X: ArrayLike | None = None) -> Self:
        """Become what was learned, all at once: another thread sees the earlier classifier or the new one.

        Args:
            fitted: from `_learn`.
            X: the embeddings as they were given, if number and names of the features are to be taken from them.
        """
        after = self._snapshot()
        if X is not None:
            validate_data(after, X, skip_check_array=True)
        self.__dict__ = {**vars(after), **fitted}
        return self

    def _check_parameters(self) -> None:
        if isinstance(self.kernel, str):
            known = [name for name in KERNELS if name != "gpytorch"]
            if self.kernel not in known:
                raise InvalidInputError(
                    f"Expected `kernel` to be one of {', '.join(known)}, or a Kernel, but got {self.kernel!r}."
                )
        elif not isinstance(self.kernel, Kernel):
            raise InvalidInputError(
                f"Expected `kernel` to be a name or a mirrorshot Kernel, but got {type(self.kernel).__name__}. "
                "Wrap a GPyTorch kernel in mirrorshot.kernels.GPyTorchKernel."
            )
        for name in ("outputscale", "lengthscale", "temperature"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
            valid = 0 < value < math.inf if is_number else value == "loo"
            if not valid:
                raise InvalidInputError(f"Expected `{name}` to be 'loo' or a positive number, but got {value!r}.")
        if self.centre not in ("auto", "mean", "none"):
            raise InvalidInputError(f"Expected `centre` to be 'auto', 'mean' or 'none', but got {self.centre!r}.")

    def _infer(self, support: Support, start: GaussianSites | None) -> dict[str, Any]:
        """Fit every candidate in one batch, choose among them, and solve the chosen one to the last digits.

        Args:
            support: the labelled examples.
            start: sites that are close to the solution, if such are known.
        """
        candidates = self._candidates(support)
        check_memory(len(support.y), support.n_way, len(candidates))
        fixed = None if self.temperature == "loo" else float(self.temperature)
        with torch.no_grad():
            K = torch.cat([c.kernel(support.x, centre=c.centre) for c in candidates])
            g, screened = 0, None
            if len(candidates) > 1:
                posteriors, _ = descend(support, K, None, SCREENING_TOLERANCE)
                g = select(support, candidates, posteriors, fixed).chosen
                screened = posteriors.task(g).sites
            solved = None if start is None or screened else refine(support, K[g : g + 1], start, is_near=False)
            if solved is None:
                solved = solve(support, K[g : g + 1], screened)
            choice = select(support, [candidates[g]], solved.posterior, fixed)
        return {
            "kernel_": candidates[g].kernel,
            "outputscale_": candidates[g].outputscale,
            "temperature_": choice.temperature,
            "loo_log_likelihood_": float(choice.log_likelihood),
            "elbo_": solved.elbo,
            "n_iter_": solved.n_steps,
            "gap_": solved.gap,
            "start_": solved.start,
            "_support": support,
            "_centre": candidates[g].centre,
            "_posterior": solved.posterior,
        }

    def _candidates(self, support: Support) -> list[Candidate]:
        centre = choose_centre(support, self.centre)
        if isinstance(self.kernel, Kernel):
            scale = float(self.kernel.diagonal(support.x, centre=centre).detach().mean().clamp(min=1e-12))
            return [Candidate(self.kernel, centre, scale, 0.0)]
        given = [None if v == "loo" else float(v) for v in (self.outputscale, self.lengthscale)]
        return make_candidates(support, self.kernel, centre, *given)

    def _check_queries(self, X: ArrayLike) -> NDArray[np.float64]:
        x: NDArray[np.float64] = validate_data(
            self, to_numpy(X), reset=False, dtype=np.float64, ensure_all_finite=False
        )
        return check_embeddings(x, X)

    def predict_latent(
        self, X: ArrayLike, prior_scores: ArrayLike | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the latent function of each class, each of shape (n_queries, n_classes).

        Args:
            X: embeddings, shape (n_queries, n_features).
            prior_scores: as of `fit`, for the queries; needed if and only if `fit` had them.
        """
        check_is_fitted(self)
        self = self._snapshot()
        x = self._check_queries(X)
        prior_mean = self._prior_mean(prior_scores, len(x))[0].mT.numpy()
        chunk = max(1, _QUERY_ELEMENTS // (self._support.n_way * len(self._support.y)))
        with one_thread(is_small=len(x) * self._support.n_way <= SMALL):
            parts = [self._latent(torch.tensor(x[i : i + chunk])[None]) for i in range(0, len(x), chunk)]
        mean, var = (torch.cat(tensors, -1)[0].mT.numpy() for tensors in zip(*parts, strict=True))
        return mean + prior_mean, var

    @torch.no_grad()
    def _latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cross = self.kernel_(self._support.x, x, centre=self._centre)
        return predict_latent(self._posterior, cross, self.kernel_.diagonal(x, centre=self._centre))

    def predict_log_proba(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Logarithm of the class probabilities, shape (n_queries, n_classes); arguments as in `predict_latent`."""
        self = self._snapshot()
        mean, var = self.predict_latent(X, prior_scores)
        with one_thread(is_small=mean.size <= SMALL):
            log_prob = log_predictive(torch.tensor(mean), torch.tensor(var), temperature=self.temperature_)
        return np.asarray(log_prob.numpy())

    def predict_proba(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Class probabilities, shape (n_queries, n_classes); columns in the order of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X, prior_scores)))

    def predict(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[Any]:
        """Most probable class of each query, shape (n_queries,)."""
        self = self._snapshot()
        best = self.predict_log_proba(X, prior_scores).argmax(1)
        return np.asarray(self.classes_[best])


def _check_classes(rows: Rows, classes: NDArray[Any], used: NDArray[np.bool_]) -> None:
    present = np.unique(rows.targets[used])
    if len(present) >= 2 or (rows.declared is not None and len(classes) >= 2 and len(present)):
        return
    only = f"one class, {present[0]!r}" if len(present) else "no class"
    raise InvalidInputError(
        f"Expected examples of at least two classes with positive weight, but got {only}. "
        "Add an example of another class."
    )

"""The methods of `FewShotClassifier` that change its examples: add, remove, and learn in parts."""

import abc
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from mirrorshot.estimator.base import check_has_scores, check_scores, to_numpy
from mirrorshot.estimator.rows import Rows, check_index, join_labels
from mirrorshot.gaussian import GaussianPosterior, GaussianSites
from mirrorshot.kernels import Kernel
from mirrorshot.likelihoods import softmax_moments
from mirrorshot.selection import Support
from mirrorshot.types import InvalidInputError

_LOCAL_STEPS = 10

Self = TypeVar("Self", bound="EditingMixin")


class EditingMixin(abc.ABC):
    """Examples come and go; the classifier is then what `fit` on the examples it has would have made it.

    After any sequence of edits, bound and probabilities are those of `fit` on the same examples in the same order, with
    the same parameters, to 1e-6: centre, kernel and temperature are chosen again. Inference starts from what is known
    (`mirrorshot.inference.newton`), which makes one more example cheap. Where it ends is accepted only if the gradient
    of the bound proves that it is the optimum; otherwise the examples are solved anew, exactly as `fit` does. `start_`
    says which happened. Several kernels to compare ("loo") and latents with a prior standard deviation above 16 are
    always solved anew. An error leaves everything as it was.
    """

    classes_: NDArray[Any]
    kernel_: Kernel
    _support: Support
    _posterior: GaussianPosterior
    _centre: Tensor
    _used: NDArray[np.bool_]
    _rows: Rows

    @abc.abstractmethod
    def _check_parameters(self) -> None:
        """Refuse options that do not exist."""

    @abc.abstractmethod
    def _check_examples(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[np.float64]]:
        """Examples, labels and weights as arrays."""

    @abc.abstractmethod
    def _learn(self, rows: Rows, start: Callable[[Rows], GaussianSites] | None) -> dict[str, Any]:
        """What is learned from the rows, as attributes; nothing of the object changes."""

    @abc.abstractmethod
    def _accept(self: Self, fitted: dict[str, Any], X: ArrayLike | None = None) -> Self:
        """Become what was learned, all at once."""

    @abc.abstractmethod
    def _latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the latent function of each class at (1, M, D), each of shape (1, C, M)."""

    def add(
        self: Self,
        X: ArrayLike,
        y: Any,
        sample_weight: ArrayLike | None = None,
        prior_scores: ArrayLike | None = None,
    ) -> Self:
        """Add one labelled example or several, after those that are there; a label may be new.

        The same as `fit` on all examples (bound and probabilities to 1e-6), but mostly quicker: it starts from what was
        learned, and `start_` is then "previous".

        Args:
            X: embeddings, shape (n_examples, n_features), or (n_features,) for one.
            y: their labels, or one label; they must sort with the others.
            sample_weight: how often each example counts.
            prior_scores: as of `fit`, for the new examples; needed if and only if `fit` had them. Then no label may be
                new, because the other examples have no score for it.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:9], y[:9])  # no 9 yet
            >>> few.add(X[9], y[9]).classes_.tolist()
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        _check_has_examples(self)
        if np.ndim(X) == 1:
            X, y = np.asarray(to_numpy(X))[None], [y]
            prior_scores = None if prior_scores is None else np.atleast_2d(to_numpy(prior_scores))
        self._check_parameters()
        x, targets, weight = self._check_examples(X, y, sample_weight)
        validate_data(self, X, reset=False, skip_check_array=True)
        self._check_width(x)
        return self._extend(Rows(x, targets, weight, self._rows.declared), prior_scores)

    def remove(self: Self, index: Any, *, drop_class: bool = False) -> Self:
        """Take examples out, by their place among those that are there (as in `suspects().row` and `explain`).

        Args:
            index: one place or several, from 0.
            drop_class: what happens to a class that loses its last example: it goes too, or (default) this is an error.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> few.remove([0, 7]).explain(X[30:31]).shape
            (1, 10, 28)
        """
        _check_has_examples(self)
        self._check_parameters()
        rows = self._rows
        keep = np.ones(len(rows.targets), dtype=bool)
        keep[check_index(index, len(keep))] = False
        lost = np.setdiff1d(rows.targets[~keep], rows.targets[keep])
        if len(lost) and not drop_class:
            raise InvalidInputError(
                f"Expected every class to keep an example, but {lost[0]!r} would lose its last one. "
                "Add another one first, or pass drop_class=True to forget the class."
            )
        declared = None if rows.declared is None else np.setdiff1d(rows.declared, lost)
        kept = Rows(rows.x[keep], rows.targets[keep], rows.weight[keep], declared)
        if rows.prior is not None:
            kept = kept._replace(prior=rows.prior[keep][:, np.isin(self.classes_, kept.classes())])
        return self._accept(self._learn(kept, lambda new: self._known_sites(new, np.flatnonzero(keep))))

    def partial_fit(
        self: Self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        prior_scores: ArrayLike | None = None,
    ) -> Self:
        """Learn from a part of the examples; the earlier parts stay (scikit-learn's contract).

        Args:
            X: embeddings, shape (n_examples, n_features).
            y: their labels.
            classes: all labels that will ever come; needed in the first call. A class without an example has the
                probability that the prior gives it.
            sample_weight: how often each example counts.
            prior_scores: as of `fit`, for these examples, columns in the order of the sorted classes; in all calls or
                in none.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from mirrorshot import FewShotClassifier
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().partial_fit(X[:3], y[:3], classes=range(10))
            >>> few.partial_fit(X[3:30], y[3:30]).predict_proba(X[30:32]).shape
            (2, 10)
        """
        self._check_parameters()
        is_first = not hasattr(self, "_rows")
        if is_first and classes is None:
            raise InvalidInputError(
                "Expected `classes` in the first call of partial_fit, but got None. Name all labels."
            )
        x, targets, weight = self._check_examples(X, y, sample_weight)
        known = np.unique(np.asarray(classes)) if is_first else self.classes_
        if not is_first and classes is not None and not np.array_equal(np.unique(np.asarray(classes)), known):
            raise InvalidInputError(
                f"Expected `classes` to be those of the first call, {known.tolist()}, but got "
                f"{np.unique(np.asarray(classes)).tolist()}."
            )
        unknown = np.setdiff1d(targets, known)
        if len(unknown):
            raise InvalidInputError(
                f"Expected labels among the classes {known.tolist()}, but got {unknown[0]!r}. "
                "Use `add` for a new class."
            )
        if len(known) < 2:
            raise InvalidInputError(f"Expected at least two `classes`, but got one class, {known.tolist()}.")
        if is_first:
            prior = None if prior_scores is None else check_scores(prior_scores, len(x), len(known))
            return self._accept(self._learn(Rows(x, targets, weight, known, prior), None), X)
        validate_data(self, X, reset=False, skip_check_array=True)
        self._check_width(x)
        return self._extend(Rows(x, targets, weight, known), prior_scores)

    def _check_width(self, x: NDArray[np.float64]) -> None:
        if x.shape[1] != self._rows.x.shape[1]:
            raise InvalidInputError(
                f"X has {x.shape[1]} features, but {type(self).__name__} is expecting {self._rows.x.shape[1]} features "
                "as input."
            )

    def _extend(self: Self, more: Rows, prior_scores: ArrayLike | None) -> Self:
        old = self._rows
        check_has_scores(prior_scores, old.prior is not None)
        rows = Rows(
            np.concatenate([old.x, more.x]),
            join_labels(old.targets, more.targets),
            np.concatenate([old.weight, more.weight]),
            more.declared,
        )
        if prior_scores is not None and old.prior is not None:
            unknown = np.setdiff1d(rows.classes(), self.classes_)
            if len(unknown):
                raise InvalidInputError(
                    f"Expected labels among {self.classes_.tolist()}, because the examples have prior scores for these "
                    f"alone, but got {unknown[0]!r}. Fit all examples again, with scores for the new class."
                )
            new = check_scores(prior_scores, len(more.x), len(self.classes_))
            rows = rows._replace(prior=np.concatenate([old.prior, new]))
        origin = np.concatenate([np.arange(len(old.targets)), np.full(len(more.targets), -1)])
        return self._accept(self._learn(rows, lambda new: self._known_sites(new, origin)))

    @torch.no_grad()
    def _known_sites(self, rows: Rows, origin: NDArray[np.intp]) -> GaussianSites:
        """Sites to start from, by the place each row had before (-1: it is new).

        A point that stays keeps its site, and a class that is new gets the average of the other ones that the point is
        no example of. A new point gets the site that is right if nothing else changes.
        """
        used = rows.weight > 0
        origin, targets = origin[used], rows.targets[used]
        place = np.cumsum(self._used) - 1  # of a row among the sites
        classes = rows.classes()
        before = np.searchsorted(self.classes_, classes).clip(max=len(self.classes_) - 1)
        is_old_class = torch.tensor(self.classes_[before] == classes)
        stays = torch.tensor(origin >= 0)
        own = torch.tensor(np.searchsorted(classes, targets))
        sites = [torch.zeros(len(classes), len(own), dtype=torch.float64) for _ in range(2)]
        for whole, old in zip(sites, self._posterior.sites, strict=True):
            part = old[0][torch.tensor(before)][:, torch.tensor(place[origin[origin >= 0]])]
            others = is_old_class[:, None] & (torch.arange(len(classes))[:, None] != own[stays])
            average = (part * others).sum(0) / others.sum(0).clamp(min=1)
            whole[:, stays] = torch.where(is_old_class[:, None], part, average)
        if not bool(stays.all()):
            prior = None if rows.prior is None else torch.tensor(rows.prior[used][origin < 0].T)
            new = self._site_alone(rows.x[used][origin < 0], is_old_class, torch.tensor(before), own[~stays], prior)
            for whole, site in zip(sites, new, strict=True):
                whole[:, ~stays] = site
        # a weight that was given to a new point counts the site as often
        factor = torch.where(stays, 1.0, torch.tensor(rows.weight[used]))
        return GaussianSites((sites[0] * factor)[None], (sites[1] * factor)[None])

    def _site_alone(
        self, x: NDArray[np.float64], is_old_class: Tensor, before: Tensor, own: Tensor, prior_mean: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Fixed point of the mirror step at each new point by itself, the other sites held: (C, n_new) each."""
        mean, var = (part[0][before] for part in self._latent(torch.tensor(x)[None]))
        prior = self.kernel_.diagonal(torch.tensor(x)[None], centre=self._centre)[0].double()
        mean = torch.where(is_old_class[:, None], mean, 0.0)
        var = torch.where(is_old_class[:, None], var, prior).clamp(min=1e-9)
        label = torch.nn.functional.one_hot(own, len(mean)).mT.double()
        b, w = torch.zeros_like(mean), torch.zeros_like(mean)
        for _ in range(_LOCAL_STEPS):
            v = var / (1 + w * var)
            m = v * (mean / var + b)
            moments = softmax_moments((m if prior_mean is None else m + prior_mean).mT, v.mT)
            c = moments.curvature.mT
            b, w = 0.5 * (b + label - moments.prob.mT + c * m), 0.5 * (w + c)
        return b, w


def _check_has_examples(model: Any) -> None:
    if not hasattr(model, "_rows"):
        check_is_fitted(
            model, msg="%(name)s has no examples yet. Call `fit`, or `partial_fit` with all classes, first."
        )

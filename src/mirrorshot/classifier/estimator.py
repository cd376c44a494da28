"""`FewShotClassifier`: the scikit-learn interface to the functions of a `Fitted` value.

Longer than other files because it holds one public class, whose methods are mostly docstrings.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_X_y
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from mirrorshot.classifier import decide, edit, explain, predict, promise
from mirrorshot.classifier.decide import Suspects
from mirrorshot.classifier.decisions import Uncertainty
from mirrorshot.classifier.examples import Examples
from mirrorshot.classifier.explain import Evidence
from mirrorshot.classifier.fit import Settings, learn
from mirrorshot.classifier.fitted import Fitted
from mirrorshot.classifier.inputs import (
    as_written,
    check_embeddings,
    check_labels,
    check_scores,
    check_share,
    check_weights,
    differ_in_units,
    to_numpy,
)
from mirrorshot.classifier.learned import Learned
from mirrorshot.classifier.prior import Prior
from mirrorshot.classifier.promise import Rejection
from mirrorshot.classifier.save import HEAD_VERSION, HeadState, head_state, restore_head
from mirrorshot.files.sealed import load_sealed, save_sealed
from mirrorshot.gp.kernels import Kernel
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Self

_LEARNED = {  # attribute of the estimator, field of `Fitted`
    "classes_": "classes",
    "kernel_": "kernel",
    "outputscale_": "outputscale",
    "temperature_": "temperature",
    "temperature_std_": "temperature_std",
    "loo_log_likelihood_": "loo_log_likelihood",
    "elbo_": "elbo",
    "gap_": "gap",
    "start_": "start",
    "n_iter_": "n_steps",
}
_UNITS = (
    "The scales of the columns of X differ thirtyfold, and the largest decide. If they are measurements in different "
    "units, standardise them: make_pipeline(StandardScaler(), FewShotClassifier())."
)


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Gaussian-process classifier for a handful of labelled examples per class.

    One latent function per class has a Gaussian-process prior over the embeddings; a softmax turns them into class
    probabilities; variational inference finds the best Gaussian posterior. Kernel parameters and temperature are chosen
    from the examples themselves (leave-one-out predictive likelihood), so no validation set is needed, and one example
    per class is enough. Nothing is random: the same data give the same answer.

    Predictions in one thread while another one fits or edits come from one fit, the earlier or the new one. Fits and
    edits of one classifier in several threads need a lock. A fit that would exceed the memory of the machine is refused
    before it starts: 5000 examples of 10 classes with 256 features need about 1.1 GiB
    (`mirrorshot.classifier.memory.bytes_needed`). The environment variable `MIRRORSHOT_MAX_MEMORY_GIB` sets another
    limit. Embeddings must be finite, with absolute values up to 1e100; the largest must be at least 1e-100, unless all
    are zero.

    Args:
        kernel: "auto" is "cosine" for embeddings. Fewer than 100 features may be measurements of a table, and "auto"
            chooses "cosine" or "rbf" by leave-one-out likelihood ("rbf" for a single feature, whose cosine is only its
            sign); standardise columns of different units before. Or "cosine", "rbf", "matern", "linear", "polynomial"
            by name, or a `mirrorshot.gp.kernels.Kernel`, used with its parameters.
        outputscale: prior variance of the latents. "auto" takes it from the prior; without a prior it is 30, for
            "cosine" with fewer than 100 features 100, for "linear" and "polynomial" 10. "loo" chooses it among 3, 10,
            30 and 100. It mostly changes how sharp the probabilities are, which the temperature undoes.
        lengthscale: lengthscale of "rbf" and "matern", or "loo" to choose it. Other kernels ignore it.
        centre: subtracted from the features. "auto" takes a share of the mean of the examples: that of the prior, or as
            much as the examples can distinguish from zero. Or "mean", or "none".
        temperature: latent means are divided by it, after their variance has moderated them
            (`mirrorshot.classifier.link`). "loo" chooses it and averages over its remaining uncertainty.
        prior: the prior of an encoder's embeddings (`mirrorshot.classifier.prior.Prior`), with the kernel "auto" or
            "cosine". None uses broad rules: for "cosine", embeddings get unit length, after square roots if no example
            has a negative value.

    Attributes:
        classes_: the class labels.
        n_features_in_: number of features.
        kernel_: the chosen kernel.
        outputscale_, temperature_: the chosen values.
        temperature_std_: standard deviation of the log temperature; predictions average over it.
        loo_log_likelihood_: leave-one-out predictive log-likelihood of the examples, in nats. The Gaussian site of the
            example that is left out is removed in closed form; the other sites, kernel and centre stay.
        elbo_: lower bound of the log evidence of the labels, in nats.
        gap_: nats by which `elbo_` is below the best bound, at most: proven by its gradient
            (`mirrorshot.gp.certificate`), up to the accuracy of the quadrature. None for a classifier from a file that
            lacks it.
        start_: where inference started: "previous" if an edit reached a proven solution from the earlier posterior,
            otherwise "prior".
        n_iter_: number of steps of inference.
        fitted_: all of the above and the posterior as one immutable value, for functions of `mirrorshot.classifier`.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> few = FewShotClassifier().fit(X[:30], y[:30])
        >>> few.predict(X[30:36])
        array([0, 9, 5, 5, 6, 5])
        >>> few.predict_proba(X[30:33]).max(axis=1).round(2).tolist()
        [0.99, 1.0, 0.96]
    """

    classes_: NDArray[Any]
    outputscale_: float
    temperature_: float
    temperature_std_: float
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    fitted_: Fitted

    def __init__(
        self,
        kernel: str | Kernel = "auto",
        *,
        outputscale: float | str = "auto",
        lengthscale: float | str = "loo",
        centre: str = "auto",
        temperature: float | str = "loo",
        prior: Prior | None = None,
    ) -> None:
        self.kernel = kernel
        self.outputscale = outputscale
        self.lengthscale = lengthscale
        self.centre = centre
        self.temperature = temperature
        self.prior = prior

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, prior_scores: ArrayLike | None = None
    ) -> Self:
        """Learn from labelled examples.

        Args:
            X: embeddings, shape (n_examples, n_features).
            y: labels of any kind, shape (n_examples,).
            sample_weight: how often each example counts; an example of weight 2 is the same as two examples.
            prior_scores: scores of each example before any label, shape (n_examples, n_classes), columns in the order
                of `classes_`: for instance zero-shot scores of a text-image model. They are the prior mean of the
                latents, in their unit (a difference of 1 is a factor e between probabilities, before the temperature);
                the examples correct them. Queries then need scores, too.

        Returns:
            The classifier itself. If an error is raised, an earlier fit stays as it was.
        """
        settings = self._settings()
        examples = self._examples(X, y, sample_weight)
        if settings.kernel == "auto" and settings.prior is None and differ_in_units(examples.x):
            warnings.warn(_UNITS, stacklevel=2)
        if prior_scores is not None:
            prior = check_scores(prior_scores, len(examples.x), len(examples.classes()))
            examples = examples._replace(prior=prior)
        return self._become(learn(settings, examples), X)

    def partial_fit(
        self,
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
            classes: all labels of this and later calls; required in the first call. A class without an example has the
                probability that the prior gives it.
            sample_weight: how often each example counts.
            prior_scores: as in `fit`, for these examples, columns in the order of the sorted classes; in all calls or
                in none.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().partial_fit(X[:3], y[:3], classes=range(10))
            >>> few.partial_fit(X[3:30], y[3:30]).predict_proba(X[30:32]).shape
            (2, 10)
        """
        settings = self._settings()
        is_first = not hasattr(self, "fitted_")
        examples = self._examples(X, y, sample_weight)
        known = _declared(None if is_first else self.fitted_.classes, classes, examples.targets)
        examples = examples._replace(declared=known)
        if is_first:
            prior = None if prior_scores is None else check_scores(prior_scores, len(examples.x), len(known))
            return self._become(learn(settings, examples._replace(prior=prior)), X)
        validate_data(self, X, reset=False, skip_check_array=True)
        return self._become(edit.extend(self.fitted_, settings, examples, prior_scores))

    def add(
        self,
        X: ArrayLike,
        y: Any,
        sample_weight: ArrayLike | None = None,
        prior_scores: ArrayLike | None = None,
    ) -> Self:
        """Add one labelled example or several, after the existing ones; a label may be new.

        Equals `fit` on all examples (bound and probabilities to 1e-6), but is mostly faster: inference starts from the
        earlier posterior, and `start_` is then "previous".

        Args:
            X: embeddings, shape (n_examples, n_features), or (n_features,) for one.
            y: their labels, or one label for all; they must sort with the others.
            sample_weight: how often each example counts.
            prior_scores: as in `fit`, for the new examples; required if and only if `fit` had them. Labels cannot be
                new then.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:9], y[:9])  # no 9 yet
            >>> few.add(X[9], y[9]).classes_.tolist()
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        fitted, settings = self._editable(), self._settings()
        if np.ndim(X) == 1:
            X = np.asarray(to_numpy(X))[None]
            prior_scores = None if prior_scores is None else np.atleast_2d(to_numpy(prior_scores))
        examples = self._examples(X, [y] * np.shape(X)[0] if np.ndim(y) == 0 else y, sample_weight)
        validate_data(self, X, reset=False, skip_check_array=True)
        more = examples._replace(declared=fitted.examples.declared)
        return self._become(edit.extend(fitted, settings, more, prior_scores))

    def remove(self, index: Any, *, drop_class: bool = False) -> Self:
        """Remove examples by index among the current examples (as in `suspects().row` and `explain`).

        Args:
            index: one index or several, from 0.
            drop_class: whether to remove a class that loses its last example; False raises an error instead.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> few.remove([0, 7]).explain(X[30:31]).shape
            (1, 10, 28)
        """
        fitted, settings = self._editable(), self._settings()
        return self._become(edit.reduce(fitted, settings, index, drop_class=drop_class))

    def predict_latent(
        self, X: ArrayLike, prior_scores: ArrayLike | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and variance of the latent function of each class, each of shape (n_queries, n_classes).

        Args:
            X: embeddings, shape (n_queries, n_features).
            prior_scores: as in `fit`, for the queries; required if and only if `fit` had them.
        """
        return predict.latents(*self._queries(X, prior_scores))

    def predict_log_proba(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the logarithm of `predict_proba`, with the same arguments."""
        return predict.log_proba(*self._queries(X, prior_scores))

    def predict_proba(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the class probabilities, shape (n_queries, n_classes); columns in the order of `classes_`."""
        return predict.proba(*self._queries(X, prior_scores))

    def predict(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[Any]:
        """Return the most probable class of each query, shape (n_queries,)."""
        fitted, x, prior_mean = self._queries(X, prior_scores)
        return np.asarray(fitted.classes[predict.log_proba(fitted, x, prior_mean).argmax(1)])

    def uncertainty(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> Uncertainty:
        """Return the uncertainty of each query's label, and the part of it that more examples could remove.

        `total` is the entropy of `predict_proba`, in nats.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> few.uncertainty(X[30:33]).epistemic.round(2).tolist()
            [0.05, 0.03, 0.18]
        """
        return decide.uncertainty(*self._queries(X, prior_scores))

    def novelty(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return how little each query belongs to any class, from 0 to 1, shape (n_queries,).

        One minus the largest product, over the classes, of probability (before the temperature) and share of the prior
        variance that the examples explain at the query. It ranks queries and is no probability.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> known = y < 5
            >>> few = FewShotClassifier().fit(X[known][:30], y[known][:30])
            >>> bool(few.novelty(X[~known]).mean() > few.novelty(X[known][30:]).mean())
            True
        """
        return decide.novelty(*self._queries(X, prior_scores))

    def novelty_threshold(self, rate: float = 0.05) -> float:
        """Return the novelty that about a share `rate` of new queries of the known classes exceeds.

        It is computed from the novelty of each example, predicted from the others. It is the largest of these with
        fewer than `1 / rate` examples, and for any `rate` with a single example of every class. With fewer than three
        examples it is 1, which no query exceeds.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:50], y[:50])
            >>> 0.0 < few.novelty_threshold() < 1.0
            True
        """
        check_is_fitted(self)
        check_share("rate", rate)
        return decide.novelty_threshold(self.fitted_, rate)

    def suspects(self) -> Suspects:
        """Return examples with a label that the other examples contradict, the most suspicious first.

        The rank is the probability of the label, predicted without the example. The only example of a class is not in
        the list.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> X, y = X[y < 5][:30], y[y < 5][:30]
            >>> y[7] = 4  # it is a 2
            >>> found = FewShotClassifier().fit(X, y).suspects()
            >>> int(found.row[0]), int(found.label[0])
            (7, 2)
        """
        check_is_fitted(self)
        return decide.suspects(self.fitted_)

    def suggest(self, X_pool: ArrayLike, k: int = 1) -> NDArray[np.intp]:
        """Return the indices of the `k` examples of a pool to label next, the most useful first.

        Each is the example whose label, whatever it is, reduces the uncertainty of the whole pool the most, given the
        earlier ones (method: `mirrorshot.classifier.decisions.suggest`). Memory grows with the square of the pool;
        sample from more than 10,000.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:10], y[:10])
            >>> few.suggest(X[10:200], k=3).shape
            (3,)
        """
        check_is_fitted(self)
        if np.shape(X_pool)[:1] == (0,):
            raise InvalidInputError("Expected `X_pool` to hold at least one example, but it is empty.")
        fitted, pool = self._checked(X_pool)
        return decide.suggest(fitted, pool, k)

    def explain(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return each example's contribution to the latents, shape (n_queries, n_classes, n_examples).

        The sum over the examples is exactly the mean of `predict_latent`, minus the prior scores if there are any. An
        example of weight zero contributes nothing.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> weight = few.explain(X[30:31])[0, 0]  # for class 0
            >>> int(y[weight.argmax()])
            0
        """
        return explain.contributions(*self._checked(X))

    def influence(self, X: ArrayLike, prior_scores: ArrayLike | None = None) -> NDArray[np.float64]:
        """Return the change of the probabilities by each example, shape (n_queries, n_classes, n_examples).

        It is the probability of a class minus the one without the example. The Gaussian site of the example is removed
        in closed form (`mirrorshot.classifier.decisions.effects`); kernel, centre, temperature and the other sites
        stay. A fit without the example, as by `remove`, differs a little, because the other sites move.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> change = few.influence(X[30:31])[0, 0]  # of class 0
            >>> int(y[change.argmax()])
            0
        """
        return explain.influence(*self._queries(X, prior_scores))

    def evidence(self, X: ArrayLike, k: int = 3, *, prior_scores: ArrayLike | None = None) -> Evidence:
        """Return the `k` examples with the largest contributions to the predicted class of each query.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:30], y[:30])
            >>> found = few.evidence(X[30:32], k=2)
            >>> y[found.row].tolist(), few.predict(X[30:32]).tolist()
            ([[0, 0], [9, 9]], [0, 9])
        """
        return explain.evidence(*self._queries(X, prior_scores), k)

    def predict_set(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        guarantee: bool = False,
        prior_scores: ArrayLike | None = None,
    ) -> NDArray[np.bool_]:
        """Return sets of labels that contain the true label with a probability of `coverage`.

        The sets are conformal, with leave-one-out scores (method: `mirrorshot.classifier.promise.predict_set`).
        Coverage is an average over tasks and queries. A query unlike all examples can have an empty set.

        Args:
            X: embeddings, shape (n_queries, n_features).
            coverage: between 0 and 1, at most `n / (n + 1)` with `n` examples that are not the only one of their class.
            guarantee: use conservative thresholds, without interpolation, and all examples for the query. Sets are
                larger and cover more than `coverage`. A proof would need examples that the classifier has not learned
                from.
            prior_scores: as in `predict_latent`.

        Returns:
            Whether each label is in the set, shape (n_queries, n_classes); columns in the order of `classes_`.

        Raises:
            InvalidInputError: if there are too few examples for the coverage.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> X, y = load_digits(return_X_y=True)
            >>> few = FewShotClassifier().fit(X[:50], y[:50])
            >>> in_set = few.predict_set(X[50:53], coverage=0.9)
            >>> [few.classes_[row].tolist() for row in in_set]
            [[2], [2], [7]]
        """
        check_share("coverage", coverage)
        return promise.predict_set(*self._queries(X, prior_scores), coverage, guarantee=guarantee)

    def reject(
        self,
        X: ArrayLike,
        target_risk: float = 0.05,
        *,
        delta: float | None = None,
        prior_scores: ArrayLike | None = None,
    ) -> Rejection:
        """Choose queries to abstain from, so that at most a share `target_risk` of the accepted ones is wrong.

        A query is accepted if the probability of its best class reaches the lowest threshold at which the examples,
        each predicted from the others, keep to the target (method: `mirrorshot.classifier.promise.reject`). Without
        `delta` this relies on the probabilities, with a warning if the errors of the examples contradict them. With
        `delta` the errors are counted, and the risk is below the target with a confidence of `1 - delta` over the draw
        of the examples. If no threshold keeps to the target, everything is rejected, with a warning.

        Args:
            X: embeddings, shape (n_queries, n_features).
            target_risk: between 0 and 1.
            delta: between 0 and 1, or None. 0.05 at a risk of 0.05 needs 59 examples.
            prior_scores: as in `predict_latent`.

        Raises:
            InvalidInputError: if there are too few examples for `delta`.

        Example:
            >>> from sklearn.datasets import load_digits
            >>> from sklearn.utils import shuffle
            >>> X, y = shuffle(*load_digits(return_X_y=True), random_state=1)
            >>> few = FewShotClassifier().fit(X[:50], y[:50])
            >>> found = few.reject(X[50:], target_risk=0.1)
            >>> wrong = few.predict(X[50:]) != y[50:]
            >>> wrong.mean().round(2).item(), wrong[~found.rejected].mean().round(2).item()
            (0.13, 0.08)
        """
        check_share("target_risk", target_risk)
        if delta is not None:
            check_share("delta", delta)
        return promise.reject(*self._queries(X, prior_scores), target_risk, delta)

    def save(self, path: str | Path) -> None:
        """Write the fitted classifier to one file, atomically.

        Args:
            path: name of the file, in an existing folder.

        Raises:
            InvalidInputError: labels or kernel cannot be written. Labels must be text, numbers or booleans, and the
                kernel one of this package.

        Example:
            >>> import tempfile
            >>> few = FewShotClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"])
            >>> path = Path(tempfile.mkdtemp()) / "head"
            >>> few.save(path)
            >>> FewShotClassifier.load(path).predict([[0.1, 0.9]]).tolist()
            ['a']
        """
        tensors, info = self.state()
        save_sealed(Path(path), tensors, info, kind="head", version=HEAD_VERSION)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a classifier written by `save`. Nothing in the file is executed.

        Raises:
            CheckpointError: the file is truncated, changed, foreign, or of a newer mirrorshot.
        """
        saved = load_sealed(Path(path), kind="head", version=HEAD_VERSION)
        return cls.from_state(HeadState(saved.tensors, saved.info), str(path))

    def state(self) -> HeadState:
        """Return the fitted classifier as plain arrays and JSON, for files that contain more than the classifier."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        return head_state(
            Learned(self.fitted_, self._settings(), None if names is None else [str(name) for name in names])
        )

    @classmethod
    def from_state(cls, state: HeadState, where: str) -> Self:
        """Return the classifier of a state, which `where` names in messages."""
        return cls.from_learned(restore_head(state, where))

    @classmethod
    def from_learned(cls, learned: Learned) -> Self:
        """Return the estimator of a `Learned` value; edits of one do not change the other."""
        new = cls(**learned.settings._asdict())._become(learned.fitted)
        new.n_features_in_ = learned.fitted.examples.x.shape[1]
        if learned.feature_names is not None:
            new.feature_names_in_ = np.array(learned.feature_names, dtype=object)
        return new

    def _settings(self) -> Settings:
        return Settings(**{name: getattr(self, name) for name in Settings._fields}).check()

    def _examples(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None) -> Examples:
        labels = check_labels(to_numpy(y))
        x, targets = check_X_y(to_numpy(X), labels, dtype=np.float64, ensure_all_finite=False, estimator=self)
        x = check_embeddings(x, X)
        if targets.dtype.kind == "f":  # refuse regression targets; all other types that sort are classes
            check_classification_targets(targets)
        if sample_weight is None:
            return Examples(x, targets, np.ones(len(x)), None)
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        return Examples(x, targets, check_weights(weight), None)

    def _editable(self) -> Fitted:
        check_is_fitted(self, msg="%(name)s has no examples yet. Call `fit`, or `partial_fit` with all classes, first.")
        return self.fitted_

    def _snapshot(self) -> Self:
        """Return a shallow copy, which fits and edits in another thread do not change."""
        now = object.__new__(type(self))
        now.__dict__ = self.__dict__.copy()
        return now

    def _become(self, fitted: Fitted, X: ArrayLike | None = None) -> Self:
        """Replace all learned attributes at once: other threads see the earlier classifier or the new one.

        Number and names of the features come from `X`, if it is given.
        """
        after = self._snapshot()
        if X is not None:
            validate_data(after, X, skip_check_array=True)
        learned = {name: getattr(fitted, field) for name, field in _LEARNED.items()}
        self.__dict__ = {**vars(after), **learned, "fitted_": fitted}
        return self

    def _checked(self, X: ArrayLike) -> tuple[Fitted, NDArray[np.float64]]:
        """Return one fit, and checked queries (1, M, D)."""
        check_is_fitted(self)
        now = self._snapshot()
        x = validate_data(now, to_numpy(X), reset=False, dtype=np.float64, ensure_all_finite=False)
        return now.fitted_, check_embeddings(x, X)[None]

    def _queries(
        self, X: ArrayLike, prior_scores: ArrayLike | None
    ) -> tuple[Fitted, NDArray[np.float64], NDArray[np.float64]]:
        return predict.queries(*self._checked(X), prior_scores)


def _declared(known: NDArray[Any] | None, classes: ArrayLike | None, targets: NDArray[Any]) -> NDArray[Any]:
    """Return the classes of `partial_fit`: those of the first call, which must contain all labels."""
    if known is None and classes is None:
        raise InvalidInputError("Expected `classes` in the first call of partial_fit, but got None. Name all labels.")
    named = None if classes is None else np.unique(check_labels(to_numpy(classes)))
    if known is not None and named is not None and not np.array_equal(named, known):
        raise InvalidInputError(
            f"Expected `classes` to be those of the first call, {known.tolist()}, but got {named.tolist()}."
        )
    all_classes: NDArray[Any] = named if known is None and named is not None else np.asarray(known)
    unknown = np.setdiff1d(targets, all_classes)
    if len(unknown):
        raise InvalidInputError(
            f"Expected labels among the classes {all_classes.tolist()}, but got {as_written(unknown[0])}. "
            "Use `add` for a new class."
        )
    if len(all_classes) < 2:
        raise InvalidInputError(f"Expected at least two `classes`, but got one class, {all_classes.tolist()}.")
    return all_classes

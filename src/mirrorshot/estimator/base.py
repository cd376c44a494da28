"""What the mixins of `FewShotClassifier` need of it."""

import abc
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrorshot import decisions
from mirrorshot.gaussian import GaussianPosterior
from mirrorshot.kernels import Kernel
from mirrorshot.selection import Support
from mirrorshot.threads import one_thread
from mirrorshot.types import InvalidInputError

LARGEST = 1e100  # absolute value of an embedding; squares of larger ones overflow, of smaller than its inverse vanish
Self = TypeVar("Self", bound="FittedBase")
SMALL = 2**12  # latents (examples or queries times classes) that one thread computes fastest


class FittedBase(abc.ABC):
    """A classifier that has learned from a support."""

    classes_: NDArray[Any]
    kernel_: Kernel
    outputscale_: float
    temperature_: float
    _support: Support
    _posterior: GaussianPosterior
    _centre: Tensor
    _used: NDArray[np.bool_]

    def _snapshot(self: Self) -> Self:
        """The classifier as it is now: another thread that fits or edits it does not change this one."""
        now = object.__new__(type(self))
        now.__dict__ = self.__dict__.copy()
        return now

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

    @torch.no_grad()
    def _loo_proba(self, fraction: Tensor) -> Tensor:
        """Probabilities (N, C) of the support, each point without a fraction of itself.

        Design note: without `selection.centre_leak`. What the centre knows of a point that is left out makes up for the
        example that is missing; with the correction sets cover too much and fewer wrong labels come first.
        """
        with one_thread(is_small=len(self._support.y) * self._support.n_way <= SMALL):
            log_prob = decisions.loo_log_proba(
                self._posterior, fraction[None], temperature=self.temperature_, prior_mean=self._support.prior_mean
            )
            return log_prob[0].exp()

    def _prior_mean(self, scores: ArrayLike | None, n: int) -> Tensor:
        """Prior means (1, C, n) of queries; zero if neither they nor the examples have scores."""
        check_has_scores(scores, self._support.prior_mean is not None)
        if scores is None:
            return torch.zeros(1, self._support.n_way, n, dtype=torch.float64)
        return torch.tensor(check_scores(scores, n, self._support.n_way).T.copy())[None]


def check_scores(scores: ArrayLike, n: int, n_way: int) -> NDArray[np.float64]:
    """Prior scores of a user as an array of shape (n, n_way)."""
    matrix = np.ascontiguousarray(to_numpy(scores), dtype=np.float64)
    if matrix.shape != (n, n_way) or not np.isfinite(matrix).all():
        raise InvalidInputError(
            f"Expected `prior_scores` to be finite, of shape ({n}, {n_way}), one column for each class, but got shape "
            f"{matrix.shape}{'' if np.isfinite(matrix).all() else ' with NaN or infinity'}."
        )
    return matrix


def check_has_scores(scores: ArrayLike | None, is_wanted: bool) -> None:
    """Refuse prior scores that the examples have not, and none where they have."""
    if (scores is not None) != is_wanted:
        had, got = ("had them", "none") if is_wanted else ("had none", "some")
        raise InvalidInputError(f"Expected `prior_scores` as in `fit`, which {had}, but got {got}.")


def check_share(name: str, value: Any) -> None:
    """Refuse what is no number strictly between 0 and 1."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not 0.0 < value < 1.0:
        raise InvalidInputError(f"Expected `{name}` to be a number between 0 and 1, but got {value!r}.")


def to_numpy(data: Any) -> Any:
    """Torch tensors as arrays (NumPy has no bfloat16: it becomes float32); everything else as it is."""
    if not isinstance(data, Tensor):
        return data
    data = data.detach().cpu()
    return (data.float() if data.dtype == torch.bfloat16 else data).numpy()


def check_embeddings(X: NDArray[np.float64], original: Any) -> NDArray[np.float64]:
    """Embeddings as tensors can take them: finite, of a size that can be squared, and laid out in order.

    Args:
        X: embeddings, shape (n, n_features).
        original: as the user gave them; a frame has names of columns.
    """
    too_large = ~(np.abs(X) <= LARGEST)
    if too_large.any():
        bad = np.argwhere(too_large & ~np.isfinite(X)) if not np.isfinite(X).all() else np.argwhere(too_large)
        row, column = bad[0]
        names = getattr(original, "columns", None)
        where = f"at row {row}, " + (f"column {column}" if names is None else f"column {names[column]!r}")
        value = X[row, column]
        if np.isfinite(value):
            raise InvalidInputError(
                f"Expected embeddings of absolute value at most {LARGEST:g}, but got {value:g} {where}. Rescale them."
            )
        what = "NaN" if np.isnan(value) else "infinity (inf)"
        raise InvalidInputError(
            f"Expected finite embeddings, but input X contains {what} {where} ({len(bad)} such values in all). "
            "Remove or impute them."
        )
    return np.ascontiguousarray(X)


def check_not_tiny(X: NDArray[np.float64]) -> None:
    """Refuse examples so close to zero that their squares vanish."""
    size = np.abs(X).max(initial=0.0)
    if 0.0 < size < 1.0 / LARGEST:
        raise InvalidInputError(
            f"Expected embeddings whose largest absolute value is at least {1.0 / LARGEST:g}, or all zero, but got "
            f"{size:g}. Rescale them."
        )

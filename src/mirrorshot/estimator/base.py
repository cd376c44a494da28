"""What the mixins of `FewShotClassifier` need of it."""

import abc
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrorshot import decisions
from mirrorshot.gaussian import GaussianPosterior
from mirrorshot.kernels import Kernel
from mirrorshot.selection import Support
from mirrorshot.threads import one_thread

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

    @abc.abstractmethod
    def _check_queries(self, X: ArrayLike) -> NDArray[np.float64]:
        """The queries as an array that fits what was learned."""

    @abc.abstractmethod
    def predict_latent(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the latent function of each class, each of shape (n_queries, n_classes)."""

    @abc.abstractmethod
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities, shape (n_queries, n_classes); columns in the order of `classes_`."""

    @torch.no_grad()
    def _loo_proba(self, fraction: Tensor) -> Tensor:
        """Probabilities (N, C) of the support, each point without a fraction of itself.

        Design note: without `selection.centre_leak`. What the centre knows of a point that is left out makes up for the
        example that is missing; with the correction sets cover too much and fewer wrong labels come first.
        """
        with one_thread(is_small=len(self._support.y) * self._support.n_way <= SMALL):
            return decisions.loo_log_proba(self._posterior, fraction[None], temperature=self.temperature_)[0].exp()

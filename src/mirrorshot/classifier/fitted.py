"""The value of a fitted classifier, and the covariances of queries with its examples."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from mirrorshot.classifier.examples import Examples
from mirrorshot.classifier.link import Link
from mirrorshot.classifier.prior import FeatureMap
from mirrorshot.classifier.selection import Support
from mirrorshot.gp.kernels import Kernel
from mirrorshot.gp.threads import one_blas_thread
from mirrorshot.gp.weight_space import Posterior
from mirrorshot.softmax.arrays import NDArray

Queries: TypeAlias = Float[NDArray[np.float64], "1 M D"]
PriorMeans: TypeAlias = Float[NDArray[np.float64], "1 C M"]
"""Means of the prior of the latents at queries."""

_SMALL = 2**12  # latents that one thread computes fastest


class Fitted(NamedTuple):
    """Everything that was learned from the examples; immutable, so that threads can share it.

    Attributes:
        examples: the examples as they were given.
        classes: the class labels, sorted.
        map: from embeddings to the features that the kernel sees.
        support: the examples that count, as a batch of one task; their features.
        kernel: the kernel that was chosen.
        centre: subtracted from the features, (1, 1, D).
        outputscale: mean prior variance of the latents.
        link: from latents to probabilities.
        posterior: of the latents at the support, a batch of one task.
        loo_log_likelihood: leave-one-out predictive log-likelihood of the examples, in nats.
        elbo: lower bound of the log evidence, in nats.
        gap: nats by which `elbo` is below its optimum, at most; None if that is not known.
        start: "prior" or "previous": where inference started.
        n_steps: steps of inference taken.
    """

    examples: Examples
    classes: NDArray[Any]
    map: FeatureMap
    support: Support
    kernel: Kernel
    centre: Float[NDArray[np.float64], "1 1 D"]
    outputscale: float
    link: Link
    posterior: Posterior
    loo_log_likelihood: float
    elbo: float
    gap: float | None
    start: str
    n_steps: int

    @property
    def temperature(self) -> float:
        """Temperature of the probabilities: the exponential of the mean of its logarithm."""
        return self.link.temperature

    @property
    def temperature_std(self) -> float:
        """Standard deviation of the logarithm of the temperature."""
        return self.link.temperature_std

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which examples count: those of positive weight."""
        return self.examples.weight > 0

    def cross(self, x: Queries) -> tuple[Float[NDArray[np.float64], "1 _ N M"], Float[NDArray[np.float64], "1 _ M"]]:
        """Return the prior covariances of the support with queries, and the prior variances of these."""
        return self.kernel.cross(self.support.x, self.map(x), centre=self.centre)

    def prior_var(self, x: Queries) -> Float[NDArray[np.float64], "1 _ M"]:
        """Return the prior variances of queries."""
        return self.kernel.diagonal(self.map(x), centre=self.centre)


@contextlib.contextmanager
def few_threads(n_latents: int) -> Iterator[None]:
    """Compute with one thread where the work is small: latents are examples or queries times classes.

    Exponentials of extreme embeddings overflow and vanish as they should, without warnings.
    """
    with np.errstate(all="ignore"), one_blas_thread(is_small=n_latents <= _SMALL):
        yield

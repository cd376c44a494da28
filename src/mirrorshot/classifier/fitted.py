"""The value of a fitted classifier, with the covariances of queries and its examples."""

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
"""Prior means of the latents at queries."""

_SMALL = 2**12  # up to this many latents, one thread is fastest


class Fitted(NamedTuple):
    """Everything that was learned from the examples; immutable, so threads can share it.

    Attributes:
        examples: the examples of the user.
        classes: the class labels, sorted.
        map: from embeddings to the features that the kernel sees.
        support: the examples of positive weight with their features, as a batch of one task.
        kernel: the chosen kernel.
        centre: subtracted from the features, (1, 1, D).
        outputscale: mean prior variance of the latents.
        link: from latents to probabilities.
        posterior: of the latents at the support, a batch of one task.
        loo_log_likelihood: leave-one-out predictive log-likelihood of the examples, in nats.
        elbo: lower bound of the log evidence, in nats.
        gap: nats by which `elbo` is below its optimum, at most; None if unknown (old files).
        start: where inference started, "prior" or "previous".
        n_steps: number of steps of inference.
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
        """Temperature of the probabilities: the exponential of the mean log temperature."""
        return self.link.temperature

    @property
    def temperature_std(self) -> float:
        """Standard deviation of the log temperature."""
        return self.link.temperature_std

    @property
    def used(self) -> NDArray[np.bool_]:
        """Whether each example has positive weight."""
        return self.examples.weight > 0

    def cross(self, x: Queries) -> tuple[Float[NDArray[np.float64], "1 _ N M"], Float[NDArray[np.float64], "1 _ M"]]:
        """Return the prior covariances of support and queries, and the prior variances of the queries."""
        return self.kernel.cross(self.support.x, self.map(x), centre=self.centre)

    def prior_var(self, x: Queries) -> Float[NDArray[np.float64], "1 _ M"]:
        """Return the prior variances of queries."""
        return self.kernel.diagonal(self.map(x), centre=self.centre)


@contextlib.contextmanager
def few_threads(n_latents: int) -> Iterator[None]:
    """Use one thread if there are few latents (examples or queries times classes).

    NumPy's floating-point warnings are off: exponentials of extreme embeddings overflow and vanish as they should.
    """
    with np.errstate(all="ignore"), one_blas_thread(is_small=n_latents <= _SMALL):
        yield

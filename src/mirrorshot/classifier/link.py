"""Class probabilities from latents: a moderated softmax, averaged over the uncertainty of its temperature.

    z_c = (m_c - mean of m over classes) / sqrt(1 + kappa v_c),    p = sum_k h_k softmax(z / (tau exp(sigma x_k)))

`m` and `v` are means and variances of the latents; `x_k` and `h_k` are nodes and weights of a Gauss-Hermite rule with
three nodes, for a normal log temperature of mean `log tau` and standard deviation `sigma`. Subtracting the mean over
classes removes a score that all classes share. It is zero without prior scores, if all classes share the kernel.

Rejected: `E[softmax]^(1 / tau)`, the form of earlier versions. At the best temperature of each set of embeddings it has
the higher NLL on almost all sets, above all with many classes (`docs/research.md`).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.classifier.prior import has_few_features
from mirrorshot.gp.kernels import Cosine, Kernel
from mirrorshot.softmax.arrays import NDArray, log_softmax
from mirrorshot.softmax.moments import log_predictive

EMBEDDINGS, OTHERS = 0.03, 0.4
"""`kappa`: how much the variance moderates the means. The first is for cosines of embeddings (0.01 to 0.1 are nearly
equal), the second for tables and other kernels (0.2 to 1), whose variances differ more between queries."""

NODES = (-math.sqrt(3.0), 0.0, math.sqrt(3.0))
WEIGHTS = (1 / 6, 2 / 3, 1 / 6)


def moderation_of(kernel: Kernel, n_features: int) -> float:
    """Return `kappa` for a kernel and a number of features.

    Example:
        >>> moderation_of(Cosine(), 1280), moderation_of(Cosine(), 4)
        (0.03, 0.4)
    """
    return EMBEDDINGS if isinstance(kernel, Cosine) and not has_few_features(n_features) else OTHERS


def moderated(
    mean: Float[NDArray[np.float64], "*batch C"], var: Float[NDArray[np.float64], "*batch C"], moderation: float
) -> Float[NDArray[np.float64], "*batch C"]:
    """Return `(m - its mean over classes) / sqrt(1 + kappa v)`: less certain latents count less.

    Example:
        >>> moderated(np.array([2.0, -2.0]), np.array([0.0, 100.0]), 0.03).tolist()
        [2.0, -1.0]
    """
    return np.asarray((mean - mean.mean(-1, keepdims=True)) / np.sqrt(1.0 + moderation * var))


class Link(NamedTuple):
    """The parameters that turn latents into probabilities.

    Attributes:
        temperature: `tau`, the exponential of the mean log temperature.
        temperature_std: `sigma`, the standard deviation of the log temperature; zero if the temperature was given.
        moderation: `kappa`; None in files of earlier versions, for `E[softmax]` raised to `1 / tau`.
    """

    temperature: float
    temperature_std: float = 0.0
    moderation: float | None = EMBEDDINGS

    def terms(self) -> list[tuple[float, float]]:
        """Return the temperatures of the average, each with its weight.

        Example:
            >>> Link(0.5).terms()
            [(0.5, 1.0)]
        """
        if self.temperature_std == 0.0:
            return [(self.temperature, 1.0)]
        spread = zip(NODES, WEIGHTS, strict=True)
        return [(self.temperature * math.exp(self.temperature_std * x), h) for x, h in spread]

    def log_proba(
        self, mean: Float[NDArray[np.float64], "*batch C"], var: Float[NDArray[np.float64], "*batch C"]
    ) -> Float[NDArray[np.float64], "*batch C"]:
        """Return the logarithm of the class probabilities.

        Example:
            >>> np.exp(Link(0.5).log_proba(np.log([[4.0, 2.0]]), np.zeros((1, 2)))).round(2).tolist()
            [[0.8, 0.2]]
        """
        if self.moderation is None:
            return log_predictive(mean, var, temperature=self.temperature)
        z = moderated(mean, var, self.moderation)
        parts = [log_softmax(z / temperature) + math.log(weight) for temperature, weight in self.terms()]
        return functools.reduce(np.logaddexp, parts)

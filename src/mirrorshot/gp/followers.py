"""Updates of posterior variances for new site precisions, without a factorisation.

When precisions change by `dw`, variances change by `-(Sigma * Sigma) dw` to first order. The effect of a point's own
precision is exact: with its cavity variance `s = v / (1 - w v)`, `v = s / (1 + w s)`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.gp.shared_model import SharedModel

_LEAST, _MOST = 0.3, 3.0  # range of the factor by which sites of other points may change a variance


class Alone(NamedTuple):
    """Variances that follow their own site only."""

    precision: Float[np.ndarray, "N C"]
    var: Float[np.ndarray, "N C"]

    def at(self, new: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Return the variances at new precisions."""
        cavity = self.var / np.maximum(1.0 - self.precision * self.var, 1e-12)
        return np.asarray(cavity / (1.0 + new * cavity))


class BySquares(NamedTuple):
    """Variances that follow all sites, by the squared covariances of each class (`squared_covariances`)."""

    precision: Float[np.ndarray, "N C"]
    var: Float[np.ndarray, "N C"]
    squares: Float[np.ndarray, "C N N"]

    def at(self, new: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Return the variances at new precisions."""
        change = (new - self.precision).T.astype(self.squares.dtype)
        others = np.matmul(self.squares, change[..., None])[..., 0].T
        return _followed(self.precision, self.var, others, new)


class ByModel(NamedTuple):
    """Variances that follow all sites, by the covariances of a `SharedModel`."""

    precision: Float[np.ndarray, "N C"]
    var: Float[np.ndarray, "N C"]
    model: SharedModel

    def at(self, new: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Return the variances at new precisions."""
        # scale the covariances of the model by the factor that corrects its variances
        gain = self.var / self.model.var
        change = gain * (new - self.precision)
        others = gain * (self.model.response(change) - np.square(self.model.var) * change)
        return _followed(self.precision, self.var, others, new)


def _followed(
    precision: Float[np.ndarray, "N C"],
    var: Float[np.ndarray, "N C"],
    others: Float[np.ndarray, "N C"],
    new: Float[np.ndarray, "N C"],
) -> Float[np.ndarray, "N C"]:
    """Variances at new precisions; the sites of other points reduce them by `others` to first order."""
    return Alone(precision, np.clip(var - others, _LEAST * var, _MOST * var)).at(new)

"""Approximate posterior covariances of many classes, from one factorisation for all of them.

With many classes, the precision of a point is about the same in all classes but its own. So the prior is conditioned on
the mean precisions, `Sigma = (K^-1 + diag(mean w))^-1`, and the few points `o` where a class differs most are corrected
exactly (Woodbury):

    Sigma_c = Sigma - G_c^T X_c G_c,  G_c = Sigma[o, :],  X_c = (D^-1 + Sigma[o, o])^-1,  D = diag(w_c - mean w)[o]

Variances follow the remaining differences, and later changes of the precisions, to first order:
`dv = -(Sigma_c * Sigma_c) dw`. This costs one factorisation and some products in single precision, instead of `C`
factorisations. It proves nothing: `many_classes` conditions every class exactly before it certifies a result.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mirrorshot.gp.weight_space import condition_on, inverse_of, whiten

_MOST_POINTS = 10


class SharedModel(NamedTuple):
    """Covariances of all classes from one factorisation."""

    inverse: Float[np.ndarray, "R R"]  # `(I + Phi^T diag(mean w) Phi)^-1`
    features: Float[np.ndarray, "C P R"]  # `Phi` of the points `o`
    X: Float[np.ndarray, "C P P"]
    covariance: Float[np.ndarray, "N N"]  # `Sigma` of the mean precisions
    squares: Float[np.ndarray, "N N"]  # its elementwise squares
    G: Float[np.ndarray, "C P N"]
    XG: Float[np.ndarray, "C P N"]
    precision: Float[np.ndarray, "N C"]  # of the model: the mean, and at the points `o` those of the class
    var: Float[np.ndarray, "N C"]  # variances at these precisions

    def response(self, change: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Return `(Sigma_c * Sigma_c) dw_c` for every class."""
        (C, P, N), dw = self.G.shape, change.astype(self.G.dtype)
        # (S - G^T X G)^2 dw = S^2 dw + sum_p XG_p * (G diag(dw) G^T X G - 2 G diag(dw) S)_p
        weighted = self.G * dw.T[:, None]
        across = np.matmul(np.matmul(weighted, self.G.transpose(0, 2, 1)), self.XG)
        across -= 2.0 * (weighted.reshape(C * P, N) @ self.covariance).reshape(C, P, N)
        across *= self.XG
        found = self.squares @ dw
        found += across.sum(1).T
        return found

    def precondition(self, right: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "C R"]:
        """Return `(I + Phi^T diag(mean w) Phi)^-1 x_c` for every class."""
        return right @ self.inverse

    def solve(self, right: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "C R"]:
        """Return `(I + Phi^T W_c Phi)^-1 x_c` for the precisions of the model."""
        first = right @ self.inverse
        pull = np.matmul(self.X, np.matmul(self.features, first[..., None]))
        return first - np.matmul(pull.transpose(0, 2, 1), self.features)[:, 0] @ self.inverse


def shared_model(phi: Float[np.ndarray, "N R"], precision: Float[np.ndarray, "N C"]) -> SharedModel:
    """Condition on the mean precisions, and correct each class where it differs most from them."""
    mean = precision.mean(1)
    conditioned = condition_on(phi, mean[:, None].astype(phi.dtype))
    whitened = whiten(conditioned.chol[0], phi)
    covariance = whitened.T @ whitened
    points = _farthest(precision - mean[:, None])
    D = (np.take_along_axis(precision.T, points, 1) - mean[points])[..., None]
    G = covariance[points]
    among = np.take_along_axis(G, points[:, None], 2)
    # X = (D^-1 + Sigma[o, o])^-1 = (I + D Sigma[o, o])^-1 D, where D may be zero
    eye = np.eye(points.shape[1])
    X = np.linalg.solve(eye + D * among, D * eye)
    XG = np.matmul(X.astype(G.dtype), G)
    var = conditioned.var.astype(np.float64) - (G * XG).sum(1).T
    at = mean[:, None].repeat(precision.shape[1], 1)
    np.put_along_axis(at, points.T, np.take_along_axis(precision, points.T, 0), 0)
    floor = 1e-3 * conditioned.var
    return SharedModel(
        inverse_of(conditioned.chol[0]).astype(np.float64),
        phi[points].astype(np.float64),
        X,
        covariance,
        np.square(covariance),
        G,
        XG,
        at,
        np.maximum(var, floor),
    )


def _farthest(deviation: Float[np.ndarray, "N C"]) -> Int[np.ndarray, "C P"]:
    size = min(_MOST_POINTS, len(deviation))
    return np.argpartition(-np.abs(deviation.T), size - 1, axis=1)[:, :size]

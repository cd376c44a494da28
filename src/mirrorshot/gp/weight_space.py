"""The posterior in weight space: `K = Phi Phi^T` with `R <= N` features, and one `R x R` factorisation for each class.

A pivoted Cholesky factorisation finds the features: `R` is the numerical rank of `K`, at most the number of features of
a linear or cosine kernel. With `A_c = I + Phi^T W_c Phi = L_c L_c^T`, whose eigenvalues are at least one, and
`u_c = Phi^T alpha_c`:

    m_c = Phi u_c,    Sigma_c = Phi A_c^-1 Phi^T,    KL_c = 1/2 (|u_c|^2 - w_c^T v_c + log det A_c)

Variances are sums of squares. The function-space form of `gaussian` needs `C N^2` numbers, this one `C R^2`; NumPy only,
because tasks that are large enough for it are solved one by one on the CPU.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs, solve_triangular

from mirrorshot.types import NumericalError


class Features(NamedTuple):
    """`K = Phi Phi^T` up to rounding.

    Attributes:
        phi: features of the points, (N, R).
        pivots: points whose features are the rows of a triangular matrix, (R,).
    """

    phi: Float[np.ndarray, "N R"]
    pivots: Int[np.ndarray, " R"]

    def at(self, K_cross: Float[np.ndarray, "N M"]) -> Float[np.ndarray, "R M"]:
        """Return the features of new points from their prior covariances with the points."""
        triangle = self.phi[self.pivots]
        found: NDArray[np.float64] = solve_triangular(triangle, K_cross[self.pivots], lower=True, check_finite=False)
        return found


def features_of(K: Float[np.ndarray, "N N"]) -> Features:
    """Factorise a positive semi-definite matrix, singular or not, down to its rounding errors.

    Example:
        >>> features_of(np.ones((3, 3))).phi
        array([[1.],
               [1.],
               [1.]])
    """
    N = len(K)
    tolerance = N * np.finfo(K.dtype).eps * float(K.diagonal().max(initial=0.0))
    (pstrf,) = get_lapack_funcs(("pstrf",), (K,))
    factor, pivots, rank, info = pstrf(K, tol=tolerance, lower=1)
    if info < 0:
        raise NumericalError(f"Expected a covariance matrix, but LAPACK's pstrf refused argument {-info}.")
    order = pivots - 1
    phi = np.empty((N, rank), dtype=K.dtype)
    phi[order] = np.tril(factor[:, :rank])
    return Features(phi, order[:rank])


class Conditioned(NamedTuple):
    """The prior conditioned on site precisions.

    Attributes:
        chol: upper triangular factors of `A_c`, each (R, R) in Fortran's order.
        var: posterior variances, (N, C).
        log_det: `log det A_c`, (C,).
    """

    chol: list[Float[np.ndarray, "R R"]]
    var: Float[np.ndarray, "N C"]
    log_det: Float[np.ndarray, " C"]

    def solve(self, right: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "C R"]:
        """Return `A_c^-1 x_c` for every class."""
        (potrs,) = get_lapack_funcs(("potrs",), (right,))
        return np.stack([potrs(U, x, lower=0)[0] for U, x in zip(self.chol, right, strict=True)])


def condition_on(phi: Float[np.ndarray, "N R"], precision: Float[np.ndarray, "N C"]) -> Conditioned:
    """Factorise `A_c = I + Phi^T W_c Phi` for every class, and return the variances."""
    (N, C), R = precision.shape, phi.shape[1]
    (syrk,), (potrf, trtrs) = get_blas_funcs(("syrk",), (phi,)), get_lapack_funcs(("potrf", "trtrs"), (phi,))
    root = np.sqrt(precision)
    diagonal = np.arange(R)
    chol: list[Any] = []
    var, log_det = np.empty((N, C), dtype=phi.dtype), np.empty(C, dtype=phi.dtype)
    for c in range(C):
        A = syrk(1.0, (phi * root[:, c, None]).T)
        A[diagonal, diagonal] += 1.0
        U, info = potrf(A, lower=0, clean=0, overwrite_a=1)
        if info:
            raise NumericalError(
                f"Expected finite site precisions, but I + Phi^T W Phi of class {c} has no Cholesky factor."
            )
        whitened = trtrs(U, phi.T, lower=0, trans=1)[0]
        var[:, c] = np.einsum("rn,rn->n", whitened, whitened)
        log_det[c] = 2.0 * np.log(U[diagonal, diagonal]).sum()
        chol.append(U)
    return Conditioned(chol, var, log_det)

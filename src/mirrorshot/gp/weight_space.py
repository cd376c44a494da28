"""The posterior of one task in weight space, with `K = Phi Phi^T` and one `R x R` factorisation per class.

A pivoted Cholesky factorisation computes the features `Phi`. `R <= N` is the numerical rank of `K`, at most `D` for a
linear or cosine kernel. With `A_c = I + Phi^T W_c Phi = L_c L_c^T`, whose eigenvalues are at least one, and
`u_c = Phi^T alpha_c`:

    m_c = Phi u_c,    Sigma_c = Phi A_c^-1 Phi^T,    KL_c = 1/2 (|u_c|^2 - w_c^T v_c + log det A_c)

Variances are sums of squares, so nothing cancels. This form needs `C R^2` numbers, the function-space form of
`gaussian` `C N^2`. It is for NumPy only: training needs batches of tasks and gradients, which `gaussian` supports.
"""

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.linalg import get_blas_funcs, get_lapack_funcs, solve_triangular

from mirrorshot.gp.gaussian import GaussianPosterior, GaussianSites, condition
from mirrorshot.types import NumericalError

SQUARES_SIZE = 2**23
"""Largest size `C N^2` for which `squared_covariances` pay off."""


class Features(NamedTuple):
    """`K = Phi Phi^T` up to rounding."""

    phi: Float[np.ndarray, "N R"]  # features of the points; one column of zeros if `K` is zero
    pivots: Int[np.ndarray, " R"]  # points whose features are linearly independent
    triangle: Float[np.ndarray, "R R"]  # features of these points, lower triangular

    def at(self, K_cross: Float[np.ndarray, "N M"]) -> Float[np.ndarray, "R M"]:
        """Features of new points, from their prior covariances with the points."""
        right = K_cross[self.pivots]
        found: NDArray[np.float64] = solve_triangular(self.triangle, right, lower=True, check_finite=False)
        return found


def features_of(K: Float[np.ndarray, "N N"]) -> Features:
    """Factorise a positive semi-definite matrix, singular or not, up to rounding errors.

    Example:
        >>> features_of(np.ones((3, 3))).phi
        array([[1.],
               [1.],
               [1.]])
    """
    N = len(K)
    tolerance = N * np.finfo(K.dtype).eps * float(K.diagonal().max(initial=0.0))
    factor, pivots, rank, info = _routines(K.dtype.char).pstrf(K, tol=tolerance, lower=1)
    if info < 0:
        raise NumericalError(f"Expected a covariance matrix, but LAPACK's pstrf refused argument {-info}.")
    if rank == 0:
        return Features(np.zeros((N, 1), dtype=K.dtype), np.zeros(1, dtype=np.intp), np.eye(1, dtype=K.dtype))
    order, lower = pivots - 1, np.tril(factor[:, :rank])
    phi = np.empty((N, rank), dtype=K.dtype)
    phi[order] = lower
    return Features(phi, order[:rank], lower[:rank])


class Task(NamedTuple):
    """Labels and prior of one task."""

    features: Features  # features of `K`
    K: Float[np.ndarray, "N N"]  # prior covariance, shared by the classes
    Y: Float[np.ndarray, "N C"]  # one-hot labels
    weight: Float[np.ndarray, " N"]  # how often each point counts
    prior_mean: Float[np.ndarray, "N C"] | None  # None is zero
    max_std: float  # upper bound of all prior standard deviations


class _Routines(NamedTuple):
    """Functions of BLAS and LAPACK for one dtype, cached because their lookup is slower than a small factorisation."""

    syrk: Any
    potrf: Any
    potrs: Any
    potri: Any
    pstrf: Any
    trtrs: Any


@functools.cache
def _routines(char: str) -> _Routines:
    some = np.empty(0, dtype=char)
    return _Routines(
        *get_blas_funcs(("syrk",), (some,)), *get_lapack_funcs(("potrf", "potrs", "potri", "pstrf", "trtrs"), (some,))
    )


class Conditioned(NamedTuple):
    """The prior conditioned on site precisions."""

    chol: list[Float[np.ndarray, "R R"]]  # upper triangular factors `L_c^T` of `A_c`, in Fortran order
    var: Float[np.ndarray, "N C"]  # posterior variances
    log_det: Float[np.ndarray, " C"]  # `log det A_c`

    def solve(self, right: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "C R"]:
        """Return `A_c^-1 x_c` for every class."""
        potrs = _routines(self.var.dtype.char).potrs
        out = np.empty_like(right)
        for U, x, place in zip(self.chol, right, out, strict=True):
            place[:] = potrs(U, x)[0]
        return out


def condition_on(phi: Float[np.ndarray, "N R"], precision: Float[np.ndarray, "N C"]) -> Conditioned:
    """Factorise `A_c = I + Phi^T W_c Phi` for every class, or once if all classes have the same precisions."""
    (N, C), R = precision.shape, phi.shape[1]
    if C > 1 and bool((precision == precision[:, :1]).all()):
        one = condition_on(phi, precision[:, :1])
        return Conditioned(C * one.chol, one.var.repeat(C, 1), one.log_det.repeat(C))
    routines = _routines(phi.dtype.char)
    root = np.sqrt(precision)
    chol: list[Any] = []
    var, diagonals = np.empty((N, C), dtype=phi.dtype), np.empty((C, R), dtype=phi.dtype)
    for c in range(C):
        A = routines.syrk(1.0, (phi * root[:, c, None]).T)
        A.ravel("K")[:: R + 1] += 1.0
        U, info = routines.potrf(A, clean=0, overwrite_a=1)
        if info:
            raise NumericalError(
                f"Expected finite site precisions, but I + Phi^T W Phi of class {c} has no Cholesky factor."
            )
        whitened = whiten(U, phi)
        var[:, c] = np.einsum("rn,rn->n", whitened, whitened)
        diagonals[c] = U.diagonal()
        chol.append(U)
    return Conditioned(chol, var, 2.0 * np.log(diagonals).sum(1))


def whiten(U: Float[np.ndarray, "R R"], phi: Float[np.ndarray, "N R"]) -> Float[np.ndarray, "R N"]:
    """Return `V = L^-1 Phi^T`, with `V^T V` the covariances; `U = L^T` is a factor of `Conditioned`."""
    found: NDArray[Any] = _routines(phi.dtype.char).trtrs(U, phi.T, trans=1)[0]
    return found


def squared_covariances(phi: Float[np.ndarray, "N R"], conditioned: Conditioned) -> Float[np.ndarray, "C N N"]:
    """Return `Sigma_c * Sigma_c` with a zero diagonal, in single precision."""
    N, single = len(phi), phi.astype(np.float32, copy=False)
    distinct = conditioned.chol[:1] if conditioned.chol[0] is conditioned.chol[-1] else conditioned.chol
    squares = np.empty((len(distinct), N, N), dtype=np.float32)
    for U, place in zip(distinct, squares, strict=True):
        whitened = whiten(U.astype(np.float32, copy=False), single)
        np.square(whitened.T @ whitened, out=place)
        np.fill_diagonal(place, 0.0)
    return np.broadcast_to(squares, (len(conditioned.chol), N, N))


def inverse_of(U: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R R"]:
    """Return `A^-1` from a factor of `Conditioned`."""
    upper = np.triu(_routines(U.dtype.char).potri(U)[0])
    return upper + np.triu(upper, 1).T


class WeightPosterior(NamedTuple):
    """The posterior of one task, with the same fields and methods for predictions as `gaussian.GaussianPosterior`."""

    sites: GaussianSites
    mean: Float[np.ndarray, "1 C N"]
    var: Float[np.ndarray, "1 C N"]
    alpha: Float[np.ndarray, "1 C N"]
    slack: Float[np.ndarray, "1 C N"]
    features: Features
    conditioned: Conditioned

    def explained(self, K_cross: Float[np.ndarray, "1 1 N M"]) -> Float[np.ndarray, "1 C M"]:
        """Reduction of the prior variance at new points: `|phi*|^2 - |L^-1 phi*|^2`."""
        phi = self.features.at(K_cross[0, 0])
        left = np.stack([np.square(part).sum(0) for part in self._whitened(phi)])
        return (np.square(phi).sum(0) - left)[None]

    def covariance_with(self, K_cross: Float[np.ndarray, "1 1 N M"]) -> Float[np.ndarray, "1 C N M"]:
        """Posterior covariance of the points with new points."""
        phi = self.features.at(K_cross[0, 0])
        unseen = K_cross[0, 0] - self.features.phi @ phi
        own = self._whitened(self.features.phi.T)
        return np.stack([unseen + a.T @ b for a, b in zip(own, self._whitened(phi), strict=True)])[None]

    def gain_at(self, K_cross: Float[np.ndarray, "1 1 N M"]) -> Float[np.ndarray, "1 C R M"]:
        """`G`; the data reduce the prior covariance of new points by `G^T G = phi*^T (I - A^-1) phi*`."""
        phi = self.features.at(K_cross[0, 0])
        found = []
        for U in self.conditioned.chol:
            upper = np.triu(U)
            size, vectors = np.linalg.eigh(upper.T @ upper)
            found.append(np.sqrt(np.maximum(1.0 - 1.0 / size, 0.0))[:, None] * (vectors.T @ phi))
        return np.stack(found)[None]

    def _whitened(self, phi: Float[np.ndarray, "R M"]) -> list[Float[np.ndarray, "R M"]]:
        trtrs = _routines(phi.dtype.char).trtrs
        return [trtrs(U, phi, trans=1)[0] for U in self.conditioned.chol]


Posterior: TypeAlias = GaussianPosterior | WeightPosterior


def weight_posterior(
    features: Features, sites: GaussianSites, conditioned: Conditioned | None = None
) -> WeightPosterior:
    """Condition the prior of one task on its sites, (1, C, N) each; `conditioned` saves the factorisations."""
    b, w = sites.shift[0], sites.precision[0]
    conditioned = condition_on(features.phi, np.ascontiguousarray(w.T)) if conditioned is None else conditioned
    u = conditioned.solve(b @ features.phi)
    mean, var = u @ features.phi.T, conditioned.var.T
    return WeightPosterior(
        sites, mean[None], var[None], (b - w * mean)[None], (1.0 - w * var)[None], features, conditioned
    )


def posterior_of(K: Float[np.ndarray, "1 _ N N"], sites: GaussianSites) -> Posterior:
    """Condition the prior of one task: in weight space if its classes share the kernel, else in function space."""
    return weight_posterior(features_of(K[0, 0]), sites) if K.shape[1] == 1 else condition(K, sites)

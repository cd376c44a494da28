"""Tables for the broad form of the native core: `G` and its derivatives at some variances, on the nodes of the rule.

`G(x; v) = E Phi((x - Gumbel) / sqrt(v))` solves the heat equation `dG/dv = G'' / 2`, in the reference's trapezoid as
well. Near a variance `v_k` of the table (a knot) and a node `x_j` it is therefore a sum over the derivatives there,

    G(x_j + d; v_k + e) = sum_n c_n(d, e) G^(n)(x_j; v_k),        sum_n c_n z^n = exp(d z + e z^2 / 2)

All nodes of a latent share the coefficients: 13 terms replace a convolution with 55 weights. Knots are `LOG_STEP` apart
in `log v`. With n up to `ORDER` the truncation is below 1e-10 (`tests/softmax/test_native.py`).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import toeplitz
from scipy.special import ndtr

from mirrorshot.softmax.quadrature import U_LEFT, Rule, gumbel_weights

ORDER = 12
"""Largest n of the sum; tables go to n + 3, for three derivatives of `G`. Must equal `kOrder` in latents.hpp."""
LOG_STEP = 0.07
_FARTHEST = 25.0  # the bell curve is cut at this many standard deviations: smaller products would be slow
_PADDING = 9  # additional nodes at the right, so that a vector of nodes may begin at any earlier index


class Knot(NamedTuple):
    """Derivatives of `G` at one variance; `values[n, j] = G^(n)(left + j * spacing)`."""

    var: float
    left: float
    values: Float[np.ndarray, "_ J"]


def first_log_var(rule: Rule) -> float:
    """Return the logarithm of the variance of the first knot."""
    return 2.0 * math.log(rule.narrow_std) + 0.5 * LOG_STEP


def knots(rule: Rule, is_single: bool) -> list[Knot]:
    """Return knots for all latents of the broad form up to the largest standard deviation of the rule."""
    if not rule.has_broad:
        return []
    n = math.ceil((2.0 * math.log(1.01 * rule.max_std) - first_log_var(rule)) / LOG_STEP + 0.5)
    return [_knot(rule.spacing, rule.n_std, first_log_var(rule) + k * LOG_STEP, is_single) for k in range(n)]


@functools.lru_cache(maxsize=1024)
def _knot(spacing: float, n_std: float, log_var: float, is_single: bool) -> Knot:
    widest = math.exp(0.5 * (log_var + LOG_STEP))
    left = -(n_std * widest + U_LEFT) - spacing
    # beyond the right end G is 1 - e^(v / 2 - x) to 1e-16
    right = min(widest * (widest + 8.0) + 18.0, 0.5 * widest * widest + 40.0)
    n = math.ceil((right - left) / spacing) + _PADDING
    return Knot(math.exp(log_var), left, _derivatives(left + spacing * np.arange(n), spacing, log_var, is_single))


def _derivatives(
    x: Float[np.ndarray, " J"], spacing: float, log_var: float, is_single: bool
) -> Float[np.ndarray, "_ J"]:
    """Return `G^(n)(x)`, n = 0, ..., ORDER + 3, with the formulas of `quadrature._broad` continued beyond n = 3."""
    s, n_orders = math.exp(0.5 * log_var), ORDER + 4
    weight, gamma_right = gumbel_weights(spacing, not is_single)
    taps = toeplitz(np.concatenate([weight[::-1], np.zeros(len(x) - 1)]), np.zeros(len(x)))
    a = (x[0] - gamma_right + spacing * np.arange(len(taps))) / s  # all x_i - gamma_k, in increasing order
    end, bells = a[: len(x)], _normal_derivatives(a, s, n_orders)
    G = bells @ taps
    # G' includes the closed-form tail e^(v / 2 - x) Phi(end - s), whose derivative is its bell curve minus itself
    last_bell = math.exp(-gamma_right) * bells[:, : len(x)]
    tail = np.exp(0.5 * s * s - x) * ndtr(end - s)
    G[0] += last_bell[0] - tail
    for n in range(1, n_orders):
        G[n] += tail
        tail = last_bell[n] - tail
    return np.ascontiguousarray(G)


def _normal_derivatives(a: Float[np.ndarray, " A"], s: float, n_orders: int) -> Float[np.ndarray, "n_orders A"]:
    """Return derivatives of `Phi(x / s)` at `x = s a`, by the recurrence of the Hermite polynomials."""
    out = np.empty((n_orders, len(a)))
    out[0] = ndtr(a.clip(-_FARTHEST))
    out[1] = np.exp(-0.5 * np.square(a.clip(-_FARTHEST, _FARTHEST))) / (math.sqrt(2.0 * math.pi) * s)
    out[2] = -a / s * out[1]
    for n in range(3, n_orders):
        out[n] = -(a / s * out[n - 1] + (n - 2) / (s * s) * out[n - 2])
    return out

"""One-dimensional quadrature for the softmax expectations.

Adding independent Gumbel noise to every latent turns the softmax into an arg-max. Every expectation under independent
Gaussians is therefore an integral over one real variable `u` of products of

    G_j(u) = P(f_j + Gumbel <= u) = E exp(-exp(f_j - u)),        f_j ~ N(m_j, v_j).

This module evaluates `log G_j` and the ratios of its `u`-derivatives to `G_j` on a grid of `u`. It has three forms, for
three ranges of the standard deviation:

- **narrow** (up to `Rule.narrow_std`): Gauss-Hermite over the Gaussian;
- **broad** (above it): trapezoid over the Gumbel noise. Its nodes lie on the grid of `u`, so one normal CDF per grid
  point and a fixed Toeplitz matrix are enough, and the cost does not depend on the variance;
- **wide** (above `WIDE_STD`): a normal CDF with the mean and variance of latent plus Gumbel noise, which is small
  against the Gaussian. This range is far outside of the promised accuracy; the form does not overflow, loses no latent
  between grid points, and never needs more than `WIDE_NODES` nodes.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mirrorshot.softmax.arrays import (
    Array,
    asarray,
    at_least,
    at_most,
    counts,
    device_of,
    erfc,
    is_double,
    is_on_cpu,
    log_ndtr,
    namespace,
    new_empty,
    tiny,
)

EULER_GAMMA = 0.5772156649015329
WIDE_STD = 16.0
WIDE_NODES = 512
U_LEFT = 3.0


class Rule(NamedTuple):
    """Nodes of a quadrature rule."""

    spacing: float  # distance of neighbouring `u` nodes
    n_nodes: int  # number of `u` nodes
    n_hermite: int  # Gauss-Hermite nodes of the narrow form
    narrow_std: float  # standard deviation up to which the narrow form is used
    n_std: float  # standard deviations of each latent that the grid of `u` covers
    has_broad: bool  # whether any latent may have a standard deviation above `narrow_std`
    max_std: float  # upper bound of the standard deviations that are not wide


class Ratios(NamedTuple):
    """`log G_j(u)` and `G_j^(k)(u) / G_j(u)`, k = 1, ..., order, on the grid of `u`, shapes (P, C, U)."""

    log_cdf: Float[Array, "P C U"]
    derivatives: tuple[Float[Array, "P C U"], ...]


@functools.lru_cache(maxsize=256)
def choose_rule(max_std: float, n_classes: int, dtype: Any) -> Rule:
    """Choose nodes that keep the promised accuracy up to `max_std`, rounded up to a power of the fourth root of two."""
    rounded = 2.0 ** (math.ceil(4 * math.log2(max(min(max_std, WIDE_STD), 2.0**-4))) / 4)
    # errors of about 2e-8 and 4e-6: |Gamma(1 + 2 pi i / spacing)| of the trapezoid, and of the forms at narrow_std
    choice = (0.45, 0.5, 6.0, 9.0, 12) if dtype.itemsize == 8 else (0.6, 0.65, 4.6, 7.4, 8)
    spacing, narrow_std, n_std, u_right, n_hermite = choice
    # the tail is summed as the geometric series of A e^{-u}; G differs from that by exp(2 s^2 - 2 u) / 2 at most
    right = min(rounded, n_std) * rounded + u_right
    width = U_LEFT + n_std * rounded + right + math.log(n_classes)
    return Rule(
        spacing=spacing,
        n_nodes=math.ceil(width / spacing) + 1,
        n_hermite=n_hermite,
        narrow_std=narrow_std,
        n_std=n_std,
        has_broad=rounded > narrow_std,
        max_std=rounded,
    )


@functools.lru_cache(maxsize=64)
def hermite(n: int, dtype: Any, device: Any) -> tuple[Float[Array, " H"], Float[Array, " H"]]:
    """Return nodes and weights of the Gauss-Hermite rule for a standard normal."""
    z, w = np.polynomial.hermite_e.hermegauss(n)
    return asarray(z, dtype, device), asarray(w / w.sum(), dtype, device)


@functools.lru_cache(maxsize=64)
def gumbel_weights(spacing: float, double: bool) -> tuple[Float[np.ndarray, " K"], float]:
    """Return the trapezoid weights of the Gumbel density, and its last node."""
    # exp(-exp(4)) = 2e-24 is negligible; the tail beyond the right end, exp(-20) = 2e-9, has a closed form
    left, right = (-4.0, 20.0) if double else (-3.4, 17.0)
    n = math.ceil((right - left) / spacing) + 1
    gamma = left + spacing * np.arange(n)
    weight = spacing * np.exp(-gamma - np.exp(-gamma))
    weight[-1] /= 2
    # weights and tail sum to exactly one: a bias of G near one would add up over classes and nodes
    weight *= (1 - np.exp(-gamma[-1])) / weight.sum()
    return weight, float(gamma[-1])


@functools.lru_cache(maxsize=64)
def gumbel_taps(spacing: float, n_nodes: int, dtype: Any, device: Any) -> tuple[Float[Array, "_ U"], float]:
    """Return the Toeplitz matrix (U + K - 1, U) of `gumbel_weights`, and the last node of the Gumbel noise.

    Column i holds the weights of the differences `x_i - gamma_k`, in increasing order.
    """
    weight, gamma_right = gumbel_weights(spacing, dtype.itemsize == 8)
    taps = np.zeros((n_nodes + len(weight) - 1, n_nodes))
    for i in range(n_nodes):
        taps[i : i + len(weight), i] = weight[::-1]
    return asarray(taps, dtype, device), gamma_right


def grid_start(mean: Float[Array, "P C"], std: Float[Array, "P C"], rule: Rule) -> Float[Array, " P"]:
    """Return the left end of the grid of `u`: below it the product of all `G_j` is negligible."""
    return namespace(mean).amax(mean - rule.n_std * std, -1) - U_LEFT


def gumbel_ratios(
    mean: Float[Array, "P C"], std: Float[Array, "P C"], start: Float[Array, " P"], rule: Rule, order: int
) -> Ratios:
    """Evaluate `log G_j` and its derivative ratios up to `order` (1 or 3) on `u_i = start + i * spacing`."""
    offset = start[:, None] - mean  # x_0 = u_0 - m
    is_broad = std > rule.narrow_std
    evaluate = _evaluate_both if rule.has_broad else _narrow
    # on a CPU only the necessary forms; on a GPU both, to avoid a synchronisation
    if is_on_cpu(std) and rule.has_broad:
        n_broad = int(is_broad.sum())
        evaluate = _narrow if n_broad == 0 else _broad if n_broad == math.prod(std.shape) else _evaluate_apart
    log_cdf, *derivatives = evaluate(offset, std, rule, order)
    return Ratios(log_cdf, tuple(derivatives))


def _evaluate_both(offset: Array, std: Array, rule: Rule, order: int) -> list[Array]:
    narrow = _narrow(offset, at_most(std, rule.narrow_std), rule, order)
    broad = _broad(offset, at_least(std, rule.narrow_std), rule, order)
    is_broad = (std > rule.narrow_std)[..., None]
    return [namespace(std).where(is_broad, b, a) for a, b in zip(narrow, broad, strict=True)]


def _evaluate_apart(offset: Array, std: Array, rule: Rule, order: int) -> list[Array]:
    xp = namespace(std)
    out = [new_empty(std, (math.prod(std.shape), rule.n_nodes)) for _ in range(order + 1)]
    is_broad = (std > rule.narrow_std).reshape(-1)
    for evaluate, chosen in ((_narrow, ~is_broad), (_broad, is_broad)):
        index = xp.argwhere(chosen)[:, 0]
        pieces = evaluate(offset.reshape(-1)[index], std.reshape(-1)[index], rule, order)
        for whole, piece in zip(out, pieces, strict=True):
            whole[index] = piece
    return [whole.reshape(*std.shape, rule.n_nodes) for whole in out]


def _log_of(cdf: Array, complement: Array | None) -> Array:
    """Return log(cdf), computed from the smaller of cdf and 1 - cdf where the latter is given."""
    xp = namespace(cdf)
    if complement is None:
        return xp.log(cdf)
    return xp.where(cdf < 0.5, xp.log(cdf), xp.log1p(-xp.clip(complement, 0.0, 0.75)))


def _needs_complement(x: Array) -> bool:
    """Return true for float32, where the rounding of numbers near one would add up over classes and nodes."""
    return not is_double(x)


def _narrow(offset: Array, std: Array, rule: Rule, order: int) -> list[Array]:
    xp = namespace(offset)
    z, w = hermite(rule.n_hermite, offset.dtype, device_of(offset))
    decay = xp.exp(-rule.spacing * counts(offset, rule.n_nodes))  # e^{u_0 - u_i}
    rate = xp.exp(std[..., None] * z - offset[..., None])  # e^{f_k - u_0}, (P, C, H)
    # one exponential per node: e^{f_k - u_i} is an outer product
    survive = -rate[..., None] * decay  # (P, C, H, U)
    survive = xp.exp(xp.clip(survive, _log_tiny(offset), None, out=survive), out=survive)
    powers = [xp.broadcast_to(w, rate.shape)]
    for _ in range(order):
        powers.append(powers[-1] * rate)
    moments = xp.stack(powers, -2) @ survive  # (P, C, order + 1, U)
    complement = w @ (1.0 - survive) if _needs_complement(offset) else None
    cdf = moments[..., 0, :]
    e = [moments[..., k, :] * decay**k for k in range(1, order + 1)]  # E[e^{k(f-u)} exp(-e^{f-u})]
    derivatives = e if order == 1 else [e[0], e[1] - e[0], e[2] - 3 * e[1] + e[0]]
    return [_log_of(cdf, complement), *(d / cdf for d in derivatives)]


def _ndtr(x: Array) -> Array:
    """Normal CDF; `erfc` is accurate in relative terms on the left, and twice as fast as `torch.special.ndtr`."""
    return 0.5 * erfc(-math.sqrt(0.5) * x)


def _log_tiny(x: Array) -> float:
    """Logarithm of about the smallest normal number; below it `exp` and `erfc` are several times slower."""
    return 0.96 * math.log(tiny(x))


def _broad(offset: Array, std: Array, rule: Rule, order: int) -> list[Array]:
    xp, n = namespace(offset), rule.n_nodes
    taps, gamma_right = gumbel_taps(rule.spacing, n, offset.dtype, device_of(offset))
    s = std[..., None]
    # all differences x_i - gamma_k, in increasing order
    a = (offset[..., None] - gamma_right + rule.spacing * counts(offset, taps.shape[0])) / s
    # closed-form tail: int_{gamma_right}^inf e^{-gamma} N(x - gamma; 0, s^2) d gamma, at most its weight
    end = a[..., :n]  # (x_i - gamma_right) / s
    end_weight = math.exp(-gamma_right)
    farthest = math.sqrt(-2 * _log_tiny(a))
    growth = at_most(s * (0.5 * s - end) - gamma_right, -0.45 * _log_tiny(a))
    tail = xp.exp(growth) * _ndtr(at_least(end - s, -farthest))
    a = xp.clip(a, -farthest, farthest)
    bell, normal = xp.exp(-0.5 * (a * a)), _ndtr(a)
    cdf = normal @ taps + at_least(end_weight * normal[..., :n] - tail, 0.0)
    complement = None
    if _needs_complement(offset):
        opposite = _ndtr(-a)
        complement = opposite @ taps + end_weight * opposite[..., :n] + tail
    height = 1 / (math.sqrt(2 * math.pi) * s)
    density = (bell @ taps) * height
    derivatives = [density + tail]
    if order == 3:
        bell_end, slope = end_weight * height * bell[..., :n], a * bell
        derivatives.append((slope @ taps) * (-height / s) - tail + bell_end)
        second = ((slope * a) @ taps * height - density) / (s * s)
        derivatives.append(second + tail - bell_end - a[..., :n] / s * bell_end)
    return [_log_of(cdf, complement), *(d / cdf for d in derivatives)]


def wide_ratios(mean: Float[Array, "P C"], std: Float[Array, "P C"], u: Float[Array, "P U"], order: int) -> Ratios:
    """Evaluate the moment-matched `G_j`, a normal CDF, for very large standard deviations on any grid `u`."""
    xp = namespace(mean)
    sigma = xp.sqrt(std * std + math.pi**2 / 6)[..., None]
    a = (u[:, None, :] - mean[..., None] - EULER_GAMMA) / sigma
    log_cdf = log_ndtr(a)
    first = xp.exp(-0.5 * a * a - 0.5 * math.log(2 * math.pi) - log_cdf) / sigma
    if order == 1:
        return Ratios(log_cdf, (first,))
    return Ratios(log_cdf, (first, -a / sigma * first, (a * a - 1) / (sigma * sigma) * first))

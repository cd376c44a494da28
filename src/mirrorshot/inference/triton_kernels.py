"""Triton kernels of `fused`. Imported only where they run; formulas are explained there and in `quadrature`."""

from typing import Any

import triton
import triton.language as tl

_SPACING = tl.constexpr(0.6)  # of u; the trapezoid loses |Gamma(1 + 2 pi i / 0.6)|, about 6e-7
_N_STD = tl.constexpr(5.2)
_LEFT = tl.constexpr(3.0)
_RIGHT = tl.constexpr(20.0)  # e^-20 is left out
_NODES = tl.constexpr(64)  # of u at a time
_EULER_GAMMA = tl.constexpr(0.5772156649015329)
_TOO_LOW = tl.constexpr(1000.0)  # how far below all others an absent class is put
_MOST_STD = tl.constexpr(32.0)  # nodes of z grow up to this standard deviation


@triton.jit
def condition(
    K, shift, precision, mean_out, cov_out, kl_out, N, C, n_kernels, SIZE: tl.constexpr
) -> Any:  # fmt: skip
    """Condition the prior covariance of one class of one task on its sites, one after the other."""
    program = tl.program_id(0).to(tl.int64)
    task, label = program // C, program % C
    index = tl.arange(0, SIZE)
    real = index < N
    places = index[:, None] * N + index[None, :]
    inside = real[:, None] & real[None, :]
    which = task * n_kernels + tl.where(n_kernels > 1, label, 0)
    Sigma = tl.load(K + which * N * N + places, mask=inside, other=0.0)
    b = tl.load(shift + program * N + index, mask=real, other=0.0)
    w = tl.load(precision + program * N + index, mask=real, other=0.0)
    log_det = 0.0
    for k in range(N):
        w_k = tl.load(precision + program * N + k)
        column = tl.sum(tl.where(index[None, :] == k, Sigma, 0.0), axis=1)
        row = tl.sum(tl.where(index[:, None] == k, Sigma, 0.0), axis=0)
        denominator = 1.0 + w_k * tl.sum(tl.where(index == k, row, 0.0), axis=0)
        log_det += tl.log(denominator)
        Sigma -= column[:, None] * (row * (w_k / denominator))[None, :]
    mean = tl.sum(Sigma * b[None, :], axis=1)
    var = tl.sum(tl.where(index[:, None] == index[None, :], Sigma, 0.0), axis=1)
    # KL = (m^T alpha - sum_n w v + log |B|) / 2, alpha = b - w m; in the layout of the rows
    b = tl.load(shift + program * N + index, mask=real, other=0.0)
    kl = 0.5 * (tl.sum(mean * (b - w * mean) - w * var, axis=0) + log_det)
    tl.store(mean_out + program * N + index, mean, mask=real)
    tl.store(cov_out + program * N * N + places, Sigma, mask=inside)
    tl.store(kl_out + program, kl)


@triton.jit
def moments(
    mean, var, exists, Y, weight, shift, precision, prob_out, curvature_out, expected_out,
    step_size, N, C, var_class_stride, var_point_stride, STEP: tl.constexpr, CLASSES: tl.constexpr,
) -> Any:  # fmt: skip
    """Softmax moments at one point of one task and, with STEP, the mirror step of its sites."""
    program = tl.program_id(0).to(tl.int64)
    task, point = program // N, program % N
    label = tl.arange(0, CLASSES)
    real = label < C
    here = (task * C + label) * N + point
    alive = tl.load(exists + task * C + label, mask=real, other=0) != 0
    m_given = tl.load(mean + here, mask=real, other=0.0)
    v = tl.load(var + (task * C + label) * var_class_stride + point * var_point_stride, mask=real, other=0.0)
    top = tl.max(tl.where(alive, m_given, float("-inf")), axis=0)
    s = tl.where(alive, tl.sqrt(tl.maximum(v, 0.0)), 0.0)
    most = tl.minimum(tl.max(s, axis=0), _MOST_STD)
    m = tl.where(alive, m_given - top, most * -20.0 - _TOO_LOW)
    # trapezoid in z for the Gaussian: spacing 0.6 / max(1, std)
    n_z = (tl.maximum(most, 1.0) * (_N_STD / _SPACING)).to(tl.int32) * 2 + 3
    step_z = 1.0 / (n_z - 1) * (2.0 * _N_STD)
    low = tl.max(m - s * _N_STD, axis=0) - _LEFT
    high = tl.max(m + s * _N_STD, axis=0) + _RIGHT
    n_u = ((high - low) / _SPACING).to(tl.int32) + 1
    prob = tl.zeros([CLASSES], dtype=tl.float32)
    curvature = tl.zeros([CLASSES], dtype=tl.float32)
    above = 0.0  # sum of 1 - F; at the left end F is zero and the node counts half
    for first in range(0, n_u, _NODES):
        u = low + (first + tl.arange(0, _NODES)) * _SPACING
        offset = m[:, None] - u[None, :]
        G = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        missing = tl.zeros([CLASSES, _NODES], dtype=tl.float32)  # 1 - G, which rounding of G near one would lose
        G1 = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        total = 0.0
        for k in range(n_z):
            z = k * step_z - _N_STD
            density = tl.exp(-0.5 * z * z)
            total += density
            rate = tl.exp(tl.minimum(offset + (s * z)[:, None], 60.0))
            survive = density * tl.exp(-rate)
            G += survive
            missing += density - survive
            G1 += rate * survive
        G = tl.maximum(G / total, 1e-30)
        r = G1 / total / G
        x = missing / total
        log_F = tl.sum(tl.where(x < 0.01, -x * (1.0 + x * (0.5 + x * 0.33333334)), tl.log(G)), axis=0)
        F = tl.exp(log_F)
        mass = F[None, :] * r * _SPACING
        prob += tl.sum(mass, axis=1)
        curvature += tl.sum(mass * tl.maximum(tl.sum(r, axis=0)[None, :] - r, 0.0), axis=1)
        small = -log_F * (1.0 + log_F * (0.5 + log_F * 0.16666667))
        above += tl.sum(tl.where(log_F > -0.01, small, 1.0 - F), axis=0)
    log_sum_exp = top + low + (above - 0.5) * _SPACING - _EULER_GAMMA
    curvature = tl.minimum(curvature, prob * tl.maximum(1.0 - prob, 0.0))
    tl.store(prob_out + here, prob, mask=real)
    tl.store(curvature_out + here, curvature, mask=real)
    a = tl.load(weight + task * N + point)
    y = tl.load(Y + here, mask=real, other=0.0)
    tl.store(expected_out + task * N + point, a * (tl.sum(y * m_given, axis=0) - log_sum_exp))
    if STEP:
        # paper eqs. 9 to 11: b <- (1 - rho) b + rho (g_m + w_t m), w <- (1 - rho) w + rho w_t
        target = a * curvature
        b = tl.load(shift + here, mask=real, other=0.0)
        w = tl.load(precision + here, mask=real, other=0.0)
        pull = a * (y - prob) + target * tl.where(alive, m_given, 0.0)
        tl.store(shift + here, b + step_size * (tl.where(alive, pull, 0.0) - b), mask=real)
        tl.store(precision + here, w + step_size * (target - w), mask=real)

"""Triton kernels of `fused`, imported only where they run. See there and `softmax.quadrature` for the formulas."""

from typing import Any

import triton
import triton.language as tl

_SPACING = tl.constexpr(0.6)  # of u; the trapezoid loses |Gamma(1 + 2 pi i / 0.6)|, about 6e-7
_N_STD = tl.constexpr(5.2)
_LEFT = tl.constexpr(3.0)
_RIGHT = tl.constexpr(20.0)  # drops a share of e^-20
_NODES = tl.constexpr(64)  # nodes of u per block
_EULER_GAMMA = tl.constexpr(0.5772156649015329)
_TOO_LOW = tl.constexpr(1000.0)  # distance of an absent class below all others
_MOST_STD = tl.constexpr(32.0)  # above this standard deviation the number of nodes of z is constant


@triton.jit
def condition(
    K, shift, precision, P_out, Q_out, mean_out, var_out, kl_out, N, C, n_kernels,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, N_BLOCKS: tl.constexpr,
) -> Any:  # fmt: skip
    """Condition the prior covariance of one class of one task on its sites, block by block."""
    program = tl.program_id(0).to(tl.int64)
    task, label = program // C, program % C
    rows, inner = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    real = rows < N
    K += (task * n_kernels + tl.where(n_kernels > 1, label, 0)) * N * N
    shift += program * N
    precision += program * N
    width = N_BLOCKS * BLOCK
    P_out += program * ROWS * width
    Q_out += program * ROWS * width
    b = tl.load(shift + rows, mask=real, other=0.0)
    var = tl.load(K + rows * (N + 1), mask=real, other=0.0)
    mean = tl.zeros([ROWS], dtype=tl.float32)
    log_det = 0.0
    for k in range(N_BLOCKS):
        chosen = k * BLOCK + inner
        there = chosen < N
        # P = Sigma[:, block], conditioned on the earlier blocks: K - sum_j P_j Q_j^T
        P = tl.load(K + rows[:, None] * N + chosen[None, :], mask=real[:, None] & there[None, :], other=0.0)
        b_block = tl.load(shift + chosen, mask=there, other=0.0)
        mean += tl.sum(P * b_block[None, :], axis=1)
        for j in range(k):
            earlier = j * BLOCK + inner
            P_j = tl.load(P_out + rows[:, None] * width + earlier[None, :])
            Q_j = tl.load(Q_out + chosen[None, :] * width + earlier[:, None])
            P -= tl.dot(P_j, Q_j, input_precision="ieee")
        tl.store(P_out + rows[:, None] * width + chosen[None, :], P)
        tl.debug_barrier()
        root = tl.sqrt(tl.load(precision + chosen, mask=there, other=0.0))
        corner = tl.load(P_out + chosen[:, None] * width + chosen[None, :])
        same = inner[:, None] == inner[None, :]
        # (I + S Sigma S)^-1 of the block by symmetric sweeps: the diagonal then holds 2 - inverse, the rest -inverse
        A = tl.where(same, 1.0, 0.0) + root[:, None] * corner * root[None, :]
        for p in tl.static_range(BLOCK):
            column = tl.sum(tl.where(inner[None, :] == p, A, 0.0), axis=1)
            row = tl.sum(tl.where(inner[:, None] == p, A, 0.0), axis=0)
            pivot = tl.sum(tl.where(inner == p, row, 0.0), axis=0)
            log_det += tl.log(pivot)
            column = tl.where(inner == p, pivot - 1.0, column)
            row = tl.where(inner == p, pivot - 1.0, row) / pivot
            A -= column[:, None] * row[None, :]
        M = root[:, None] * (tl.where(same, 2.0, 0.0) - A) * root[None, :]
        Q = tl.dot(P, M, input_precision="ieee")
        tl.store(Q_out + rows[:, None] * width + chosen[None, :], Q)
        tl.debug_barrier()
        var -= tl.sum(P * Q, axis=1)
        mean -= tl.sum(P * tl.sum(Q * b[:, None], axis=0)[None, :], axis=1)
    var = tl.maximum(var, 0.0)
    # KL = (m^T alpha - sum_n w v + log |B|) / 2 with alpha = b - w m
    w = tl.load(precision + rows, mask=real, other=0.0)
    kl = 0.5 * (tl.sum(mean * (b - w * mean) - w * var, axis=0) + log_det)
    tl.store(mean_out + program * N + rows, mean, mask=real)
    tl.store(var_out + program * N + rows, var, mask=real)
    tl.store(kl_out + program, kl)


@triton.jit
def _grid(mean, var, alive) -> Any:
    """Largest mean, means relative to it, standard deviations, and grids of z and u; absent classes are far below."""
    top = tl.max(tl.where(alive, mean, float("-inf")), axis=0)
    s = tl.where(alive, tl.sqrt(tl.maximum(var, 0.0)), 0.0)
    most = tl.minimum(tl.max(s, axis=0), _MOST_STD)
    m = tl.where(alive, mean - top, most * -20.0 - _TOO_LOW)
    # trapezoid in z for the Gaussian: spacing 0.6 / max(1, std)
    n_z = (tl.maximum(most, 1.0) * (_N_STD / _SPACING)).to(tl.int32) * 2 + 3
    step_z = 1.0 / (n_z - 1) * (2.0 * _N_STD)
    low = tl.max(m - s * _N_STD, axis=0) - _LEFT
    high = tl.max(m + s * _N_STD, axis=0) + _RIGHT
    n_u = ((high - low) / _SPACING).to(tl.int32) + 1
    return top, m, s, n_z, step_z, low, n_u


@triton.jit
def _point(exists, N, C, CLASSES: tl.constexpr) -> Any:
    """Task and point of a program, addresses of its classes, and masks of classes within bounds and existing."""
    program = tl.program_id(0).to(tl.int64)
    task, point = program // N, program % N
    label = tl.arange(0, CLASSES)
    real = label < C
    alive = tl.load(exists + task * C + label, mask=real, other=0) != 0
    return task, point, (task * C + label) * N + point, real, alive


@triton.jit
def moments(
    mean, var, exists, Y, weight, shift, precision, prob_out, curvature_out, expected_out,
    step_size, N, C, STEP: tl.constexpr, CLASSES: tl.constexpr,
) -> Any:  # fmt: skip
    """Softmax moments at one point of one task and, with STEP, the mirror step of its sites."""
    task, point, here, real, alive = _point(exists, N, C, CLASSES)
    m_given = tl.load(mean + here, mask=real, other=0.0)
    top, m, s, n_z, step_z, low, n_u = _grid(m_given, tl.load(var + here, mask=real, other=0.0), alive)
    prob = tl.zeros([CLASSES], dtype=tl.float32)
    curvature = tl.zeros([CLASSES], dtype=tl.float32)
    above = 0.0  # sum of 1 - F; the left end node, where F is zero, has half weight
    for first in range(0, n_u, _NODES):
        u = low + (first + tl.arange(0, _NODES)) * _SPACING
        offset = m[:, None] - u[None, :]
        G = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        missing = tl.zeros([CLASSES, _NODES], dtype=tl.float32)  # 1 - G, accurate for G near one
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


@triton.jit
def moments_backward(
    mean, var, exists, prob_bar, curvature_bar, mean_bar_out, var_bar_out, N, C, CLASSES: tl.constexpr
) -> Any:
    """Vector-Jacobian product of E[p] and E[p (1 - p)] at one point; see `softmax.integrals` for the formulas."""
    _, _, here, real, alive = _point(exists, N, C, CLASSES)
    m_given = tl.load(mean + here, mask=real, other=0.0)
    v = tl.load(var + here, mask=real, other=0.0)
    a = tl.load(prob_bar + here, mask=alive, other=0.0)[:, None]
    b = tl.load(curvature_bar + here, mask=alive, other=0.0)[:, None]
    _, m, s, n_z, step_z, low, n_u = _grid(m_given, v, alive)
    mean_bar = tl.zeros([CLASSES], dtype=tl.float32)
    var_bar = tl.zeros([CLASSES], dtype=tl.float32)
    for first in range(0, n_u, _NODES):
        u = low + (first + tl.arange(0, _NODES)) * _SPACING
        offset = m[:, None] - u[None, :]
        G = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        e1 = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        e2 = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        e3 = tl.zeros([CLASSES, _NODES], dtype=tl.float32)
        total = 0.0
        for k in range(n_z):
            z = k * step_z - _N_STD
            density = tl.exp(-0.5 * z * z)
            total += density
            rate = tl.exp(tl.minimum(offset + (s * z)[:, None], 5.0))  # above 5, exp(-rate) is zero
            survive = density * tl.exp(-rate)
            G += survive
            e1 += rate * survive
            e2 += rate * rate * survive
            e3 += rate * rate * rate * survive
        G = tl.maximum(G, total * 1e-30)
        # ratios of the first three derivatives of G to G
        r, q, t = e1 / G, (e2 - e1) / G, (e3 - 3.0 * e2 + e1) / G
        F = (tl.exp(tl.sum(tl.log(G / total), axis=0)) * _SPACING)[None, :]
        R = tl.sum(r, axis=0)[None, :]
        spread = a * R - tl.sum(a * r, axis=0)[None, :]
        br = tl.sum(b * r, axis=0)[None, :]
        partners = b * (R - r) + br - b * r
        rest = br * R - tl.sum(b * r * r, axis=0)[None, :] - r * partners
        mean_bar += tl.sum(F * (r * spread - q * partners - r * rest), axis=1)
        var_bar += tl.sum(F * (t * partners + q * (rest - spread)), axis=1) * 0.5
    tl.store(mean_bar_out + here, tl.where(alive, mean_bar, 0.0), mask=real)
    tl.store(var_bar_out + here, tl.where(alive, var_bar, 0.0), mask=real)

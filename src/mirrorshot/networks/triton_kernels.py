"""Triton kernels of `first_block`, where they are explained. Imported only where they run."""

from typing import Any

import triton
import triton.language as tl

_NO_GRADIENT = tl.constexpr(4)  # in place of a position in the window: ReLU has cut it off


@triton.jit
def _taps(
    place, row, column, inside, n_taps, H: tl.constexpr, W: tl.constexpr, PADDING: tl.constexpr, TAPS: tl.constexpr
) -> Any:
    """Inputs (tap, position) of a 3 x 3 convolution at output positions (`row`, `column`); zero outside."""
    tap = tl.arange(0, TAPS)
    r = row[None, :] + ((tap % 9) // 3)[:, None] - PADDING
    c = column[None, :] + (tap % 3)[:, None] - PADDING
    real = inside[None, :] & (tap < n_taps)[:, None] & (r >= 0) & (r < H) & (c >= 0) & (c < W)
    return tl.load(place + (tap // 9)[:, None] * (H * W) + r * W + c, mask=real, other=0.0)


@triton.jit
def patch_moments(
    images, out, n_taps, H: tl.constexpr, W: tl.constexpr,
    PADDING: tl.constexpr, TAPS: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
) -> Any:  # fmt: skip
    """Sum over `SPAN` patches of one image of `(x, 1) (x, 1)^T`; the 1 stands behind the last tap."""
    image = tl.program_id(0).to(tl.int64)
    part = image * tl.num_programs(1) + tl.program_id(1)
    place = images + image * (n_taps // 9) * H * W
    tap = tl.arange(0, TAPS)
    OH: tl.constexpr = H + 2 * PADDING - 2
    OW: tl.constexpr = W + 2 * PADDING - 2
    total = tl.zeros([TAPS, TAPS], dtype=tl.float32)
    for first in range(0, SPAN, TILE):
        position = tl.program_id(1) * SPAN + first + tl.arange(0, TILE)
        inside = position < OH * OW
        x = _taps(place, position // OW, position % OW, inside, n_taps, H, W, PADDING, TAPS)
        x = tl.where((tap == n_taps)[:, None] & inside[None, :], 1.0, x)
        total += tl.dot(x, tl.trans(x), input_precision="tf32")
    tl.store(out + part * TAPS * TAPS + tap[:, None] * TAPS + tap[None, :], total)


@triton.jit
def forward(
    images, weight, bias, out, chosen, n_taps, n_out, H: tl.constexpr, W: tl.constexpr,
    PADDING: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr,
) -> Any:  # fmt: skip
    """Convolution, bias, 2 x 2 max-pooling and ReLU of a tile of pooled positions of one image."""
    PH: tl.constexpr = (H + 2 * PADDING - 2) // 2
    PW: tl.constexpr = (W + 2 * PADDING - 2) // 2
    image = tl.program_id(0).to(tl.int64)
    place = images + image * (n_taps // 9) * H * W
    tap, channel = tl.arange(0, TAPS), tl.arange(0, CHANNELS)
    real = channel < n_out
    kernel = tl.load(
        weight + channel[:, None] * n_taps + tap[None, :], mask=real[:, None] & (tap < n_taps)[None, :], other=0.0
    )
    position = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = position < PH * PW
    best = tl.full([CHANNELS, TILE], float("-inf"), dtype=tl.float32)
    window = tl.zeros([CHANNELS, TILE], dtype=tl.int32)
    for q in tl.static_range(4):
        row, column = position // PW * 2 + q // 2, position % PW * 2 + q % 2
        x = _taps(place, row, column, inside, n_taps, H, W, PADDING, TAPS)
        value = tl.dot(kernel, x, input_precision="tf32")
        window = tl.where(value > best, q, window)
        best = tl.maximum(value, best)
    best += tl.load(bias + channel, mask=real, other=0.0)[:, None]
    window = tl.where(best > 0, window, _NO_GRADIENT)
    there = (image * PH * PW + position)[:, None] * n_out + channel[None, :]
    mask = inside[:, None] & real[None, :]
    tl.store(out + there, tl.trans(tl.maximum(best, 0.0)), mask=mask)
    tl.store(chosen + there, tl.trans(window), mask=mask)


@triton.jit
def backward(
    images, grad, chosen, weight_out, bias_out, n_taps, n_out, H: tl.constexpr, W: tl.constexpr,
    PADDING: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
) -> Any:  # fmt: skip
    """Part of `SPAN` pooled positions of one image in the gradients of weight and bias."""
    PH: tl.constexpr = (H + 2 * PADDING - 2) // 2
    PW: tl.constexpr = (W + 2 * PADDING - 2) // 2
    image = tl.program_id(0).to(tl.int64)
    part = image * tl.num_programs(1) + tl.program_id(1)
    place = images + image * (n_taps // 9) * H * W
    tap, channel = tl.arange(0, TAPS), tl.arange(0, CHANNELS)
    real = channel < n_out
    weight_bar = tl.zeros([CHANNELS, TAPS], dtype=tl.float32)
    bias_bar = tl.zeros([CHANNELS], dtype=tl.float32)
    for first in range(0, SPAN, TILE):
        position = tl.program_id(1) * SPAN + first + tl.arange(0, TILE)
        inside = position < PH * PW
        there = (image * PH * PW + position)[:, None] * n_out + channel[None, :]
        mask = inside[:, None] & real[None, :]
        g = tl.load(grad + there, mask=mask, other=0.0).to(tl.float32)
        window = tl.load(chosen + there, mask=mask, other=_NO_GRADIENT)
        bias_bar += tl.sum(tl.where(window < _NO_GRADIENT, g, 0.0), axis=0)
        for q in tl.static_range(4):
            row, column = position // PW * 2 + q // 2, position % PW * 2 + q % 2
            x = _taps(place, row, column, inside, n_taps, H, W, PADDING, TAPS)
            mine = tl.where(window == q, g, 0.0)
            weight_bar += tl.dot(tl.trans(mine), tl.trans(x), input_precision="tf32")
    out = weight_out + part * CHANNELS * TAPS
    tl.store(out + channel[:, None] * TAPS + tap[None, :], weight_bar)
    tl.store(bias_out + part * CHANNELS + channel, bias_bar)

"""The first block of a network on a GPU, without the map of its convolution, which is the largest of all.

Convolution 3 x 3 of images, batch normalisation in train mode, 2 x 2 max-pooling and ReLU. The map before pooling has
64 channels of 84 x 84, and reading and writing it several times takes most of the time of a Conv4. It need not exist:
the mean and variance of a channel `w^T x` over all patches x are `w^T E[x]` and `w^T Cov[x] w`, so two moments of the
patches of the images (28 x 28 numbers) are all that the normalisation needs. It is then folded into the weights:

    w' = gamma w / sqrt(w^T Cov[x] w + eps),    b' = beta - w'^T E[x]

and one kernel computes `relu(maxpool(w' * x + b'))`, keeping which of the four positions of a window was largest. The
backward pass needs the gradients of w' and b' alone, sums over these positions; autograd does the folding. Images have
no gradient. Sums are taken in a fixed order.
"""

import importlib.util
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
_TILE = 64  # positions at a time
_PARTS = 8  # of an image, whose sums are taken side by side


def normalised_pool(
    images: Float[Tensor, "n c h w"],
    weight: Float[Tensor, "d c 3 3"],
    gamma: Float[Tensor, " d"],
    beta: Float[Tensor, " d"],
    padding: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "n d h2 w2"], Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Pooled maps as `dtype`; mean and variance of the channels without their bias, which have no gradient."""
    images = images.contiguous()
    total = patch_moments(images, padding).double()
    mean_x = total[-1, :-1] / total[-1, -1]
    cov = (total[:-1, :-1] / total[-1, -1] - torch.outer(mean_x, mean_x)).to(weight.dtype)
    w = weight.flatten(1)
    mean, var = w @ mean_x.to(w.dtype), ((w @ cov) * w).sum(1).clamp(min=0.0)
    scale = gamma * (var + eps).rsqrt()
    maps, _ = conv_pool_relu(images, scale[:, None] * w, beta - scale * mean, padding, dtype)
    return maps, mean.detach(), var.detach()


@torch.library.custom_op("mirrorshot::patch_moments", mutates_args=())
def patch_moments(images: Tensor, padding: int) -> Tensor:
    """Sum over all patches x of 3 x 3 of `(x, 1) (x, 1)^T`, (9 c + 1, 9 c + 1)."""
    from mirrorshot.networks import triton_kernels as kernels

    n, c, h, w = images.shape
    taps, span = _power_of_two(9 * c + 1), _span((h + 2 * padding - 2) * (w + 2 * padding - 2))
    parts = images.new_empty(n * _PARTS, taps, taps)
    kernels.patch_moments[(n, _PARTS)](
        images, parts, 9 * c, H=h, W=w, PADDING=padding, TAPS=taps, TILE=_TILE, SPAN=span
    )
    return parts.sum(0)[: 9 * c + 1, : 9 * c + 1].contiguous()


@patch_moments.register_fake
def _(images: Tensor, padding: int) -> Tensor:
    size = 9 * images.shape[1] + 1
    return images.new_empty(size, size)


@torch.library.custom_op("mirrorshot::conv_pool_relu", mutates_args=())
def conv_pool_relu(
    images: Tensor, weight: Tensor, bias: Tensor, padding: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`relu(maxpool(conv(images) + bias))`, and which of the four positions was largest (4: ReLU cut it off)."""
    from mirrorshot.networks import triton_kernels as kernels

    out, chosen = _empty_outputs(images, weight, bias, padding, dtype)
    (n, c, h, w), (d, height, width) = images.shape, out.shape[1:]
    kernels.forward[(n, -(-height * width // _TILE))](
        images, weight.contiguous(), bias.contiguous(), out, chosen, 9 * c, d,
        H=h, W=w, PADDING=padding, TAPS=_power_of_two(9 * c), CHANNELS=_power_of_two(d), TILE=_TILE,
    )  # fmt: skip
    return out, chosen


@conv_pool_relu.register_fake
def _empty_outputs(
    images: Tensor, weight: Tensor, bias: Tensor, padding: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    height, width = ((side + 2 * padding - 2) // 2 for side in images.shape[2:])
    sizes = len(images), len(weight), height, width
    out = torch.empty(sizes, dtype=dtype, device=images.device, memory_format=torch.channels_last)
    return out, torch.empty_like(out, dtype=torch.int8)


@torch.library.custom_op("mirrorshot::conv_pool_relu_backward", mutates_args=())
def conv_pool_relu_backward(images: Tensor, grad: Tensor, chosen: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Gradients of weight (d, 9 c) and bias (d)."""
    from mirrorshot.networks import triton_kernels as kernels

    grad = grad.contiguous(memory_format=torch.channels_last)
    (n, c, h, w), d = images.shape, grad.shape[1]
    taps, channels, span = _power_of_two(9 * c), _power_of_two(d), _span(grad.shape[2] * grad.shape[3])
    weight_parts, bias_parts = (images.new_empty(n * _PARTS, channels, *rest) for rest in ((taps,), ()))
    kernels.backward[(n, _PARTS)](
        images, grad, chosen, weight_parts, bias_parts, 9 * c, d,
        H=h, W=w, PADDING=padding, TAPS=taps, CHANNELS=channels, TILE=_TILE, SPAN=span,
    )  # fmt: skip
    return weight_parts.sum(0)[:d, : 9 * c].contiguous(), bias_parts.sum(0)[:d].clone()


@conv_pool_relu_backward.register_fake
def _empty_gradients(images: Tensor, grad: Tensor, chosen: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    d = grad.shape[1]
    return images.new_empty(d, 9 * images.shape[1]), images.new_empty(d)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.padding = inputs[3]
    ctx.save_for_backward(inputs[0], output[1])


def _pull_back(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    images, chosen = ctx.saved_tensors
    return None, *conv_pool_relu_backward(images, grad, chosen, ctx.padding), None, None


conv_pool_relu.register_autograd(_pull_back, setup_context=_save)


def _power_of_two(n: int) -> int:
    """The next power of two, at least the 16 that Triton's products need."""
    return max(16, 1 << (n - 1).bit_length())


def _span(n_positions: int) -> int:
    """Positions of a part of an image, in whole tiles."""
    return -(-n_positions // (_PARTS * _TILE)) * _TILE

"""Blocks of convolutional backbones, with batch normalisation per task."""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor, nn

from mirrorshot.types import InvalidInputError


class TaskBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation with separate batch statistics for each task in train mode.

    Each running statistic, used in eval mode, moves towards the mean over the tasks. With one task the module equals
    `nn.BatchNorm2d`; it has the same state.

    Example:
        >>> x = torch.tensor([1.0, 3.0, 10.0, 30.0]).reshape(4, 1, 1, 1)
        >>> TaskBatchNorm2d(1)(x, n_tasks=2).flatten()
        tensor([-1.0000,  1.0000, -1.0000,  1.0000], grad_fn=...)

    Design note: tasks become groups of channels for torch's fused kernel, which costs one copy in and one out.
    Rejected: `torch.var_mean`, slower on the CPU and, under autocast, inexact without a float32 copy.
    """

    def __init__(self, num_features: int, *, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, momentum)

    def forward(self, input: Float[Tensor, "TN c h w"], n_tasks: int = 1) -> Float[Tensor, "TN c h w"]:
        """Normalise the maps of `n_tasks` tasks of equal size, one task after the other."""
        if n_tasks < 1 or len(input) % n_tasks:
            raise InvalidInputError(f"Expected a multiple of `n_tasks`={n_tasks} maps, but got {len(input)}.")
        if n_tasks == 1 or not self.training:
            return super().forward(input)
        state = (self.running_mean, self.running_var, self.weight, self.bias)
        means, variances, weight, bias = (s.repeat(n_tasks) for s in state if s is not None)
        groups = _tasks_to_channels(input, n_tasks)
        groups = F.batch_norm(groups, means, variances, weight, bias, True, self.momentum or 0.0, self.eps)
        with torch.no_grad():  # batch_norm has updated each task's copy of the statistics
            for running, moved in zip(state[:2], (means, variances), strict=True):
                running.copy_(moved.reshape(n_tasks, -1).mean(0))  # type: ignore[union-attr]
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        return _channels_to_tasks(groups, n_tasks)


def _tasks_to_channels(x: Float[Tensor, "TN c h w"], n_tasks: int) -> Float[Tensor, "N Tc h w"]:
    if x.is_contiguous(memory_format=torch.channels_last):  # preserved in the result
        tasks = x.permute(0, 2, 3, 1).reshape(n_tasks, -1, *x.shape[2:], x.shape[1])
        return tasks.permute(1, 2, 3, 0, 4).flatten(3).permute(0, 3, 1, 2)
    return x.reshape(n_tasks, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def _channels_to_tasks(x: Float[Tensor, "N Tc h w"], n_tasks: int) -> Float[Tensor, "TN c h w"]:
    if x.is_contiguous(memory_format=torch.channels_last):
        tasks = x.permute(0, 2, 3, 1).reshape(len(x), *x.shape[2:], n_tasks, -1)
        return tasks.permute(3, 0, 1, 2, 4).flatten(0, 1).permute(0, 3, 1, 2)
    return x.reshape(len(x), n_tasks, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


class _BareConv2d(nn.Conv2d):
    """Convolution without initialisation; its owner draws the weights.

    Design note: `nn.utils.skip_init` does the same through torch's meta device, which imports sympy: half a second.
    """

    def reset_parameters(self) -> None:
        """Keep the uninitialised weights."""


class ConvNorm(nn.Module):
    """Convolution and batch normalisation. Weights are N(0, 2 / (size^2 n_out)), biases uniform as in torch."""

    def __init__(self, n_in: int, n_out: int, size: int, generator: Generator, **options: Any) -> None:
        super().__init__()
        self.conv = _BareConv2d(n_in, n_out, size, **options)
        self.norm = TaskBatchNorm2d(n_out)
        std, bound = math.sqrt(2.0 / (size * size * n_out)), 1.0 / math.sqrt(size * size * n_in)
        with torch.no_grad():  # drawn on the generator's device
            for p in self.conv.parameters():
                new, g = torch.empty(p.shape, device=generator.device), generator
                p.copy_(new.uniform_(-bound, bound, generator=g) if p.ndim == 1 else new.normal_(0, std, generator=g))

    def forward(self, x: Float[Tensor, "TN c h w"], n_tasks: int) -> Float[Tensor, "TN d h2 w2"]:
        """Return the maps of `n_tasks` tasks."""
        return self.norm(self.conv(x), n_tasks)


def hold_subtracted_biases(network: nn.Module) -> None:
    """Freeze the biases that a following batch normalisation with running statistics cancels.

    Design note: their gradient is pure rounding error, yet Adam moves them by full steps. The running mean lags behind
    these steps, so features in eval mode would depend on the order of summation, for instance on the number of
    processes. Rejected: convolutions without biases, because checkpoints contain them.
    """
    for part in network.modules():
        if not isinstance(part, ConvNorm) or part.conv.bias is None:
            continue
        if isinstance(part.get_submodule("norm"), TaskBatchNorm2d):  # replaced in networks that are adapted
            part.conv.bias.requires_grad_(False)


class ConvBlock(ConvNorm):
    """Convolution 3 x 3 with bias, batch normalisation, ReLU and, with `pool`, 2 x 2 max-pooling."""

    def __init__(self, n_in: int, n_out: int, *, padding: int, pool: bool, generator: Generator) -> None:
        super().__init__(n_in, n_out, 3, generator, padding=padding)
        self.pool = pool

    def forward(self, x: Float[Tensor, "TN c h w"], n_tasks: int) -> Float[Tensor, "TN d h2 w2"]:
        """Return the maps of `n_tasks` tasks. Pooling before the ReLU: the same result at a quarter of the work."""
        maps = super().forward(x, n_tasks)
        return F.relu(F.max_pool2d(maps, 2) if self.pool else maps, inplace=True)


class Stem(ConvNorm):
    """Convolution, batch normalisation, ReLU and 3 x 3 max-pooling with stride 2."""

    def forward(self, x: Float[Tensor, "TN c h w"], n_tasks: int) -> Float[Tensor, "TN d h2 w2"]:
        """Return the maps of `n_tasks` tasks."""
        return F.relu(F.max_pool2d(super().forward(x, n_tasks), 3, stride=2, padding=1), inplace=True)


class ResidualBlock(nn.Module):
    """`activation(f(x) + shortcut(x))`, then max-pooling; the shortcut is a `ConvNorm` if the channels change."""

    def __init__(
        self, n_in: int, n_out: int, generator: Generator, *, n_convs: int, stride: int, slope: float, pool: bool
    ) -> None:
        super().__init__()
        self.slope, self.pool = slope, pool
        conv = partial(ConvNorm, n_out=n_out, size=3, generator=generator, padding=1, bias=False)
        self.convs = nn.ModuleList([conv(n_in, stride=stride), *(conv(n_out) for _ in range(n_convs - 1))])
        self.shortcut = None if n_in == n_out else ConvNorm(n_in, n_out, 1, generator, stride=stride, bias=False)

    def forward(self, x: Float[Tensor, "TN c h w"], n_tasks: int) -> Float[Tensor, "TN d h2 w2"]:
        """Return the maps of `n_tasks` tasks."""
        out = x
        for i, conv in enumerate(self.convs):
            out = conv(F.leaky_relu(out, self.slope, inplace=True) if i else out, n_tasks)
        out = out + (x if self.shortcut is None else self.shortcut(x, n_tasks))
        return F.leaky_relu(F.max_pool2d(out, 2) if self.pool else out, self.slope, inplace=True)

"""Adaptation of a network to each task: base class, layers for single tasks, compiled steps, parallel tasks."""

import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from mirrorshot.methods.base import FewShotMethod
from mirrorshot.methods.shared import check_positive
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import check_at_least

Function = TypeVar("Function", bound=Callable[..., object])
Weights = TypeVar("Weights")


class LabelledItems(NamedTuple):
    """Items of one task or of a batch, labels, and weights `counts`, which are zero for padding."""

    x: Shaped[Tensor, "..."]
    y: Int[Tensor, "*T N"]
    counts: Float[Tensor, "*T N"]


class AdaptedMethod(FewShotMethod):
    """Base class of methods that adapt all weights of a network to each task, by gradient steps on its support.

    The method modifies the backbone: it replaces layers. `predict` takes `n_test_steps`; None: `n_steps`. With
    `first_order` the gradients of the steps are constants.
    """

    is_by_features = False

    def __init__(
        self,
        backbone: Backbone,
        *,
        n_way: int = 5,
        n_steps: int = 5,
        step_size: float = 0.01,
        n_test_steps: int | None = None,
        first_order: bool = False,
    ) -> None:
        super().__init__(backbone)
        check_at_least(2, n_way=n_way)
        check_at_least(0, n_steps=n_steps, n_test_steps=n_test_steps or 0)
        check_positive(step_size=step_size)
        self.n_way, self.n_steps, self.step_size, self.first_order = n_way, n_steps, step_size, first_order
        self.n_test_steps = n_steps if n_test_steps is None else n_test_steps
        self._norms = _replace_layers(backbone, "backbone")

    def _slope(self, function: Callable[[Weights], Tensor], at: Weights) -> Weights:
        """Gradient of a function of weights; with `first_order` as a constant."""
        # an outer no_grad does not disable `grad` itself, only derivatives of its result
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.first_order):
            return cast(Weights, grad(function)(at))


def compiled(function: Function) -> Function:
    """Compile a function for one size of its arguments, including derivatives within it.

    Silences torch's warning about online softmax in this process.
    """
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
    # torch limits the compilations per code object, so each caller gets a copy
    code, scope = function.__code__.replace(), function.__globals__
    return cast(Function, torch.compile(types.FunctionType(code, scope, function.__name__), dynamic=False))


def _is_eager_cpu(tensor: Tensor) -> bool:
    """Whether this runs uncompiled on the CPU, where layouts and values can be inspected."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def side_by_side(function: Callable[..., Tensor], *tensors: Tensor, in_turn: bool = False) -> Tensor:
    """Apply `function` to the first slices of the tensors, to the second ones and so on, and stack the results.

    On a GPU several slices run in parallel by `vmap`. On the CPU, and with `in_turn`, they run one after the other:
    vmap turns convolutions with different weights into grouped ones, whose derivatives take twice as long on the CPU.
    """
    if in_turn or len(tensors[0]) == 1 or _is_eager_cpu(tensors[0]):
        return torch.stack([function(*slices) for slices in zip(*tensors, strict=True)])
    result: Tensor = vmap(function)(*tensors)
    return result


def call_network(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    norms: Iterable[str],
    x: Shaped[Tensor, "N ..."],
    counts: Float[Tensor, " N"],
) -> Float[Tensor, "N C"]:
    """Return the network's output for the items of one task, with given weights.

    `norms` are the names of the `counts` of the network's `ItemNorm`s. On the CPU, convolution weights are converted to
    `channels_last`, the fastest layout there for pooling and norms, which steps and slices of weights do not preserve.
    """
    if _is_eager_cpu(x):
        last = torch.channels_last
        weights = {name: w.clone(memory_format=last) if w.ndim == 4 else w for name, w in weights.items()}
    result: Tensor = functional_call(network, {**weights, **dict.fromkeys(norms, counts)}, (x,))
    return result


class ItemNorm(nn.Module):
    """Batch normalisation of one task with batch statistics in train and eval mode, without running statistics.

    Takes over scale and shift. `counts`, a buffer replaced in every call, has the weights of the items in the
    statistics: zero for padding, and for queries normalised by the statistics of the support.
    """

    counts: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("counts", torch.ones(1), persistent=False)

    def forward(self, input: Float[Tensor, "N c h w"], n_tasks: int = 1) -> Float[Tensor, "N c h w"]:
        """Normalise the maps of one task; `n_tasks`, passed by blocks of backbones, is ignored."""
        x = input if input.dtype == torch.float64 else input.float()
        if _is_eager_cpu(x) and x[:, 0].numel() > 1 and (self.counts == self.counts[0]).all():
            # torch's fused norm, which does not support a single value
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.batch_norm(x, None, None, weight, bias, training=True, eps=self.eps).to(input.dtype)
        counts = self.counts.to(x.dtype)[:, None]
        share = counts / counts.sum()
        x = x - (share * x.mean((2, 3))).sum(0)[:, None, None]
        variance = (share * x.square().mean((2, 3))).sum(0)[:, None, None]
        scale = self.weight[:, None, None] * (variance + self.eps).rsqrt()
        return torch.addcmul(self.bias[:, None, None], x, scale).to(input.dtype)


class ItemConv(nn.Module):
    """Convolution with the parameters of another one; a matrix product in compiled functions.

    Design note: torch differentiates the derivative of a convolution by convolutions with kernels as large as the maps,
    which are slow in cuDNN. Derivatives of slices and products are slices and products. Rejected: the three
    convolutions of a trilinear form as `autograd.Function`s, which give wrong losses when compiled within
    `torch.func.grad` (torch 2.13).
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = conv.weight, conv.bias
        self.stride, self.padding = int(conv.stride[0]), int(conv.padding[0])

    @staticmethod
    def can_replace(conv: nn.Module) -> bool:
        """Whether a layer is a plain convolution with equal height and width parameters; others are not replaced."""
        if not isinstance(conv, nn.Conv2d) or type(conv).forward is not nn.Conv2d.forward:
            return False
        is_square = all(len(set(size)) == 1 for size in (conv.kernel_size, conv.stride, conv.padding))
        is_plain = conv.groups == 1 and set(conv.dilation) == {1} and conv.padding_mode == "zeros"
        return is_plain and is_square and not isinstance(conv.padding, str)

    def forward(self, input: Float[Tensor, "N c h w"]) -> Float[Tensor, "N d h2 w2"]:
        """Return the maps of the items."""
        if not torch.compiler.is_compiling():
            return F.conv2d(input, self.weight, self.bias, self.stride, self.padding)
        x, weight, bias = input, self.weight, self.bias
        if torch.is_autocast_enabled(x.device.type):  # before copying x, or the copies are twice as large
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        size, step = weight.shape[-1], self.stride
        x = F.pad(x.permute(0, 2, 3, 1), (0, 0, *[self.padding] * 4))
        height, width = ((n - size) // step + 1 for n in x.shape[1:3])
        x = torch.stack([x[:, i : i + step * height : step] for i in range(size)], 3)
        x = torch.stack([x[:, :, i : i + step * width : step] for i in range(size)], 3)
        y = x.reshape(-1, x.shape[3:].numel()) @ weight.permute(3, 2, 1, 0).reshape(-1, len(weight))
        y = y.reshape(-1, height, width, len(weight)).permute(0, 3, 1, 2)
        return y if bias is None else y + bias[:, None, None]


def _replace_layers(network: nn.Module, prefix: str) -> list[str]:
    """Replace plain convolutions and batch normalisation of a network; return the names of the norms' `counts`."""
    names = []
    for path, module in list(network.named_modules(prefix=prefix)):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, ItemNorm(child))
                names.append(f"{path}.{name}.counts")
            elif ItemConv.can_replace(child):
                setattr(module, name, ItemConv(child))
    return names

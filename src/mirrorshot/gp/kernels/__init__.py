"""Kernels, which map the features of a batch of tasks to prior covariances.

`KERNELS` lists their names. A new kernel is a subclass of `ScaledKernel` with two formulas and one line in `FAMILIES`;
`description` must know the names of its new options. Kernels are immutable values, and `TrainableKernel` is a torch
module with the hyper-parameters of one. `TrainableKernel` and `GPyTorchKernel` ("gpytorch") need torch.
"""

import sys
from typing import TYPE_CHECKING, Any

from mirrorshot.gp.kernels.base import Kernel, Product, Sum
from mirrorshot.gp.kernels.description import build_kernel, describe_kernel, kernel_state
from mirrorshot.gp.kernels.families import FAMILIES, RBF, Cosine, Linear, Matern, Polynomial, Stationary
from mirrorshot.gp.kernels.scaled import FeatureKernel, ScaledKernel
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    from mirrorshot.gp.kernels.trainable import GPyTorchKernel, TrainableKernel

__all__ = [
    "Kernel", "FeatureKernel", "ScaledKernel", "Stationary",
    "Cosine", "RBF", "Matern", "Linear", "Polynomial", "GPyTorchKernel",
    "Sum", "Product", "TrainableKernel",
    "FAMILIES", "KERNELS", "make_kernel", "as_value", "is_own", "describe_kernel", "build_kernel", "kernel_state",
]  # fmt: skip

KERNELS = (*FAMILIES, "gpytorch")


def __getattr__(name: str) -> Any:
    if name in ("GPyTorchKernel", "TrainableKernel"):
        from mirrorshot.gp.kernels import trainable

        return getattr(trainable, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def kernel_class(name: str) -> type[Kernel]:
    """Return the class of the kernel with a name from `KERNELS`."""
    if name not in KERNELS:
        raise InvalidInputError(f"Expected `name` to be one of {', '.join(KERNELS)}, but got {name!r}.")
    if name in FAMILIES:
        return FAMILIES[name]
    from mirrorshot.gp.kernels.trainable import GPyTorchKernel

    return GPyTorchKernel


def make_kernel(name: str, **options: Any) -> Kernel:
    """Build the kernel with a name from `KERNELS`; `options` are the arguments of its class.

    Example:
        >>> make_kernel("polynomial", power=1, normalise=True)
        Polynomial(power=1, centre=False, n_way=None, normalise=True, outputscale=1.0, offset=1.0)
    """
    return kernel_class(name)(**options)


def is_own(kernel: Kernel) -> bool:
    """Whether this package defines the kernel, so that its matrices are symmetric and positive semi-definite."""
    if isinstance(kernel, (Sum, Product)):
        return all(is_own(part) for part in kernel.parts)
    return type(kernel) in FAMILIES.values()


def as_value(kernel: object) -> Kernel | None:
    """Return a kernel as it is, a `TrainableKernel` as its current value, and anything else as None."""
    if isinstance(kernel, Kernel):
        return kernel
    modules = sys.modules.get("mirrorshot.gp.kernels.trainable")
    return kernel.value() if modules is not None and isinstance(kernel, modules.TrainableKernel) else None

"""Kernels: from the features of a batch of tasks to prior covariances.

`KERNELS` holds them by name; a new kernel is a subclass with two formulas and one line in `FAMILIES`.
"""

from typing import Any

from mirrorshot.gp.kernels.base import FeatureKernel, Kernel, Product, ScaledKernel, Sum
from mirrorshot.gp.kernels.description import build_kernel, describe_kernel
from mirrorshot.gp.kernels.families import FAMILIES, RBF, Cosine, GPyTorchKernel, Linear, Matern, Polynomial, Stationary
from mirrorshot.types import InvalidInputError

__all__ = [
    "Kernel", "FeatureKernel", "ScaledKernel", "Stationary",
    "Cosine", "RBF", "Matern", "Linear", "Polynomial", "GPyTorchKernel",
    "Sum", "Product",
    "KERNELS", "make_kernel", "describe_kernel", "build_kernel",
]  # fmt: skip

KERNELS: dict[str, type[Kernel]] = {**FAMILIES, "gpytorch": GPyTorchKernel}


def make_kernel(name: str, **options: Any) -> Kernel:
    """Build the kernel `KERNELS[name]` with the arguments of its class.

    Example:
        >>> make_kernel("polynomial", power=1, normalise=True)
        Polynomial(power=1, n_way=None, centre=False, normalise=True)
    """
    if name not in KERNELS:
        raise InvalidInputError(f"Expected `name` to be one of {', '.join(KERNELS)}, but got {name!r}.")
    return KERNELS[name](**options)

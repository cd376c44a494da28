"""Base class of kernels, and sums and products of kernels.

A kernel maps features (T, N, D) of a batch of tasks to prior covariances (T, H, N, M) of the latents. `H` is 1 if the
classes share the kernel (the default, because class indices of an episode are arbitrary) or `n_way` for the paper's
hyper-parameters per class.

Kernels are immutable values with NumPy hyper-parameters; `GPyTorchKernel` is a torch module instead. They accept NumPy
arrays and torch tensors. Their formulas are functions of the hyper-parameters, so that `TrainableKernel` evaluates the
same formulas with the parameters it trains.
"""

import abc
import functools
import operator
from typing import Any, TypeAlias

from jaxtyping import Float

from mirrorshot.softmax.arrays import Array
from mirrorshot.types import InvalidInputError

Centre = Float[Array, "#T 1 D"] | None
Scales: TypeAlias = Any
"""Positive hyper-parameters (H,) by name, Mapping[str, Array]; for a combination, a tuple with those of each part."""


class Kernel(abc.ABC):
    """Base class of kernels. `k1 + k2` and `k1 * k2` are kernels, too."""

    @property
    @abc.abstractmethod
    def n_kernels(self) -> int:
        """`H`: 1 if all classes share the kernel, otherwise the number of classes."""

    @property
    @abc.abstractmethod
    def is_centred(self) -> bool:
        """Whether covariances depend on a centre."""

    @property
    @abc.abstractmethod
    def scales(self) -> Scales:
        """The hyper-parameters."""

    @abc.abstractmethod
    def covariance(self, scales: Scales, x: Array, z: Array | None, centre: Centre) -> Float[Array, "T H N M"]:
        """Formula of `__call__`; the hyper-parameters may be torch tensors."""

    @abc.abstractmethod
    def variance(self, scales: Scales, x: Array, centre: Centre) -> Float[Array, "T H N"]:
        """Formula of `diagonal`; the hyper-parameters may be torch tensors."""

    def __call__(
        self, x: Float[Array, "T N D"], z: Float[Array, "T M D"] | None = None, *, centre: Centre = None
    ) -> Float[Array, "T H N M"]:
        """Covariances of the features `x` with `z`, or of `x` with itself (then exactly symmetric).

        Kernels with `centre=True` subtract `centre` from `x` and `z`; others ignore it. None is the mean of `x`. All
        covariances of a task need the same centre. `kernel(support)` and `kernel(support, query)` have the same by
        default; `kernel.diagonal(query)`, and all calls for padded tasks, need that of the support.
        """
        return self.covariance(self.scales, x, z, centre)

    def diagonal(self, x: Float[Array, "T N D"], *, centre: Centre = None) -> Float[Array, "T H N"]:
        """Variances of `x`: the diagonal of `kernel(x)`, without the matrix."""
        return self.variance(self.scales, x, centre)

    def cross(
        self, x: Float[Array, "T N D"], z: Float[Array, "T M D"], *, centre: Centre
    ) -> tuple[Float[Array, "T H N M"], Float[Array, "T H M"]]:
        """Covariances of `x` with `z` and variances of `z`; `centre` is None only for kernels that do not centre."""
        return self(x, z, centre=centre), self.diagonal(z, centre=centre)

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Combination(Kernel):
    """Several kernels of the same features."""

    def __init__(self, *kernels: Kernel) -> None:
        _check_parts(kernels)
        self.parts = kernels

    @property
    def n_kernels(self) -> int:
        """`H`: shared kernels may be combined with kernels per class."""
        return max(kernel.n_kernels for kernel in self.parts)

    @property
    def is_centred(self) -> bool:
        """Whether any part depends on a centre."""
        return any(kernel.is_centred for kernel in self.parts)

    @property
    def scales(self) -> Scales:
        """The hyper-parameters of each part."""
        return tuple(kernel.scales for kernel in self.parts)

    def covariance(self, scales: Scales, x: Array, z: Array | None, centre: Centre) -> Float[Array, "T H N M"]:
        """Covariances, as in `Kernel`."""
        return self._combine([k.covariance(s, x, z, centre) for k, s in zip(self.parts, scales, strict=True)])

    def variance(self, scales: Scales, x: Array, centre: Centre) -> Float[Array, "T H N"]:
        """Variances, as in `Kernel`."""
        return self._combine([k.variance(s, x, centre) for k, s in zip(self.parts, scales, strict=True)])

    @abc.abstractmethod
    def _combine(self, arrays: list[Array]) -> Array:
        """Combine the arrays of the parts."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"


class Sum(Combination):
    """`k(x, z) = sum_i k_i(x, z)`: the kernel of sums of independent latents.

    Example:
        >>> import numpy as np
        >>> from mirrorshot.gp.kernels import RBF, Linear
        >>> kernel = RBF() + Linear()
        >>> kernel.diagonal(np.ones((1, 2, 3))).tolist()
        [[[4.0, 4.0]]]
    """

    def _combine(self, arrays: list[Array]) -> Array:
        return functools.reduce(operator.add, arrays)


class Product(Combination):
    """`k(x, z) = prod_i k_i(x, z)`. The outputscales multiply, too: train only one of them."""

    def _combine(self, arrays: list[Array]) -> Array:
        return functools.reduce(operator.mul, arrays)


def _check_parts(kernels: tuple[Kernel, ...]) -> None:
    for kernel in kernels:
        if not isinstance(kernel, Kernel):
            raise InvalidInputError(
                f"Expected kernels to combine, but got {type(kernel).__name__}. "
                "Wrap a GPyTorch kernel in GPyTorchKernel."
            )
    sizes = {kernel.n_kernels for kernel in kernels}
    if not kernels or len(sizes - {1}) > 1:
        raise InvalidInputError(
            f"Expected one or more kernels with the same `n_way` (or none), but got {sorted(sizes)}."
        )

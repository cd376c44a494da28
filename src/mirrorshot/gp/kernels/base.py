"""Base classes of kernels, and their sums and products.

A kernel maps features (T, N, D) of a batch of tasks to prior covariances (T, H, N, M) of the latents. `H` is
1 for one kernel shared by all classes (the default: class indices of an episode are arbitrary, so the prior
should not depend on them) or `n_way` for the paper's hyper-parameters per class.
"""

import abc
import functools
import math
import operator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mirrorshot.gp.kernels.features import as_features, full_precision, prepare
from mirrorshot.types import InvalidInputError

Centre = Float[Tensor, "#T 1 D"] | None


class Kernel(nn.Module, abc.ABC):
    """Base of all kernels. `k1 + k2` and `k1 * k2` are kernels again."""

    @property
    @abc.abstractmethod
    def n_kernels(self) -> int:
        """`H`: 1 if all classes share the kernel, otherwise the number of classes."""

    @abc.abstractmethod
    def forward(
        self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None = None, *, centre: Centre = None
    ) -> Float[Tensor, "T H N M"]:
        """Covariances of the features `x` with `z`, or of `x` with itself (then exactly symmetric).

        A kernel with `centre=True` subtracts `centre` from `x` and `z`; others ignore it. None is the mean of `x`. All
        covariances of one task need the same centre: `kernel(support)` and `kernel(support, query)` agree as they
        are; a call that starts from the query (its `diagonal`), or on padded tasks, must pass that of the support.
        """

    @abc.abstractmethod
    def diagonal(self, x: Float[Tensor, "T N D"], *, centre: Centre = None) -> Float[Tensor, "T H N"]:
        """Variances of `x`, the diagonal of `forward(x)`, without the matrix."""

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class _Combination(Kernel):
    """Several kernels of the same features."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        _check_parts(kernels)
        self.kernels = nn.ModuleList(kernels)

    @property
    def n_kernels(self) -> int:
        """`H` of the combination: kernels shared by the classes combine with kernels per class."""
        return max(kernel.n_kernels for kernel in self._parts)

    @property
    def _parts(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if isinstance(kernel, Kernel)]

    def forward(
        self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None = None, *, centre: Centre = None
    ) -> Float[Tensor, "T H N M"]:
        """Covariances, as in `Kernel.forward`."""
        return self._combine([kernel(x, z, centre=centre) for kernel in self._parts])

    def diagonal(self, x: Float[Tensor, "T N D"], *, centre: Centre = None) -> Float[Tensor, "T H N"]:
        """Variances of `x`."""
        return self._combine([kernel.diagonal(x, centre=centre) for kernel in self._parts])

    @abc.abstractmethod
    def _combine(self, tensors: list[Tensor]) -> Tensor:
        """One tensor from those of the kernels."""


class Sum(_Combination):
    """`k(x, z) = sum_i k_i(x, z)`: latents that are sums of independent latents.

    Example:
        >>> import torch
        >>> from mirrorshot.gp.kernels import RBF, Linear
        >>> kernel = RBF() + Linear()
        >>> kernel.diagonal(torch.ones(1, 2, 3))
        tensor([[[4., 4.]]], grad_fn=<AddBackward0>)
    """

    def _combine(self, tensors: list[Tensor]) -> Tensor:
        return functools.reduce(operator.add, tensors)


class Product(_Combination):
    """`k(x, z) = prod_i k_i(x, z)`. The output scales multiply too: train only one of them."""

    def _combine(self, tensors: list[Tensor]) -> Tensor:
        return functools.reduce(operator.mul, tensors)


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


class FeatureKernel(Kernel):
    """A kernel of features, with options to centre them first (see `Kernel.forward`) and scale them to unit norm.

    A subclass writes two formulas of prepared features, `_matrix` and `_variance`.
    """

    def __init__(self, *, centre: bool = False, normalise: bool = False) -> None:
        super().__init__()
        self.centre = centre
        self.normalise = normalise

    def forward(
        self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None = None, *, centre: Centre = None
    ) -> Float[Tensor, "T H N M"]:
        """Covariances, as in `Kernel.forward`."""
        x, z = as_features(x, z, centre)
        with full_precision(x):
            centre = self._centre_of(x) if centre is None else centre
            K = self._matrix(self.prepare(x, centre), None if z is None else self.prepare(z, centre))
            # (K + K^T) / 2: matrix products are symmetric up to rounding only
            return 0.5 * (K + K.mT) if z is None else K

    def diagonal(self, x: Float[Tensor, "T N D"], *, centre: Centre = None) -> Float[Tensor, "T H N"]:
        """Variances, as in `Kernel.diagonal`."""
        x, _ = as_features(x, None, centre)
        with full_precision(x):
            return self._variance(self.prepare(x, self._centre_of(x) if centre is None else centre))

    def prepare(self, x: Float[Tensor, "T N D"], centre: Centre) -> Float[Tensor, "T N D"]:
        """Centre the features and scale them to unit norm, according to the options."""
        return prepare(x, centre if self.centre else None, self.normalise)

    def _centre_of(self, x: Tensor) -> Tensor | None:
        return x.mean(1, keepdim=True) if self.centre else None

    @abc.abstractmethod
    def _matrix(self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None) -> Float[Tensor, "T H N M"]:
        """Covariances of prepared features."""

    @abc.abstractmethod
    def _variance(self, x: Float[Tensor, "T N D"]) -> Float[Tensor, "T H N"]:
        """Variances of prepared features."""

    def extra_repr(self) -> str:
        """Options for `print`."""
        return f"centre={self.centre}, normalise={self.normalise}"


class ScaledKernel(FeatureKernel):
    """A feature kernel with a trainable output scale, `k(x, z) = s k'(x, z)`.

    Design note: positive parameters are stored as logarithms (`log_outputscale`). An optimiser's step is then
    a relative change, whatever the size. A softplus (GPyTorch, the authors' code) is linear above 1, but the
    scales that matter reach from 0.7 to 300: at a learning rate of 1e-4 it moves by 5 in a whole training.

    Args:
        outputscale: initial `s`, a number or one per class.
        n_way: number of classes for hyper-parameters of their own; None shares them.
        centre: subtract a centre from the features, see `Kernel.forward`.
        normalise: scale the features to unit norm.
    """

    def __init__(
        self,
        *,
        outputscale: float | Tensor = 1.0,
        n_way: int | None = None,
        centre: bool = False,
        normalise: bool = False,
    ) -> None:
        super().__init__(centre=centre, normalise=normalise)
        if n_way is not None and n_way < 1:
            raise InvalidInputError(f"Expected `n_way` to be None or at least 1, but got {n_way}.")
        self.n_way = n_way
        self.log_outputscale = self._positive("outputscale", outputscale)

    @property
    def n_kernels(self) -> int:
        """`H`: 1 if all classes share the kernel, otherwise `n_way`."""
        return self.n_way or 1

    @property
    def outputscale(self) -> Float[Tensor, " H"]:
        """`s`, the factor of all covariances; set it to a number or one number per class."""
        return self.log_outputscale.exp()

    @outputscale.setter
    def outputscale(self, value: float | Tensor) -> None:
        self._assign("outputscale", value)

    def _matrix(self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None) -> Float[Tensor, "T H N M"]:
        return per_class(self.outputscale, x, 2) * self._unscaled_matrix(x, z)

    def _variance(self, x: Float[Tensor, "T N D"]) -> Float[Tensor, "T H N"]:
        return per_class(self.outputscale, x, 1) * self._unscaled_variance(x)

    @abc.abstractmethod
    def _unscaled_matrix(self, x: Tensor, z: Tensor | None) -> Float[Tensor, "T _ N M"]:
        """`k'(x, z)` of prepared features."""

    @abc.abstractmethod
    def _unscaled_variance(self, x: Tensor) -> Float[Tensor, "T _ N"]:
        """`k'(x, x)` of prepared features."""

    def _positive(self, name: str, value: float | Tensor) -> nn.Parameter:
        """The parameter `log_name` with its initial value."""
        return nn.Parameter(self._log_of(name, value).to(torch.get_default_dtype()))

    def _assign(self, name: str, value: float | Tensor) -> None:
        with torch.no_grad():
            self.get_parameter(f"log_{name}").copy_(self._log_of(name, value))

    def _log_of(self, name: str, value: float | Tensor) -> Tensor:
        numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        if numbers.ndim > 1 or numbers.numel() not in (1, self.n_kernels):
            raise InvalidInputError(
                f"Expected `{name}` to be a number or one per kernel ({self.n_kernels}), "
                f"but got shape {tuple(numbers.shape)}."
            )
        if not all(0.0 < number < math.inf for number in numbers.reshape(-1).tolist()):
            raise InvalidInputError(f"Expected `{name}` to be positive and finite, but got {numbers.tolist()}.")
        return numbers.log().expand(self.n_kernels).clone()

    def extra_repr(self) -> str:
        """Options for `print`."""
        return f"n_way={self.n_way}, {super().extra_repr()}"


def per_class(value: Float[Tensor, " H"], x: Tensor, n_trailing: int) -> Tensor:
    """Bring a hyper-parameter to the type of `x` and the shape (H, 1, ...), which multiplies (T, H, ...)."""
    return value.to(x.dtype).reshape(-1, *(1,) * n_trailing)

"""Kernel families: two formulas each, the matrix and its diagonal, of prepared features; and those of GPyTorch."""

import abc
import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp.kernels.base import FeatureKernel, ScaledKernel, per_class
from mirrorshot.gp.kernels.features import inner_product, root, squared_distance
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    import gpytorch


class Linear(ScaledKernel):
    """`k(x, z) = s x.z`. Arguments as in `ScaledKernel`.

    Example:
        >>> import torch
        >>> Linear(outputscale=2.0)(torch.tensor([[[1.0], [3.0]]])).tolist()
        [[[[2.0, 6.0], [6.0, 18.0]]]]
    """

    def _unscaled_matrix(self, x: Tensor, z: Tensor | None) -> Float[Tensor, "T 1 N M"]:
        return inner_product(x, z)

    def _unscaled_variance(self, x: Tensor) -> Float[Tensor, "T 1 N"]:
        return x.square().sum(-1)[:, None]


class Cosine(Linear):
    """`k(x, z) = s cos(x, z)`, the paper's COS; with `centre=True` the angle as seen from the centre.

    A zero vector has no direction: its covariances and its variance are zero. Without `centre`, features behind a ReLU
    have no negative cosine (the paper has a batch normalisation for this, its code has not). Arguments as in
    `ScaledKernel`.

    Example:
        >>> import torch
        >>> x = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
        >>> Cosine(outputscale=2.0).diagonal(x).tolist()
        [[[2.0, 2.0, 0.0]]]
    """

    def __init__(self, *, outputscale: float | Tensor = 1.0, n_way: int | None = None, centre: bool = False) -> None:
        super().__init__(outputscale=outputscale, n_way=n_way, centre=centre, normalise=True)


class Polynomial(ScaledKernel):
    """`k(x, z) = s (x.z + c)^p`, the paper's POL1 and POL2.

    Args:
        power: the exponent `p`, a positive integer.
        offset: initial `c`, trainable and positive; a number or one per class.
        **options: as in `ScaledKernel`; the paper's code has `normalise=True`.

    Example:
        >>> import torch
        >>> Polynomial(power=2, offset=1.0)(torch.tensor([[[1.0], [2.0]]])).tolist()
        [[[[4.0, 9.0], [9.0, 25.0]]]]
    """

    def __init__(self, *, power: int = 2, offset: float | Tensor = 1.0, **options: Any) -> None:
        super().__init__(**options)
        if int(power) != power or power < 1:
            raise InvalidInputError(f"Expected `power` to be a positive integer, but got {power}.")
        self.power = int(power)
        self.log_offset = self._positive("offset", offset)

    @property
    def offset(self) -> Float[Tensor, " H"]:
        """`c`, which mixes in the lower powers; set it to a number or one number per class."""
        return self.log_offset.exp()

    @offset.setter
    def offset(self, value: float | Tensor) -> None:
        self._assign("offset", value)

    def _unscaled_matrix(self, x: Tensor, z: Tensor | None) -> Float[Tensor, "T H N M"]:
        return (inner_product(x, z) + per_class(self.offset, x, 2)) ** self.power

    def _unscaled_variance(self, x: Tensor) -> Float[Tensor, "T H N"]:
        return (x.square().sum(-1)[:, None] + per_class(self.offset, x, 1)) ** self.power

    def extra_repr(self) -> str:
        """Options for `print`."""
        return f"power={self.power}, {super().extra_repr()}"


class Stationary(ScaledKernel):
    """A kernel of the distance in units of a length scale, `k(x, z) = s g(|x - z|^2 / l^2)` with `g(0) = 1`.

    A subclass writes `g`.

    Args:
        lengthscale: initial `l`, a number or one per class.
        **options: as in `ScaledKernel`. With `normalise=True`, as in the paper's code, distances are at most 2;
            `centre` only matters with it.
    """

    def __init__(self, *, lengthscale: float | Tensor = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.log_lengthscale = self._positive("lengthscale", lengthscale)

    @property
    def lengthscale(self) -> Float[Tensor, " H"]:
        """`l`, the distance over which latents are alike; set it to a number or one number per class."""
        return self.log_lengthscale.exp()

    @lengthscale.setter
    def lengthscale(self, value: float | Tensor) -> None:
        self._assign("lengthscale", value)

    def _unscaled_matrix(self, x: Tensor, z: Tensor | None) -> Float[Tensor, "T H N M"]:
        return self._correlation(squared_distance(x, z) / per_class(self.lengthscale, x, 2).square())

    def _unscaled_variance(self, x: Tensor) -> Float[Tensor, "T 1 N"]:
        return torch.ones_like(x[:, None, :, 0])

    @abc.abstractmethod
    def _correlation(self, square: Float[Tensor, "T H N M"]) -> Float[Tensor, "T H N M"]:
        """Correlation at the given squared distances, in units of the length scale."""


class RBF(Stationary):
    """`k(x, z) = s exp(-|x - z|^2 / (2 l^2))`. Arguments as in `Stationary`.

    Example:
        >>> import torch
        >>> RBF(outputscale=2.0).diagonal(torch.zeros(1, 3, 8)).tolist()
        [[[2.0, 2.0, 2.0]]]
    """

    def _correlation(self, square: Float[Tensor, "T H N M"]) -> Float[Tensor, "T H N M"]:
        return torch.exp(-0.5 * square)


class Matern(Stationary):
    """The Matern kernel of smoothness `nu`.

    With `r = sqrt(2 nu) |x - z| / l` it is `s exp(-r)` for nu = 1/2, `s (1 + r) exp(-r)` for nu = 3/2 and
    `s (1 + r + r^2 / 3) exp(-r)` for nu = 5/2.

    Args:
        nu: 0.5, 1.5 or 2.5.
        **options: as in `Stationary`.

    Example:
        >>> import torch
        >>> Matern(nu=1.5)(torch.zeros(1, 1, 2), torch.ones(1, 1, 2)).item()
        0.297...
    """

    def __init__(self, *, nu: float = 2.5, **options: Any) -> None:
        super().__init__(**options)
        if nu not in (0.5, 1.5, 2.5):
            raise InvalidInputError(f"Expected `nu` to be 0.5, 1.5 or 2.5, but got {nu}.")
        self.nu = nu

    def _correlation(self, square: Float[Tensor, "T H N M"]) -> Float[Tensor, "T H N M"]:
        r = math.sqrt(2 * self.nu) * root(square)
        if self.nu == 0.5:
            return torch.exp(-r)
        if self.nu == 1.5:
            return (1 + r) * torch.exp(-r)
        return (1 + r + r.square() / 3) * torch.exp(-r)

    def extra_repr(self) -> str:
        """Options for `print`."""
        return f"nu={self.nu}, {super().extra_repr()}"


class GPyTorchKernel(FeatureKernel):
    """Any GPyTorch kernel with the interface of `Kernel`.

    Its `batch_shape` is empty (one kernel for all classes) or (n_way,); other arguments as in `ScaledKernel`.

    Example:
        >>> import gpytorch, torch
        >>> kernel = GPyTorchKernel(gpytorch.kernels.PeriodicKernel())
        >>> kernel(torch.zeros(4, 3, 2)).shape
        torch.Size([4, 1, 3, 3])
    """

    def __init__(self, kernel: "gpytorch.kernels.Kernel", *, centre: bool = False, normalise: bool = False) -> None:
        super().__init__(centre=centre, normalise=normalise)
        _check_kernel(kernel)
        self.kernel = kernel

    @property
    def n_kernels(self) -> int:
        """`H`: 1, or the `batch_shape` of the GPyTorch kernel."""
        return int(self.kernel.batch_shape.numel())

    def _matrix(self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None) -> Float[Tensor, "T H N M"]:
        K = self.kernel(x[:, None], None if z is None else z[:, None]).to_dense()
        shape = (len(x), self.n_kernels, x.shape[1], (x if z is None else z).shape[1])
        return torch.broadcast_to(K, shape).to(x.dtype)

    def _variance(self, x: Float[Tensor, "T N D"]) -> Float[Tensor, "T H N"]:
        variance = self.kernel(x[:, None], diag=True)
        return torch.broadcast_to(variance, (len(x), self.n_kernels, x.shape[1])).to(x.dtype)


def _check_kernel(kernel: object) -> None:
    try:
        import gpytorch
    except ImportError as error:
        raise ImportError(
            "Expected `gpytorch` to be installed for GPyTorchKernel, but it is not. "
            "Run: pip install 'mirrorshot[gpytorch]'"
        ) from error
    if not isinstance(kernel, gpytorch.kernels.Kernel):
        raise InvalidInputError(f"Expected `kernel` to be a GPyTorch kernel, but got {type(kernel).__name__}.")
    if len(kernel.batch_shape) > 1:
        raise InvalidInputError(
            f"Expected `kernel` to have batch_shape () or (n_way,), but got {tuple(kernel.batch_shape)}."
        )


FAMILIES: dict[str, type[ScaledKernel]] = {
    "cosine": Cosine,
    "rbf": RBF,
    "matern": Matern,
    "linear": Linear,
    "polynomial": Polynomial,
}

"""Kernels of GPyTorch."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.gp.kernels.base import FeatureKernel
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    import gpytorch


class GPyTorchKernel(FeatureKernel):
    """Any GPyTorch kernel with the interface of `Kernel`.

    Args:
        kernel: the kernel; its `batch_shape` is empty (one kernel for all classes) or (n_way,).
        centre: subtract a centre from the features, see `Kernel.forward`.
        normalise: scale the features to unit norm.

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

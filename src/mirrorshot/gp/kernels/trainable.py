"""Torch modules for kernels: trainable kernels of this package, and GPyTorch kernels."""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mirrorshot.gp.kernels.base import Centre, Combination, Kernel, Scales
from mirrorshot.gp.kernels.scaled import FeatureKernel, ScaledKernel
from mirrorshot.softmax.arrays import Array, is_tensor
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    import gpytorch


class TrainableKernel(nn.Module):
    """A kernel whose hyper-parameters an optimiser can train.

    The parameters are logarithms, named as in model files: `log_outputscale`, or `kernels.0.log_outputscale` for the
    first part of a sum. Their dtype is torch's default.

    Example:
        >>> from mirrorshot.gp.kernels import RBF
        >>> kernel = TrainableKernel(RBF(lengthscale=2.0))
        >>> sorted(name for name, _ in kernel.named_parameters())
        ['log_lengthscale', 'log_outputscale']
        >>> kernel.diagonal(torch.zeros(1, 2, 3))
        tensor([[[1., 1.]]], grad_fn=<MulBackward0>)
        >>> kernel.value()
        RBF(centre=False, n_way=None, normalise=False, outputscale=1.0, lengthscale=2.0)
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.start = kernel
        if isinstance(kernel, Combination):
            self.kernels = nn.ModuleList(trainable(part) for part in kernel.parts)
        elif isinstance(kernel, ScaledKernel):
            for name, logarithm in kernel.logarithms.items():
                initial = torch.tensor(logarithm).to(torch.get_default_dtype())
                self.register_parameter(f"log_{name}", nn.Parameter(initial))
        else:
            raise InvalidInputError(f"Expected a kernel of mirrorshot, but got {type(kernel).__name__}.")

    @property
    def n_kernels(self) -> int:
        """`H`: 1 if all classes share the kernel, otherwise the number of classes."""
        return self.start.n_kernels

    @property
    def is_centred(self) -> bool:
        """Whether covariances depend on a centre."""
        return self.start.is_centred

    @property
    def scales(self) -> Scales:
        """The hyper-parameters, differentiable in the parameters."""
        if isinstance(self.start, Combination):
            return tuple(part.scales for part in self._parts)
        return {name.removeprefix("log_"): value.exp() for name, value in self.named_parameters(recurse=False)}

    def forward(
        self, x: Float[Tensor, "T N D"], z: Float[Tensor, "T M D"] | None = None, *, centre: Centre = None
    ) -> Float[Tensor, "T H N M"]:
        """Covariances, as in `Kernel`."""
        found: Tensor = self.start.covariance(self.scales, x, z, centre)
        return found

    def diagonal(self, x: Float[Tensor, "T N D"], *, centre: Centre = None) -> Float[Tensor, "T H N"]:
        """Variances, as in `Kernel`."""
        found: Tensor = self.start.variance(self.scales, x, centre)
        return found

    def value(self) -> Kernel:
        """Return the kernel with the current hyper-parameters."""
        if isinstance(self.start, Combination):
            parts = (part.value() if isinstance(part, TrainableKernel) else part for part in self._parts)
            return type(self.start)(*parts)
        assert isinstance(self.start, ScaledKernel)
        logarithms = {
            name.removeprefix("log_"): value.detach().cpu().numpy() for name, value in self.named_parameters()
        }
        return self.start.with_logarithms(logarithms)

    @property
    def _parts(self) -> list["KernelModule"]:
        return [part for part in self.kernels if isinstance(part, (TrainableKernel, GPyTorchKernel))]


class GPyTorchKernel(nn.Module, FeatureKernel):
    """Any GPyTorch kernel with the interface of `Kernel`; arrays are converted at its border.

    Its `batch_shape` is () for a kernel shared by the classes, or (n_way,); other arguments as in `ScaledKernel`.

    Example:
        >>> import gpytorch, torch
        >>> kernel = GPyTorchKernel(gpytorch.kernels.PeriodicKernel())
        >>> kernel(torch.zeros(4, 3, 2)).shape
        torch.Size([4, 1, 3, 3])
    """

    def __init__(self, kernel: "gpytorch.kernels.Kernel", *, centre: bool = False, normalise: bool = False) -> None:
        nn.Module.__init__(self)
        FeatureKernel.__init__(self, centre=centre, normalise=normalise)
        _check_kernel(kernel)
        self.kernel = kernel

    @property
    def n_kernels(self) -> int:
        """`H`: 1, or the `batch_shape` of the GPyTorch kernel."""
        return int(self.kernel.batch_shape.numel())

    @property
    def scales(self) -> Scales:
        """Empty: the GPyTorch kernel holds its parameters."""
        return ()

    def forward(self, x: Array, z: Array | None = None, *, centre: Centre = None) -> Float[Array, "T H N M"]:
        """Covariances, as in `Kernel`."""
        return self.covariance((), x, z, centre)

    def _matrix(self, s: Any, x: Array, z: Array | None) -> Float[Array, "T H N M"]:
        shape = (len(x), self.n_kernels, x.shape[1], (x if z is None else z).shape[1])
        if not is_tensor(x):
            with torch.no_grad():
                found = self._matrix(s, torch.tensor(x), None if z is None else torch.tensor(z))
            return found.numpy()
        K = self.kernel(x[:, None], None if z is None else z[:, None]).to_dense()
        K = torch.broadcast_to(K, shape).to(x.dtype)
        return 0.5 * (K + K.mT) if z is None else K

    def _variance(self, s: Any, x: Array) -> Float[Array, "T H N"]:
        if not is_tensor(x):
            with torch.no_grad():
                return np.asarray(self._variance(s, torch.tensor(x)).numpy())
        variance = self.kernel(x[:, None], diag=True)
        return torch.broadcast_to(variance, (len(x), self.n_kernels, x.shape[1])).to(x.dtype)


KernelModule: TypeAlias = TrainableKernel | GPyTorchKernel


def trainable(kernel: Kernel | TrainableKernel) -> KernelModule:
    """Return a kernel as a `TrainableKernel`, and a module as it is."""
    return kernel if isinstance(kernel, (TrainableKernel, GPyTorchKernel)) else TrainableKernel(kernel)


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

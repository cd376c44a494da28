"""Base classes of kernels: preparation of features, and positive hyper-parameters stored as logarithms."""

import abc
import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mirrorshot.gp.kernels.base import Centre, Kernel, Scales
from mirrorshot.gp.kernels.features import as_features, full_precision, prepare
from mirrorshot.softmax.arrays import Array, NDArray, is_tensor, like
from mirrorshot.types import InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Self


class FeatureKernel(Kernel):
    """A kernel that can centre and normalise features (see `Kernel`); subclasses define `_matrix` and `_variance`."""

    def __init__(self, *, centre: bool = False, normalise: bool = False) -> None:
        self.centre = centre
        self.normalise = normalise

    @property
    def is_centred(self) -> bool:
        """Whether the features are centred."""
        return self.centre

    def covariance(self, scales: Scales, x: Array, z: Array | None, centre: Centre) -> Float[Array, "T H N M"]:
        """Covariances, as in `Kernel`."""
        x, z = as_features(x, z, centre)
        with full_precision(x):
            centre = self._centre_of(x) if centre is None else centre
            return self._matrix(scales, self.prepare(x, centre), None if z is None else self.prepare(z, centre))

    def variance(self, scales: Scales, x: Array, centre: Centre) -> Float[Array, "T H N"]:
        """Variances, as in `Kernel`."""
        x, _ = as_features(x, None, centre)
        with full_precision(x):
            return self._variance(scales, self.prepare(x, self._centre_of(x) if centre is None else centre))

    def cross(
        self, x: Float[Array, "T N D"], z: Float[Array, "T M D"], *, centre: Centre
    ) -> tuple[Float[Array, "T H N M"], Float[Array, "T H M"]]:
        """Covariances of `x` with `z` and variances of `z`; prepares the features only once. See `Kernel`."""
        x, z = as_features(x, z, centre)
        with full_precision(x):
            x, z = self.prepare(x, centre), self.prepare(z, centre)
            return self._matrix(self.scales, x, z), self._variance(self.scales, z)

    def prepare(self, x: Float[Array, "T N D"], centre: Centre) -> Float[Array, "T N D"]:
        """Centre features and scale them to unit norm, according to the options."""
        return prepare(x, centre if self.centre else None, self.normalise)

    def _centre_of(self, x: Array) -> Array | None:
        return x.mean(1, keepdims=True) if self.centre else None

    @abc.abstractmethod
    def _matrix(self, s: Any, x: Float[Array, "T N D"], z: Float[Array, "T M D"] | None) -> Float[Array, "T H N M"]:
        """Covariances of prepared features, exactly symmetric without `z`."""

    @abc.abstractmethod
    def _variance(self, s: Any, x: Float[Array, "T N D"]) -> Float[Array, "T H N"]:
        """Variances of prepared features."""


class ScaledKernel(FeatureKernel):
    """A feature kernel with an outputscale, `k(x, z) = s k'(x, z)`.

    Design note: positive hyper-parameters are stored as logarithms (`log_outputscale`), so that a step of an optimiser
    is a relative change. Rejected: a softplus (GPyTorch, the authors' code), which is linear above 1. Useful scales
    range from 0.7 to 300, but at a learning rate of 1e-4 a softplus moves by 5 in a whole training.

    Args:
        outputscale: `s`, a number or one per class.
        n_way: number of classes with hyper-parameters of their own; None shares them.
        centre: subtract a centre from the features, see `Kernel`.
        normalise: scale the features to unit norm.
    """

    options: tuple[str, ...] = ("centre", "n_way", "normalise")

    def __init__(
        self,
        *,
        outputscale: float | Array = 1.0,
        n_way: int | None = None,
        centre: bool = False,
        normalise: bool = False,
    ) -> None:
        super().__init__(centre=centre, normalise=normalise)
        if n_way is not None and n_way < 1:
            raise InvalidInputError(f"Expected `n_way` to be None or at least 1, but got {n_way}.")
        self.n_way = n_way
        self.logarithms: Mapping[str, NDArray[np.floating[Any]]] = {}
        self._add_scale("outputscale", outputscale)

    @property
    def n_kernels(self) -> int:
        """`H`: 1 if all classes share the kernel, otherwise `n_way`."""
        return self.n_way or 1

    @property
    def scales(self) -> Scales:
        """The hyper-parameters by name."""
        return self._scales

    @property
    def outputscale(self) -> Float[NDArray[Any], " H"]:
        """`s`, the factor of all covariances."""
        return self._scales["outputscale"]

    def with_logarithms(self, logarithms: Mapping[str, Array]) -> "Self":
        """Return a copy with other hyper-parameters, given as logarithms by name."""
        new = copy.copy(self)
        new._set({name: np.broadcast_to(logarithms[name], (self.n_kernels,)).copy() for name in self.logarithms})
        return new

    def _add_scale(self, name: str, value: float | Array) -> None:
        self._set({**self.logarithms, name: self._log_of(name, value)})

    def _set(self, logarithms: Mapping[str, NDArray[np.floating[Any]]]) -> None:
        scales = {name: np.exp(value) for name, value in logarithms.items()}
        for array in (*logarithms.values(), *scales.values()):
            array.flags.writeable = False
        self.logarithms, self._scales = logarithms, scales

    def _log_of(self, name: str, value: Any) -> NDArray[np.float64]:
        numbers = np.asarray(value.detach().cpu() if is_tensor(value) else value, dtype=np.float64)
        if numbers.ndim > 1 or numbers.size not in (1, self.n_kernels):
            raise InvalidInputError(
                f"Expected `{name}` to be a number or one per kernel ({self.n_kernels}), but got shape {numbers.shape}."
            )
        if not all(0.0 < number < math.inf for number in numbers.reshape(-1).tolist()):
            raise InvalidInputError(f"Expected `{name}` to be positive and finite, but got {numbers.tolist()}.")
        return np.broadcast_to(np.log(numbers), (self.n_kernels,)).copy()

    def _matrix(self, s: Any, x: Float[Array, "T N D"], z: Float[Array, "T M D"] | None) -> Float[Array, "T H N M"]:
        return per_class(s["outputscale"], x, 2) * self._unscaled_matrix(s, x, z)

    def _variance(self, s: Any, x: Float[Array, "T N D"]) -> Float[Array, "T H N"]:
        return per_class(s["outputscale"], x, 1) * self._unscaled_variance(s, x)

    @abc.abstractmethod
    def _unscaled_matrix(self, s: Any, x: Array, z: Array | None) -> Float[Array, "T _ N M"]:
        """`k'(x, z)` of prepared features."""

    @abc.abstractmethod
    def _unscaled_variance(self, s: Any, x: Array) -> Float[Array, "T _ N"]:
        """`k'(x, x)` of prepared features."""

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.options}
        shown |= {name: scale.tolist() if self.n_way else float(scale[0]) for name, scale in self._scales.items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def per_class(value: Float[Array, " H"], x: Array, n_trailing: int) -> Array:
    """Convert a hyper-parameter to the kind and dtype of `x` and the shape (H, 1, ...), to multiply (T, H, ...)."""
    if is_tensor(x) and not is_tensor(value):
        value = value.tolist()  # torch warns about read-only arrays
    return like(x, value).reshape(-1, *(1,) * n_trailing)

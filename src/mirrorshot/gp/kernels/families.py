"""Kernel families, each with two formulas of prepared features: the matrix and its diagonal."""

import abc
import math
from typing import Any

from jaxtyping import Float

from mirrorshot.gp.kernels.features import inner_product, root, squared_distance, squared_norm
from mirrorshot.gp.kernels.scaled import ScaledKernel, per_class
from mirrorshot.softmax.arrays import Array, NDArray, namespace
from mirrorshot.types import InvalidInputError


class Linear(ScaledKernel):
    """`k(x, z) = s x.z`. Arguments as in `ScaledKernel`.

    Example:
        >>> import numpy as np
        >>> Linear(outputscale=2.0)(np.array([[[1.0], [3.0]]])).tolist()
        [[[[2.0, 6.0], [6.0, 18.0]]]]
    """

    def _unscaled_matrix(self, s: Any, x: Array, z: Array | None) -> Float[Array, "T 1 N M"]:
        return inner_product(x, z)

    def _unscaled_variance(self, s: Any, x: Array) -> Float[Array, "T 1 N"]:
        return squared_norm(x)


class Cosine(Linear):
    """`k(x, z) = s cos(x, z)`, the paper's COS; with `centre=True` the angle as seen from the centre.

    The covariances and the variance of a zero vector are zero. Without `centre`, features after a ReLU have no negative
    cosine; the paper uses a batch normalisation for this, its code does not. Arguments as in `ScaledKernel`.

    Example:
        >>> import numpy as np
        >>> x = np.array([[[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
        >>> Cosine(outputscale=2.0).diagonal(x).tolist()
        [[[2.0, 2.0, 0.0]]]
    """

    options = ("centre", "n_way")

    def __init__(self, *, outputscale: float | Array = 1.0, n_way: int | None = None, centre: bool = False) -> None:
        super().__init__(outputscale=outputscale, n_way=n_way, centre=centre, normalise=True)


class Polynomial(ScaledKernel):
    """`k(x, z) = s (x.z + c)^p`, the paper's POL1 and POL2.

    Args:
        power: the exponent `p`, a positive integer.
        offset: `c`, positive, the weight of the lower powers; a number or one per class.
        **options: as in `ScaledKernel`; the paper's code uses `normalise=True`.

    Example:
        >>> import numpy as np
        >>> Polynomial(power=2, offset=1.0)(np.array([[[1.0], [2.0]]])).tolist()
        [[[[4.0, 9.0], [9.0, 25.0]]]]
    """

    options = ("power", *ScaledKernel.options)

    def __init__(self, *, power: int = 2, offset: float | Array = 1.0, **options: Any) -> None:
        super().__init__(**options)
        if int(power) != power or power < 1:
            raise InvalidInputError(f"Expected `power` to be a positive integer, but got {power}.")
        self.power = int(power)
        self._add_scale("offset", offset)

    @property
    def offset(self) -> Float[NDArray[Any], " H"]:
        """`c`, the weight of the lower powers."""
        return self._scales["offset"]

    def _unscaled_matrix(self, s: Any, x: Array, z: Array | None) -> Float[Array, "T H N M"]:
        return (inner_product(x, z) + per_class(s["offset"], x, 2)) ** self.power

    def _unscaled_variance(self, s: Any, x: Array) -> Float[Array, "T H N"]:
        return (squared_norm(x) + per_class(s["offset"], x, 1)) ** self.power


class Stationary(ScaledKernel):
    """A kernel of the distance in units of a lengthscale, `k(x, z) = s g(|x - z|^2 / l^2)` with `g(0) = 1`.

    A subclass defines `g`.

    Args:
        lengthscale: `l`, the distance over which latents are correlated; a number or one per class.
        **options: as in `ScaledKernel`. With `normalise=True`, as in the paper's code, distances are at most 2;
            `centre` has no effect without it.
    """

    def __init__(self, *, lengthscale: float | Array = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self._add_scale("lengthscale", lengthscale)

    @property
    def lengthscale(self) -> Float[NDArray[Any], " H"]:
        """`l`, the distance over which latents are correlated."""
        return self._scales["lengthscale"]

    def _unscaled_matrix(self, s: Any, x: Array, z: Array | None) -> Float[Array, "T H N M"]:
        length = per_class(s["lengthscale"], x, 2)
        return self._correlation(squared_distance(x, z) / (length * length))

    def _unscaled_variance(self, s: Any, x: Array) -> Float[Array, "T 1 N"]:
        return namespace(x).ones_like(x[:, None, :, 0])

    @abc.abstractmethod
    def _correlation(self, square: Float[Array, "T H N M"]) -> Float[Array, "T H N M"]:
        """Correlation at squared distances in units of the lengthscale."""


class RBF(Stationary):
    """`k(x, z) = s exp(-|x - z|^2 / (2 l^2))`. Arguments as in `Stationary`.

    Example:
        >>> import numpy as np
        >>> RBF(outputscale=2.0).diagonal(np.zeros((1, 3, 8))).tolist()
        [[[2.0, 2.0, 2.0]]]
    """

    def _correlation(self, square: Float[Array, "T H N M"]) -> Float[Array, "T H N M"]:
        return namespace(square).exp(-0.5 * square)


class Matern(Stationary):
    """The Matern kernel of smoothness `nu`.

    With `r = sqrt(2 nu) |x - z| / l` it is `s exp(-r)` for nu = 1/2, `s (1 + r) exp(-r)` for nu = 3/2 and
    `s (1 + r + r^2 / 3) exp(-r)` for nu = 5/2.

    Args:
        nu: 0.5, 1.5 or 2.5.
        **options: as in `Stationary`.

    Example:
        >>> import numpy as np
        >>> Matern(nu=1.5)(np.zeros((1, 1, 2)), np.ones((1, 1, 2))).item()
        0.297...
    """

    options = ("nu", *ScaledKernel.options)

    def __init__(self, *, nu: float = 2.5, **options: Any) -> None:
        super().__init__(**options)
        if nu not in (0.5, 1.5, 2.5):
            raise InvalidInputError(f"Expected `nu` to be 0.5, 1.5 or 2.5, but got {nu}.")
        self.nu = nu

    def _correlation(self, square: Float[Array, "T H N M"]) -> Float[Array, "T H N M"]:
        r = math.sqrt(2 * self.nu) * root(square)
        decay = namespace(r).exp(-r)
        if self.nu == 0.5:
            return decay
        return (1 + r) * decay if self.nu == 1.5 else (1 + r + r * r / 3) * decay


FAMILIES: dict[str, type[ScaledKernel]] = {
    "cosine": Cosine,
    "rbf": RBF,
    "matern": Matern,
    "linear": Linear,
    "polynomial": Polynomial,
}

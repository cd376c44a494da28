"""Kernels as plain JSON and tensors, for files. Only kernels of this package can be described; nothing is pickled."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mirrorshot.kernels.base import Kernel, Product, ScaledKernel, Sum
from mirrorshot.kernels.families import RBF, Cosine, Linear, Matern, Polynomial
from mirrorshot.types import InvalidInputError

_FAMILIES: dict[str, type[ScaledKernel]] = {
    "cosine": Cosine,
    "rbf": RBF,
    "matern": Matern,
    "linear": Linear,
    "polynomial": Polynomial,
}
_COMBINATIONS: dict[str, type[Sum] | type[Product]] = {"sum": Sum, "product": Product}
_MAX_DEPTH = 8


def describe_kernel(kernel: Kernel) -> dict[str, Any]:
    """What the kernel is, but for the values of its parameters, which are in its `state_dict`.

    Raises:
        InvalidInputError: a kernel that is not of this package.

    Example:
        >>> describe_kernel(Matern(nu=1.5))
        {'name': 'matern', 'options': {'centre': False, 'n_way': None, 'normalise': False, 'nu': 1.5}}
    """
    for name, combination in _COMBINATIONS.items():
        if type(kernel) is combination:
            return {"name": name, "parts": [describe_kernel(part) for part in kernel._parts]}
    for name, family in _FAMILIES.items():
        if type(kernel) is family:
            assert isinstance(kernel, ScaledKernel)
            options: dict[str, Any] = {"centre": kernel.centre, "n_way": kernel.n_way}
            options |= {} if isinstance(kernel, Cosine) else {"normalise": kernel.normalise}
            options |= {key: getattr(kernel, key) for key in ("nu", "power") if hasattr(kernel, key)}
            return {"name": name, "options": options}
    raise InvalidInputError(
        f"Expected a kernel of mirrorshot ({', '.join(_FAMILIES)}, sums and products of them), but got "
        f"{type(kernel).__name__}, which cannot be written to a file."
    )


def build_kernel(description: Mapping[str, Any], state: Mapping[str, Tensor]) -> Kernel:
    """The kernel of a description, with the values of its parameters.

    Args:
        description: from `describe_kernel`.
        state: from the `state_dict` of that kernel.

    Raises:
        InvalidInputError: the description or the parameters are not those of a kernel.

    Example:
        >>> kernel = RBF(lengthscale=2.0) + Linear()
        >>> build_kernel(describe_kernel(kernel), kernel.state_dict()).kernels[0].lengthscale.item()
        2.0
    """
    try:
        kernel = _build(description, 0)
        kernel.to(next(iter(state.values())).dtype)
        kernel.load_state_dict(dict(state))
    except (KeyError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        raise InvalidInputError(f"Expected the description of a kernel, but got one that fails: {error}.") from error
    return kernel.requires_grad_(False)


def _build(description: Mapping[str, Any], depth: int) -> Kernel:
    if depth > _MAX_DEPTH:
        raise ValueError(f"kernels within kernels more than {_MAX_DEPTH} deep")
    name = description["name"]
    if name in _COMBINATIONS:
        return _COMBINATIONS[name](*(_build(part, depth + 1) for part in description["parts"]))
    return _FAMILIES[name](**description["options"])

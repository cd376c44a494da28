"""Conversion of kernels of this package to JSON and arrays, for files."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.gp.kernels.base import Combination, Kernel, Product, Sum
from mirrorshot.gp.kernels.families import FAMILIES
from mirrorshot.gp.kernels.scaled import ScaledKernel
from mirrorshot.types import InvalidInputError

_COMBINATIONS: dict[str, type[Combination]] = {"sum": Sum, "product": Product}
_MAX_DEPTH, _MAX_PARTS, _MAX_POWER = 8, 8, 100
_LARGEST_LOGARITHM = {4: 80.0, 8: 700.0}  # by bytes of the dtype; the exponential is finite


def describe_kernel(kernel: Kernel) -> dict[str, Any]:
    """Describe a kernel of this package as JSON. `kernel_state` returns its hyper-parameters.

    Example:
        >>> from mirrorshot.gp.kernels import Matern
        >>> describe_kernel(Matern(nu=1.5))
        {'name': 'matern', 'options': {'centre': False, 'n_way': None, 'normalise': False, 'nu': 1.5}}
    """
    for name, combination in _COMBINATIONS.items():
        if type(kernel) is combination:
            return {"name": name, "parts": [describe_kernel(part) for part in kernel.parts]}
    for name, family in FAMILIES.items():
        if type(kernel) is family:
            return {"name": name, "options": {key: getattr(kernel, key) for key in sorted(family.options)}}
    raise InvalidInputError(
        f"Expected a kernel of mirrorshot ({', '.join(FAMILIES)}, sums and products of them), but got "
        f"{type(kernel).__name__}, which cannot be written to a file."
    )


def kernel_state(kernel: Kernel) -> dict[str, NDArray[np.floating[Any]]]:
    """Return the logarithms of the hyper-parameters of a kernel or of its parts, by name.

    Example:
        >>> from mirrorshot.gp.kernels import RBF, Linear
        >>> sorted(kernel_state(RBF() + Linear()))
        ['kernels.0.log_lengthscale', 'kernels.0.log_outputscale', 'kernels.1.log_outputscale']
    """
    if isinstance(kernel, Combination):
        parts = {f"kernels.{i}.": kernel_state(part) for i, part in enumerate(kernel.parts)}
        return {prefix + name: array for prefix, state in parts.items() for name, array in state.items()}
    if not isinstance(kernel, ScaledKernel):
        raise InvalidInputError(f"Expected a kernel of mirrorshot, but got {type(kernel).__name__}.")
    return {f"log_{name}": logarithm for name, logarithm in kernel.logarithms.items()}


def build_kernel(
    description: Mapping[str, Any], state: Mapping[str, NDArray[Any]], *, n_way: int | None = None
) -> Kernel:
    """Build a kernel from `describe_kernel` and `kernel_state`; raise `InvalidInputError` if they are invalid.

    With `n_way`, a kernel with hyper-parameters per class must have that many classes.

    Example:
        >>> from mirrorshot.gp.kernels import RBF, Linear
        >>> kernel = RBF(lengthscale=2.0) + Linear()
        >>> build_kernel(describe_kernel(kernel), kernel_state(kernel)).parts[0].lengthscale.item()
        2.0
    """
    try:
        _check_state(state)
        limit = max(array.size for array in state.values()) if n_way is None else n_way
        kernel = _build(description, state, "", 0, limit)
        if n_way is not None and kernel.n_kernels not in (1, n_way):
            raise ValueError(f"it is for {kernel.n_kernels} classes, not {n_way}")
        unknown = set(state) - set(kernel_state(kernel))
        if unknown:
            raise ValueError(f"{min(unknown)} is none of its parameters")
    except (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise InvalidInputError(f"Expected the description of a kernel, but got one that fails: {error}.") from error
    return kernel


def _check_state(state: Mapping[str, NDArray[Any]]) -> None:
    if not state or len({array.dtype for array in state.values()}) > 1:
        raise ValueError("its parameters are missing, or of several types")
    for name, array in state.items():
        largest = _LARGEST_LOGARITHM[array.itemsize] if array.dtype in (np.float32, np.float64) else 0.0
        if not largest or not bool((abs(array) <= largest).all()):
            raise ValueError(f"{name} is not made of logarithms of scales")


def _build(description: Any, state: Mapping[str, NDArray[Any]], prefix: str, depth: int, limit: int) -> Kernel:
    """Build a kernel with at most `limit` classes, so that a short description cannot allocate much memory."""
    if not isinstance(description, Mapping) or depth > _MAX_DEPTH:
        raise ValueError(f"expected a table, and kernels within kernels at most {_MAX_DEPTH} deep")
    name = description["name"]
    if name in _COMBINATIONS:
        parts = description["parts"]
        if not isinstance(parts, list) or not 1 <= len(parts) <= _MAX_PARTS:
            raise ValueError(f"expected 1 to {_MAX_PARTS} kernels to combine")
        built = [_build(part, state, f"{prefix}kernels.{i}.", depth + 1, limit) for i, part in enumerate(parts)]
        return _COMBINATIONS[name](*built)
    options = description["options"]
    _check_options(options, limit)
    kernel = FAMILIES[name](**options)
    logarithms = {name: state[f"{prefix}log_{name}"] for name in kernel.logarithms}
    if any(array.shape != (kernel.n_kernels,) for array in logarithms.values()):
        raise ValueError(f"expected {kernel.n_kernels} of each of its parameters")
    return kernel.with_logarithms(logarithms)


def _check_options(options: Any, limit: int) -> None:
    known = {"centre", "normalise", "n_way", "nu", "power"}
    if not isinstance(options, Mapping) or not set(options) <= known:
        raise ValueError(f"expected options among {', '.join(sorted(known))}")
    if not all(isinstance(options[name], bool) for name in ("centre", "normalise") if name in options):
        raise ValueError("expected `centre` and `normalise` to be true or false")
    for name, largest in (("n_way", limit), ("power", _MAX_POWER)):
        value = options.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= largest):
            raise ValueError(f"expected `{name}` to be between 1 and {largest}")
    if not isinstance(options.get("nu", 0.5), float):
        raise ValueError("expected `nu` to be a number")

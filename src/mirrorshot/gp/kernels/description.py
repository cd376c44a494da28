"""Kernels as plain JSON and tensors, for files. Only kernels of this package can be described; nothing is pickled."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mirrorshot.gp.kernels.base import Kernel, Product, ScaledKernel, Sum
from mirrorshot.gp.kernels.families import FAMILIES, Cosine
from mirrorshot.types import InvalidInputError

_COMBINATIONS: dict[str, type[Sum] | type[Product]] = {"sum": Sum, "product": Product}
_MAX_DEPTH, _MAX_PARTS, _MAX_POWER = 8, 8, 100
_LARGEST_LOGARITHM = 80.0  # of a scale; its exponential is finite in single precision


def describe_kernel(kernel: Kernel) -> dict[str, Any]:
    """Describe a kernel of this package as JSON, without its parameters, which are in its `state_dict`.

    Example:
        >>> from mirrorshot.gp.kernels import Matern
        >>> describe_kernel(Matern(nu=1.5))
        {'name': 'matern', 'options': {'centre': False, 'n_way': None, 'normalise': False, 'nu': 1.5}}
    """
    for name, combination in _COMBINATIONS.items():
        if type(kernel) is combination:
            return {"name": name, "parts": [describe_kernel(part) for part in kernel._parts]}
    for name, family in FAMILIES.items():
        if type(kernel) is family:
            assert isinstance(kernel, ScaledKernel)
            options: dict[str, Any] = {"centre": kernel.centre, "n_way": kernel.n_way}
            options |= {} if isinstance(kernel, Cosine) else {"normalise": kernel.normalise}
            options |= {key: getattr(kernel, key) for key in ("nu", "power") if hasattr(kernel, key)}
            return {"name": name, "options": options}
    raise InvalidInputError(
        f"Expected a kernel of mirrorshot ({', '.join(FAMILIES)}, sums and products of them), but got "
        f"{type(kernel).__name__}, which cannot be written to a file."
    )


def build_kernel(description: Mapping[str, Any], state: Mapping[str, Tensor], *, n_way: int | None = None) -> Kernel:
    """Build a kernel from the result of `describe_kernel` and its `state_dict`; raise `InvalidInputError` if it fails.

    With `n_way`, a kernel with parameters per class must have that many classes.

    Example:
        >>> from mirrorshot.gp.kernels import RBF, Linear
        >>> kernel = RBF(lengthscale=2.0) + Linear()
        >>> build_kernel(describe_kernel(kernel), kernel.state_dict()).kernels[0].lengthscale.item()
        2.0
    """
    try:
        _check_state(state)
        limit = max(tensor.numel() for tensor in state.values()) if n_way is None else n_way
        kernel = _build(description, 0, limit)
        if n_way is not None and kernel.n_kernels not in (1, n_way):
            raise ValueError(f"it is for {kernel.n_kernels} classes, not {n_way}")
        kernel.to(next(iter(state.values())).dtype)
        kernel.load_state_dict(dict(state))
    except (KeyError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise InvalidInputError(f"Expected the description of a kernel, but got one that fails: {error}.") from error
    return kernel.requires_grad_(False)


def _check_state(state: Mapping[str, Tensor]) -> None:
    if not state or len({tensor.dtype for tensor in state.values()}) > 1:
        raise ValueError("its parameters are missing, or of several types")
    for name, tensor in state.items():
        if tensor.dtype not in (torch.float32, torch.float64) or not bool((tensor.abs() <= _LARGEST_LOGARITHM).all()):
            raise ValueError(f"{name} is not made of logarithms of scales")


def _build(description: Any, depth: int, limit: int) -> Kernel:
    """Build a kernel with at most `limit` classes, so that a short description cannot allocate much memory."""
    if not isinstance(description, Mapping) or depth > _MAX_DEPTH:
        raise ValueError(f"expected a table, and kernels within kernels at most {_MAX_DEPTH} deep")
    name = description["name"]
    if name in _COMBINATIONS:
        parts = description["parts"]
        if not isinstance(parts, list) or not 1 <= len(parts) <= _MAX_PARTS:
            raise ValueError(f"expected 1 to {_MAX_PARTS} kernels to combine")
        return _COMBINATIONS[name](*(_build(part, depth + 1, limit) for part in parts))
    options = description["options"]
    _check_options(options, limit)
    return FAMILIES[name](**options)


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

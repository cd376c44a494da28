"""Checks of a classifier's state from a file, before any object is made from it: types, ranges and shapes.

Every function raises ValueError with a reason that completes "Expected ... to hold a classifier, but ...".
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirrorshot.classifier.inputs import LARGEST_SCALE, SMALLEST_SCALE
from mirrorshot.classifier.prior import FeatureMap

POSITIVE, FINITE, COUNTS = ("outputscale_", "temperature_"), ("loo_log_likelihood_", "elbo_"), ("n_iter_",)
LABEL_TYPES: dict[str, tuple[type, Any]] = {
    "text": (str, np.str_), "integer": (int, np.int64), "number": (float, np.float64), "boolean": (bool, np.bool_),
}  # fmt: skip
_LARGEST = 1e100  # squares and products of such numbers are finite
_LARGEST_SPREAD = 10.0  # of the logarithm of a temperature
_MAX_LABEL_CHARACTERS = 2**26  # number of labels times the length of the longest


def checked_classes(labels: Any, kind: Any) -> NDArray[Any]:
    """Return the classes as an array."""
    if not isinstance(kind, str) or kind not in LABEL_TYPES:
        raise ValueError(f"its labels are of an unknown kind, {str(kind)[:40]!r}")
    wanted, dtype = LABEL_TYPES[kind]
    if not isinstance(labels, list) or not all(type(label) is wanted for label in labels) or len(labels) < 2:
        raise ValueError(f"its classes are not a list of at least two labels, each {kind}")
    if kind == "integer" and not all(-(2**63) <= label < 2**63 for label in labels):
        raise ValueError("its labels are integers outside of the range of int64")
    if kind == "number" and not all(map(math.isfinite, labels)):
        raise ValueError("its labels are not finite")
    if kind == "text" and len(labels) * max(map(len, labels)) > _MAX_LABEL_CHARACTERS:
        raise ValueError("its labels are too long")
    return np.array(labels, dtype=dtype)


def check_examples(tensors: Mapping[str, NDArray[Any]], classes: NDArray[Any]) -> None:
    """Check the shapes, types and ranges of the tensors."""
    x, y, weight = tensors["rows.x"], tensors["rows.y"], tensors["rows.weight"]
    n_way, N = len(classes), int((weight > 0).sum())
    if x.ndim != 2 or x.shape[1] < 1 or N < 1:
        raise ValueError(f"it has {N} examples that count, of shape {tuple(x.shape)}")
    for name, (shape, dtype) in _wanted(tensors, x.shape[0], x.shape[1], n_way, N).items():
        _check_array(name, tensors[name], shape, dtype)
    if not 0 <= int(y.min()) <= int(y.max()) < n_way:
        raise ValueError("labels and examples do not match")
    if classes.dtype.kind == "U" and len(x) * classes.dtype.itemsize > 4 * _MAX_LABEL_CHARACTERS:
        raise ValueError("its labels are too long")
    if bool((weight < 0).any()):
        raise ValueError("rows.weight has negative numbers")
    if bool((tensors["sites.precision"] < 0).any()):
        raise ValueError("sites.precision has negative numbers")


def _wanted(
    tensors: Mapping[str, NDArray[Any]], n: int, D: int, n_way: int, N: int
) -> dict[str, tuple[tuple[int, ...], type]]:
    latent, double = (1, n_way, N), np.float64
    return {
        "rows.x": ((n, D), double),
        "rows.y": ((n,), np.int64),
        "rows.weight": ((n,), double),
        "centre": ((1, 1, D), double),
        **({"rows.prior": ((n, n_way), double)} if "rows.prior" in tensors else {}),
        **{f"sites.{name}": (latent, double) for name in ("shift", "precision")},
    }


def _check_array(name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: type) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.shape} of {array.dtype}, not {shape} of {dtype.__name__}")
    if dtype is np.float64 and not bool((abs(array) <= _LARGEST).all()):
        raise ValueError(f"{name} has numbers that are not finite, or too large")


def checked_numbers(numbers: Any, n_features: int) -> dict[str, Any]:
    """Return the learned numbers."""
    if not isinstance(numbers, dict):
        raise ValueError("its numbers are not a table")
    for name in (*POSITIVE, *FINITE):
        if not _is_number(numbers[name]):
            raise ValueError(f"{name} is {str(numbers[name])[:40]!r}, not a finite number")
    for name in POSITIVE:
        if not SMALLEST_SCALE * (1 - 1e-9) <= numbers[name] <= LARGEST_SCALE * (1 + 1e-9):
            raise ValueError(f"{name} is {numbers[name]}, not between {SMALLEST_SCALE:g} and {LARGEST_SCALE:g}")
    for name in COUNTS:
        if type(numbers[name]) is not int or not 0 <= numbers[name] < 2**63:
            raise ValueError(f"{name} is {str(numbers[name])[:40]!r}, not a count")
    if type(numbers["n_features_in_"]) is not int or numbers["n_features_in_"] != n_features:
        raise ValueError("the number of features is not that of the examples")
    gap, start = numbers.get("gap_"), numbers.get("start_", "prior")  # the first files have neither
    if gap is not None and not (_is_number(gap) and gap >= 0.0):
        raise ValueError(f"gap_ is {str(gap)[:40]!r}, not a number from 0 on")
    if start not in ("prior", "previous"):
        raise ValueError(f"start_ is {str(start)[:40]!r}, not 'prior' or 'previous'")
    return {
        **{name: float(numbers[name]) for name in (*POSITIVE, *FINITE)},
        **{name: numbers[name] for name in COUNTS},
        "gap_": gap,
        "start_": start,
        **_checked_link(numbers),
    }


def _checked_link(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the spread of the temperature and the moderation; files of versions 1 and 2 have neither."""
    std, moderation = numbers.get("temperature_std_", 0.0), numbers.get("moderation_")
    if not (_is_number(std) and 0.0 <= std <= _LARGEST_SPREAD):
        raise ValueError(f"temperature_std_ is {str(std)[:40]!r}, not a number from 0 to {_LARGEST_SPREAD:g}")
    if moderation is not None and not (_is_number(moderation) and 0.0 <= moderation <= LARGEST_SCALE):
        raise ValueError(f"moderation_ is {str(moderation)[:40]!r}, not a number from 0 on")
    return {"temperature_std_": float(std), "moderation_": None if moderation is None else float(moderation)}


def checked_map(found: Any) -> FeatureMap:
    """Return the broad map; files of version 1 have none."""
    if found is None:
        return FeatureMap()
    if (
        not isinstance(found, dict)
        or set(found) != {"root", "unit"}
        or not all(type(v) is bool for v in found.values())
    ):
        raise ValueError("its map is not two truth values, root and unit")
    return FeatureMap(**found)


def checked_declared(declared: Any, n_way: int) -> list[int] | None:
    """Return the indices of the classes that exist even without an example, or None."""
    if declared is None:
        return None
    if not isinstance(declared, list) or not all(type(i) is int and 0 <= i < n_way for i in declared):
        raise ValueError("its declared classes are not classes")
    return list(declared)


def checked_feature_names(names: Any, n_features: int) -> list[str] | None:
    """Return the names of the features, or None."""
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != n_features or not all(isinstance(name, str) for name in names):
        raise ValueError(f"its feature names are not {n_features} texts")
    return list(names)


def checked_parameters(parameters: Any, given_kernel: Any) -> dict[str, Any]:
    """Return the constructor's parameters, except `kernel` and `prior`; `Settings.check` checks their values."""
    if not isinstance(parameters, dict) or "kernel" in parameters:
        raise ValueError("its parameters are not a table")
    if not all(isinstance(value, str) or _is_number(value) for value in parameters.values()):
        raise ValueError("its parameters are not texts and finite numbers")
    if given_kernel is not None and not isinstance(given_kernel, str):
        raise ValueError("its kernel is not named")
    return dict(parameters)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= 1.7e308

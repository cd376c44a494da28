"""Imports on first use: re-exports of a package (PEP 562), and optional dependencies."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from mirrorshot.types import MirrorshotError

EXTRAS = {
    "torch": "train",
    "matplotlib": "plot",
    "gpytorch": "gpytorch",
    "onnx": "onnx",
    "fastapi": "serve",
    "uvicorn": "serve",
    "tensorboard": "track",
    "pyarrow": None,
}
"""Optional dependencies and the extras of mirrorshot that install them; None: no extra installs it."""


class MissingPackageError(MirrorshotError, ImportError):
    """An optional dependency is not installed. The message says how to install it."""


def missing_package(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return the error with the command to install a package; None if the missing module is not of one in `EXTRAS`."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    wanted = package if EXTRAS[package] is None else f"'mirrorshot[{EXTRAS[package]}]'"
    return MissingPackageError(
        f"Expected {package} to be installed, which this needs, but it is not. Install it with: pip install {wanted}"
    )


def need(module: str) -> Any:
    """Import a module that needs a package in `EXTRAS`, or raise a `MissingPackageError`.

    Example:
        >>> need("torch").__name__
        'torch'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        explained = missing_package(error)
        if explained is None:
            raise
        raise explained from error


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, so that its modules are imported on first use.

    Args:
        package: `__name__` of the package.
        homes: for each module of the package, the names that it exports, separated by spaces.

    Example:
        >>> get = lazy_exports("mirrorshot.files", {"lock": "RunError RunLock"})
        >>> get("RunLock").__name__
        'RunLock'
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(need(f"{package}.{home_of[name]}"), name)

    return get

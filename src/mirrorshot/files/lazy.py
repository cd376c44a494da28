"""Re-exports of a package that are imported on first use (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, so that single modules of it can be imported without torch.

    Args:
        package: `__name__` of the package.
        homes: for each module of the package, the names that it defines, separated by spaces.

    Example:
        >>> get = lazy_exports("mirrorshot.files", {"lock": "RunError RunLock"})
        >>> get("RunLock").__name__
        'RunLock'
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return get

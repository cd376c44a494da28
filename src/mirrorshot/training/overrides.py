"""Settings as text: TOML files, and `name=value` on the command line. Imported without torch, like `config`."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from mirrorshot.files.regular import open_regular
from mirrorshot.training.config import check_names, field_types
from mirrorshot.types import InvalidInputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """Read settings from a TOML file; raises `InvalidInputError` if it is unreadable or has unknown settings."""
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"Expected a TOML file of settings, but {path} cannot be read: {error}.") from error
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(f"Expected {path} to be TOML, but got: {error}.") from error
    check_names(settings, where=f" in {path}")
    return settings


def parse_override(text: str) -> dict[str, Any]:
    """Parse one `name=value` of the command line; a dot selects an entry of `method_options`.

    Example:
        >>> parse_override("lr=3e-4"), parse_override("method_options.kernel=rbf")
        ({'lr': 0.0003}, {'method_options': {'kernel': 'rbf'}})
    """
    name, equals, raw = text.partition("=")
    head, dot, tail = name.strip().partition(".")
    if not equals or not head:
        raise InvalidInputError(f"Expected name=value, for instance lr=3e-4, but got {text!r}.")
    check_names({head: None})
    value: Any = raw.strip()
    if field_types()[head] is not str:
        with contextlib.suppress(json.JSONDecodeError):  # otherwise a bare word; `Config` checks its type
            value = json.loads(value)
    if not dot:
        return {head: value}
    if head != "method_options":
        raise InvalidInputError(f"Expected a dot only in method_options.name, but got {name!r}.")
    keys = tail.split(".")
    if not all(keys):
        raise InvalidInputError(f"Expected a name after each dot, but got {name!r}.")
    for key in reversed(keys):
        value = {key: value}
    return {head: value}

"""Shell completion of names, without importing torch.

The registries of data sets and encoders need torch, which is too slow for completion: `DATA` and `ENCODERS` repeat
their names, and `tests/cli/test_completion.py` compares them.
"""

from collections.abc import Callable, Iterable
from glob import escape, glob
from importlib import import_module
from os.path import isdir

ENCODERS = (
    "auto", "glyphs", "pixels", "efficientnet-lite2", "efficientnet-lite1", "efficientnet-lite0", "wordllama", "minilm",
    "tfidf", "timm:", "open_clip:", "transformers:", "sentence-transformers:",
)  # fmt: skip
DATA = ("glyphs", "cub", "mini_imagenet", "mini_imagenet_to_cub", "omniglot", "omniglot_to_emnist")


def _names_of(module: str, registry: str) -> Callable[[str], list[str]]:
    """Return a completion function for the names of a registry, whose module is imported on use."""
    return lambda incomplete: _beginning(getattr(import_module(f"mirrorshot.{module}"), registry), incomplete)


complete_method = _names_of("methods", "METHODS")
complete_preset = _names_of("training.presets", "PRESETS")
complete_target = _names_of("paper", "TARGETS")
complete_budget = _names_of("paper", "BUDGETS")
complete_topic = _names_of("cli.list_command", "LISTS")


def complete_data(incomplete: str) -> list[str]:
    """Complete names of data sets, files and folders."""
    return _beginning(DATA, incomplete) + _paths(incomplete)


def complete_encoder(incomplete: str) -> list[str]:
    """Complete names of encoders, and folders of runs."""
    folders = [path for path in _paths(incomplete) if incomplete and path.endswith("/")]
    return _beginning(ENCODERS, incomplete) + folders


def complete_setting(incomplete: str) -> list[str]:
    """Complete names of settings, with `=` or `.` at the end."""
    from mirrorshot.training.config import field_types

    return _beginning((f"{n}{'.' if n == 'method_options' else '='}" for n in field_types()), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    return [f"{path}/" if isdir(path) else path for path in sorted(glob(escape(incomplete) + "*"))]

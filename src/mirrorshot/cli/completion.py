"""Names that the shell completes, without importing torch for them.

The registries of data sets and encoders need torch, and a shell cannot wait for it: `DATA` and `ENCODERS` repeat their
names, and `tests/cli/test_completion.py` compares them.
"""

from collections.abc import Iterable
from glob import escape, glob
from os.path import isdir

ENCODERS = (
    "auto", "glyphs", "pixels", "efficientnet-lite2", "efficientnet-lite1", "efficientnet-lite0", "wordllama", "minilm",
    "tfidf", "timm:", "open_clip:", "transformers:", "sentence-transformers:",
)  # fmt: skip
DATA = ("glyphs", "cub", "mini_imagenet", "mini_imagenet_to_cub", "omniglot", "omniglot_to_emnist")


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin with the given text.

    Example:
        >>> complete_method("mir")
        ['mirror_gp']
    """
    from mirrorshot.methods import METHODS

    return _beginning(METHODS, incomplete)


def complete_data(incomplete: str) -> list[str]:
    """Data sets, files and folders that begin with the given text."""
    return _beginning(DATA, incomplete) + _paths(incomplete)


def complete_encoder(incomplete: str) -> list[str]:
    """Encoders, and folders of runs, that begin with the given text."""
    folders = [path for path in _paths(incomplete) if incomplete and path.endswith("/")]
    return _beginning(ENCODERS, incomplete) + folders


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin with the given text."""
    from mirrorshot.training.presets import PRESETS

    return _beginning(PRESETS, incomplete)


def complete_target(incomplete: str) -> list[str]:
    """Targets of `mirrorshot reproduce` that begin with the given text."""
    from mirrorshot.paper import TARGETS

    return _beginning(TARGETS, incomplete)


def complete_budget(incomplete: str) -> list[str]:
    """Budgets that begin with the given text."""
    from mirrorshot.paper import BUDGETS

    return _beginning(BUDGETS, incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """Settings that begin with the given text, ready for their value."""
    from dataclasses import fields

    from mirrorshot.training.config import Config

    names = (f"{field.name}{'.' if field.name == 'method_options' else '='}" for field in fields(Config))
    return _beginning(names, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    return [f"{path}/" if isdir(path) else path for path in sorted(glob(escape(incomplete) + "*"))]

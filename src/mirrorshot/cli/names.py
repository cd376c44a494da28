"""Names that the shell completes, without importing torch for them.

The registries of data sets and encoders need torch, and a shell cannot wait for it; `tests/cli/test_names.py` checks
that these are the same names.
"""

ENCODERS = ("auto", "glyphs", "pixels", "timm:", "open_clip:", "transformers:", "sentence-transformers:")
DATA = ("glyphs", "cub", "mini_imagenet", "mini_imagenet_to_cub", "omniglot", "omniglot_to_emnist")


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin like this.

    Example:
        >>> complete_method("mir")
        ['mirror_gp']
    """
    from mirrorshot.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """Data sets, and beside them files and folders, that begin like this."""
    from glob import escape, glob

    paths = [f"{path}/" if is_folder(path) else path for path in sorted(glob(escape(incomplete) + "*"))]
    return [name for name in DATA if name.startswith(incomplete)] + paths


def complete_encoder(incomplete: str) -> list[str]:
    """Encoders, and beside them folders of runs, that begin like this.

    Example:
        >>> complete_encoder("gly")
        ['glyphs']
    """
    from glob import escape, glob

    folders = [f"{path}/" for path in sorted(glob(escape(incomplete) + "*")) if incomplete and is_folder(path)]
    return [name for name in ENCODERS if name.startswith(incomplete)] + folders


def complete_preset(incomplete: str) -> list[str]:
    """Presets that begin like this."""
    from mirrorshot.training.presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Targets of `mirrorshot reproduce` that begin like this."""
    from mirrorshot.paper import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def complete_budget(incomplete: str) -> list[str]:
    """Budgets that begin like this."""
    from mirrorshot.paper import BUDGETS

    return [name for name in BUDGETS if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Settings that begin like this, ready for their value.

    Example:
        >>> complete_setting("kern")
        ['kernel_lr=']
    """
    from dataclasses import fields

    from mirrorshot.training.config import Config

    names = [f"{field.name}{'.' if field.name == 'method_options' else '='}" for field in fields(Config)]
    return [name for name in names if name.startswith(incomplete)]


def is_folder(path: str) -> bool:
    """Whether there is a folder of that name."""
    from os.path import isdir

    return isdir(path)

"""Settings of a run from flags, a TOML file and a preset."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirrorshot.methods import METHODS, make_method, method_options
from mirrorshot.training.config import Config, merged
from mirrorshot.training.overrides import parse_override, read_toml
from mirrorshot.training.presets import preset_settings
from mirrorshot.types import InvalidInputError


def compose(preset: str, file: Path | None, flags: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """Compose the settings of a run. Later sources win: defaults, the preset, the TOML file, the command line.

    Args:
        preset: name of a preset; its settings depend on the data, method and shots of the other sources.
        file: a TOML file of settings.
        flags: settings with an option of their own; None: not given.
        overrides: `name=value`, as for `--set`. They win over `flags`.

    Example:
        >>> config = compose("paper", None, {"data": "cub", "n_shot": 5, "seed": None}, ["lr=3e-4"])
        >>> config.n_episodes, config.lr, config.method_options["kernel"]
        (40000, 0.0003, 'cosine')
    """
    given: dict[str, Any] = read_toml(file) if file else {}
    of_flags = {name: value for name, value in flags.items() if value is not None}
    for change in (of_flags, *map(parse_override, overrides)):
        given = merged(given, change)
    above = Config().replace(**given)
    if above.method not in METHODS:
        raise InvalidInputError(f"Expected `method` to be one of {', '.join(METHODS)}, but got {above.method!r}.")
    return Config().replace(**merged(preset_settings(preset, above.data, above.n_shot, above.method), given))


def check_names(config: Config) -> None:
    """Refuse unknown names and options before any data are read."""
    from mirrorshot.methods.gp import GPMethod
    from mirrorshot.networks.backbones import BACKBONES, make_backbone

    if config.backbone not in ("auto", *BACKBONES):
        raise InvalidInputError(f"Expected `backbone` to be auto, {', '.join(BACKBONES)}, but got {config.backbone!r}.")
    known = method_options(config.method) if config.method in METHODS else {}
    # make a GP method to check its kernel, too; other methods may need the data for this
    if not set(config.method_options) <= set(known) or issubclass(METHODS.get(config.method, GPMethod), GPMethod):
        make_method(config.method, make_backbone("identity", in_features=2), **config.method_options)


def run_folder(config: Config) -> Path:
    """Return the default folder of a run.

    Example:
        >>> run_folder(Config(data="images/birds/", n_shot=5)).as_posix()
        'runs/birds-mirror_gp-5shot'
    """
    return Path("runs") / f"{Path(config.data).stem or 'data'}-{config.method}-{config.n_shot}shot"

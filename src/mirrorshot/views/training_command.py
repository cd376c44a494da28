"""Command line that repeats a run."""

import json
import shlex
from pathlib import Path
from typing import Any

from mirrorshot.methods import METHODS, method_options
from mirrorshot.training.config import Config
from mirrorshot.training.presets import PRESETS, preset_settings

_OWN_FLAGS = {"method": "--method", "data": "--data", "n_shot": "--n-shot", "n_way": "--n-way", "seed": "--seed"}
_FROM_DATA = ("n_base_classes",)  # options that the trainer sets


def training_command(config: Config, folder: Path | None = None) -> str:
    """Return the `mirrorshot train` command with the settings of a run, as changes to the nearest preset.

    `folder` is the folder of the new run; None: the default one.

    Example:
        >>> print(training_command(Config(n_shot=5, seed=3, **{"schedule": "constant"}))[:52])
        mirrorshot train --method mirror_gp --data glyphs --
    """
    line = min((_arguments(config, preset) for preset in PRESETS), key=len)
    output = [] if folder is None else ["--output", str(folder)]
    return shlex.join(["mirrorshot", "train", *line, *output])


def _arguments(config: Config, preset: str) -> list[str]:
    base = preset_settings(preset, config.data, config.n_shot, config.method)
    before = Config().replace(**base).to_dict()
    wanted = config.to_dict()
    flags = [part for name, flag in _OWN_FLAGS.items() for part in (flag, str(wanted[name]))]
    changed = {
        name: value
        for name, value in wanted.items()
        if name not in (*_OWN_FLAGS, "method_options") and value != before[name]
    }
    options = _options(config, before["method_options"])
    changed |= {f"method_options.{name}": value for name, value in options.items()}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in changed.items()}
    sets = [part for name, text in texts.items() for part in ("--set", f"{name}={text}")]
    return [*flags, *(["--preset", preset] if preset != "default" else []), *sets]


def _options(config: Config, before: dict[str, Any]) -> dict[str, Any]:
    """Return the options that differ from the preset; those that only the preset sets get their defaults."""
    wanted = {name: value for name, value in config.method_options.items() if name not in _FROM_DATA}
    defaults = method_options(config.method) if config.method in METHODS else {}
    for name in before:
        if name not in wanted and name in defaults:
            wanted[name] = defaults[name]
    return {name: value for name, value in wanted.items() if name not in before or before[name] != value}

"""Cells of the tables (a method to train and test), and their result files."""

import functools
import json
import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mirrorshot.files.writing import write_json
from mirrorshot.methods import METHODS, method_options
from mirrorshot.paper import BUDGETS
from mirrorshot.paper.published import Row, all_rows
from mirrorshot.paper.released_cdkt import OPTIONS as RELEASED_OPTIONS
from mirrorshot.training.config import FREE, Config, field_types, merged
from mirrorshot.training.overrides import parse_override
from mirrorshot.training.presets import PRESETS, preset_settings
from mirrorshot.types import DataError, InvalidInputError


class Cell(NamedTuple):
    """One number of a table: a method, its data and its settings.

    Example:
        >>> Cell("dkt", "cub", 5, seed=2).name
        'accuracy_cub_5shot_dkt_paper_seed2'
    """

    row: str  # row of the paper's tables, or a method
    data: str  # name or path
    n_shot: int
    preset: str = "paper"
    budget: str = "paper"
    seed: int = 1  # of training
    tag: str = ""  # suffix of the name for changed settings
    changes: tuple[str, ...] = ()  # changed settings, `name=value`

    @property
    def name(self) -> str:
        """Return the name of its result and run."""
        row = "" if self.row == "mirror_gp" else f"_{self.row}"
        seed = "" if self.seed == 1 else f"_seed{self.seed}"
        ending = f"{budget_suffix(self.budget)}{seed}{self.tag}"
        return f"accuracy_{Path(self.data).stem}_{self.n_shot}shot{row}_{self.preset}{ending}"

    def config(self) -> Config:
        """Return the settings of training. Later sources win: preset, row, budget, changes."""
        row, budget = row_of(self.row), BUDGETS[self.budget]
        settings = preset_settings(self.preset, self.data, self.n_shot, row.method)
        config = Config(data=self.data, n_shot=self.n_shot, seed=self.seed).replace(**settings)
        config = config.replace(method_options=row.options, **budget.settings)
        n_episodes = round(budget.share * config.n_episodes)
        config = config.replace(n_episodes=min(n_episodes, budget.most_episodes or n_episodes))
        changes: dict[str, Any] = functools.reduce(merged, map(parse_override, self.changes), {})
        return config.replace(**changes)

    def command(self, target: str = "table1") -> str:
        """Return the command that runs the cell."""
        parts = ["mirrorshot", "reproduce", target, "--dataset", self.data, "--shots", str(self.n_shot)]
        defaults = Cell._field_defaults
        for option, field in (("method", "row"), ("preset", "preset"), ("budget", "budget"), ("seeds", "seed")):
            value = getattr(self, field)
            parts += [f"--{option}", str(value)] if value and value != defaults.get(field) else []
        parts += [part for text in self.changes for part in ("--set", text)]
        return shlex.join([*parts, *(["--tag", self.tag.removeprefix("_")] if self.tag else [])])


def budget_suffix(budget: str) -> str:
    """Return the suffix of file names for a budget; empty for the paper's."""
    return "" if budget == "paper" else f"_{budget}"


def row_of(name: str) -> Row:
    """Return a row by name; a method that is not in the paper is a row, too."""
    rows = all_rows()
    if name in rows:
        return rows[name]
    if name in METHODS:
        return Row(name, name)
    raise InvalidInputError(
        f"Expected a method or a row ({', '.join(dict.fromkeys([*rows, *METHODS]))}), but got {name!r}."
    )


_SCORES = ("accuracy", "accuracy_sd", "accuracy_interval_95", "protocol.episodes", "raw.ece", "raw.mce")
_PARTS = ("config.method_options", "commit", "device", "wall_time_s", *(f"evaluation.{name}" for name in _SCORES))
"""Parts of a result that tables need."""


class Result(NamedTuple):
    """The result file of a cell; the cell is parsed from the file name."""

    cell: Cell
    path: Path
    record: dict[str, Any]

    @property
    def evaluation(self) -> dict[str, Any]:
        """Return the metrics of the test."""
        return self.record["evaluation"]


def parse_name(name: str) -> Cell | None:
    """Return the cell of a result from its name; None for other names.

    Example:
        >>> parse_name("accuracy_omniglot_to_emnist_1shot_paper_envelope")[:3]
        ('mirror_gp', 'omniglot_to_emnist', 1)
    """
    longest_first = (sorted(names, key=len, reverse=True) for names in ({*all_rows(), *METHODS}, PRESETS, BUDGETS))
    rows, presets, budgets = ("|".join(map(re.escape, names)) for names in longest_first)
    pattern = rf"accuracy_(.+?)_(\d+)shot(?:_({rows}))?_({presets})(?:_(?!paper)({budgets}))?(?:_seed(\d+))?(_.*)?"
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    data, n_shot, row, preset, budget, seed, tag = found.groups()
    return Cell(row or "mirror_gp", data, int(n_shot), preset, budget or "paper", int(seed or 1), tag or "")


def read_results(folder: Path) -> list[Result]:
    """Read all results of cells in a folder, sorted by name."""
    found = []
    for path in sorted(folder.glob("accuracy_*.json")):
        cell, record = parse_name(path.stem), _cell_record(path)
        if cell is None:
            raise DataError(f"Expected {path} to be the result of a cell, but its name is not. Move it.")
        found.append(Result(cell, path, record))
    return found


def _cell_record(path: Path) -> dict[str, Any]:
    record = read_result(path)
    missing = next((name for name in _PARTS if not _has(record, name.split("."))), None)
    if missing:
        raise DataError(
            f"Expected {path} to be the result of a cell, but it has no {missing}. Move it away, then run "
            "the cell again."
        )
    return record


def _has(record: object, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(record, dict) or key not in record:
            return False
        record = record[key]
    return True


def different_settings(config: Config, stored: Mapping[str, Any], ours_are: str = "asked for") -> list[str]:
    """List the settings in which a result differs from `config`: `name = theirs (asked for: ours)`.

    A missing setting of the result counts as its default, as the result may be older than the setting.
    """
    ours, theirs = config.to_dict(), Config().to_dict() | {k: v for k, v in stored.items() if k in field_types()}
    defaults = RELEASED_OPTIONS | method_options(config.method)
    asked, made = ({**defaults, **options} for options in (ours.pop("method_options"), theirs.pop("method_options")))
    differences = [(n, theirs[n], ours[n]) for n in ours if n not in FREE and theirs[n] != ours[n]]
    for name in sorted({*asked, *made}):
        if made.get(name) != asked.get(name):
            differences.append((f"method_options.{name}", made.get(name), asked.get(name)))
    return [f"{name} = {made} ({ours_are}: {asked})" for name, made, asked in differences]


def has_result(cell: Cell, folder: Path) -> bool:
    """Return whether a cell has a result; raise `InvalidInputError` if it has other settings."""
    path = folder / f"{cell.name}.json"
    if not path.exists():
        return False
    record = _cell_record(path)
    differences = different_settings(cell.config(), record["config"])
    protocol, budget = record["evaluation"]["protocol"], BUDGETS[cell.budget]
    if (protocol.get("n_tasks"), protocol.get("seeds")) != (budget.n_tasks, list(budget.seeds)):
        differences.append(f"test tasks {protocol.get('n_tasks')} x {protocol.get('seeds')}")
    if differences:
        raise InvalidInputError(
            f"Expected {path} to have the settings asked for, but got {'; '.join(differences)}. Give --tag another "
            "name, --results another folder, or --again to run it anew."
        )
    return True


def save_result(path: Path, result: Mapping[str, Any], *, command: str, seed: int, started: float) -> None:
    """Write a result with its provenance atomically; entries of `result` win.

    `command` repeats the measurement; `started` is `time.perf_counter()` at its start.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "commit": commit(),
        "command": command,
        "device": device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seed": seed,
        "wall_time_s": round(time.perf_counter() - started, 1),
        **result,
    }
    write_json(path, record, indent=1)


def read_result(path: Path) -> dict[str, Any]:
    """Read a result; raise `DataError` if the file is not one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"Expected {path} to be a result of mirrorshot, but it cannot be read: {error}. Move it away, then run "
            "the command again."
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"Expected {path} to be a result of mirrorshot, but got a {type(record).__name__}. Move it.")
    return record


def device_name() -> str:
    """Return the name of the GPU, or the number of CPU threads."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"


def commit() -> str:
    """Return the commit of the sources, marked if they have changes; the variable MIRRORSHOT_COMMIT replaces it."""
    if "MIRRORSHOT_COMMIT" in os.environ:
        return os.environ["MIRRORSHOT_COMMIT"]
    if not _git("ls-files", Path(__file__).name):  # no checkout, or that of another project
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "..")
    return _git("rev-parse", "HEAD") + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    command, folder = ["git", *arguments], Path(__file__).parent
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False).stdout.strip()
    except OSError:  # git is not installed
        return ""

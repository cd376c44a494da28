"""Cells: one trained and tested method each, with a name, settings, and a result file of its own."""

import fnmatch
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mirrorshot.config import Config, field_types, merged, parse_override
from mirrorshot.methods import METHODS, method_options
from mirrorshot.presets import preset_settings
from mirrorshot.reproduce.provenance import read_result
from mirrorshot.reproduce.published import ROWS, Row, all_rows
from mirrorshot.reproduce.targets import BUDGETS
from mirrorshot.types import DataError, InvalidInputError

OPTIONS = {"data": "--dataset", "n_shot": "--shots", "seed": "--seeds", "method": "--method"}
"""Settings that a cell is named after, with the options that choose them."""
FREE = ("device", "save_every", "tensorboard")
"""Settings that do not change what a cell finds."""


class Cell(NamedTuple):
    """One number of a table.

    Attributes:
        row: name of a row of the paper's tables, or of another method.
        data: name or path of the data.
        n_shot: labelled items of a class.
        preset: settings to begin with.
        budget: how much is spent.
        seed: seed of training.
        tag: ending of the name, where settings were changed.
        changes: these changes, `name=value`.

    Example:
        >>> Cell("dkt", "cub", 5, seed=2).name
        'accuracy_cub_5shot_dkt_paper_seed2'
    """

    row: str
    data: str
    n_shot: int
    preset: str = "paper"
    budget: str = "paper"
    seed: int = 1
    tag: str = ""
    changes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of its result and of its run."""
        row = "" if self.row == "mirror_gp" else f"_{self.row}"
        budget = "" if self.budget == "paper" else f"_{self.budget}"
        seed = "" if self.seed == 1 else f"_seed{self.seed}"
        return f"accuracy_{Path(self.data).stem}_{self.n_shot}shot{row}_{self.preset}{budget}{seed}{self.tag}"

    def config(self) -> Config:
        """Settings of its training. What comes later wins: preset, row, budget, changes."""
        row, budget = row_of(self.row), BUDGETS[self.budget]
        settings = preset_settings(self.preset, self.data, self.n_shot, row.method)
        config = Config(data=self.data, n_shot=self.n_shot, seed=self.seed).replace(**settings)
        config = config.replace(method_options=row.options, **budget.settings)
        n_episodes = round(budget.share * config.n_episodes)
        config = config.replace(n_episodes=min(n_episodes, budget.most_episodes or n_episodes))
        changes: dict[str, Any] = functools.reduce(merged, map(parse_override, self.changes), {})
        return config.replace(**changes)

    def command(self, target: str = "table1") -> str:
        """What runs it."""
        parts = ["mirrorshot", "reproduce", target, "--dataset", self.data, "--shots", str(self.n_shot)]
        defaults = Cell._field_defaults
        for option, field in (("method", "row"), ("preset", "preset"), ("budget", "budget"), ("seeds", "seed")):
            value = getattr(self, field)
            parts += [f"--{option}", str(value)] if value and value != defaults.get(field) else []
        parts += [part for text in self.changes for part in ("--set", text)]
        return shlex.join([*parts, *(["--tag", self.tag.removeprefix("_")] if self.tag else [])])


def row_of(name: str) -> Row:
    """The row of that name; a method that the paper does not have is a row too."""
    rows = all_rows()
    if name in rows:
        return rows[name]
    if name in METHODS:
        return Row(name, name)
    raise InvalidInputError(
        f"Expected a method or a row ({', '.join(dict.fromkeys([*rows, *METHODS]))}), but got {name!r}."
    )


def rows_named(names: Sequence[str], known: Sequence[str] = tuple(ROWS)) -> list[str]:
    """Rows that are meant, each once.

    Args:
        names: names of rows and of other methods, or patterns such as "ove_gp*"; empty: all that are known.
        known: rows of the table.

    Example:
        >>> rows_named(["ove_gp*", "simpleshot"])
        ['ove_gp', 'ove_gp_pl', 'simpleshot']
    """
    chosen: list[str] = []
    for name in names:
        matched = fnmatch.filter(known, name)
        if not matched:
            row_of(name)
        chosen += matched or [name]
    return list(dict.fromkeys(chosen)) or list(known)


def normal_tag(tag: str, changes: Sequence[str]) -> str:
    """The ending of names of results, checked.

    Raises:
        InvalidInputError: the tag is no part of a file name, looks like something else, or is missing where settings
            are changed: the result would pass for that of the unchanged cell. Or a setting has an option of its own.
    """
    changed = sorted({text.partition("=")[0].strip() for text in changes} - set(FREE))
    own = next((name for name in changed if name in OPTIONS), None)
    if own is not None:
        raise InvalidInputError(f"Expected {OPTIONS[own]}, which the result is named after, but got --set {own}=...")
    if changed and not tag:
        raise InvalidInputError(
            f"Expected --tag with --set {changed[0]}=..., but got none: a name for results with other settings, "
            "for instance --tag try1."
        )
    if tag and not re.fullmatch(r"[\w.-]+", tag):
        raise InvalidInputError(f"Expected --tag to be letters, digits, '_', '-' and '.', but got {tag!r}.")
    tag = f"_{tag.removeprefix('_')}" if tag else ""
    if re.match(rf"_(seed\d|{'|'.join(BUDGETS)})", tag):
        raise InvalidInputError(f"Expected --tag to be no seed and no budget, but got {tag[1:]!r}.")
    return tag


class Result(NamedTuple):
    """A cell that was run: which one its name says it is, and what its file says."""

    cell: Cell
    path: Path
    record: dict[str, Any]

    @property
    def evaluation(self) -> dict[str, Any]:
        """What the test found."""
        found: dict[str, Any] = self.record["evaluation"]
        return found


def parse_name(name: str) -> Cell | None:
    """The cell that a result is of, from its name; None if it is none.

    Example:
        >>> parse_name("accuracy_omniglot_to_emnist_1shot_paper_envelope")[:3]
        ('mirror_gp', 'omniglot_to_emnist', 1)
    """
    rows = "|".join(map(re.escape, sorted({*all_rows(), *METHODS}, key=len, reverse=True)))
    pattern = rf"accuracy_(.+?)_(\d+)shot(?:_({rows}))?_(paper|default)(?:_(smoke|short))?(?:_seed(\d+))?(_.*)?"
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    data, n_shot, row, preset, budget, seed, tag = found.groups()
    return Cell(row or "mirror_gp", data, int(n_shot), preset, budget or "paper", int(seed or 1), tag or "")


def read_results(folder: Path) -> list[Result]:
    """All results of cells in a folder, by name."""
    found = []
    for path in sorted(folder.glob("accuracy_*.json")):
        cell, record = parse_name(path.stem), read_result(path)
        if cell is None or not _is_result(record):
            raise DataError(f"Expected {path} to be the result of a cell, but its name or its content is not. Move it.")
        found.append(Result(cell, path, record))
    return found


def _is_result(record: Mapping[str, Any]) -> bool:
    """Whether it has what tables are made of."""
    found, config = record.get("evaluation"), record.get("config")
    needed = ("protocol", "accuracy", "accuracy_sd", "raw")
    return isinstance(config, dict) and isinstance(found, dict) and all(name in found for name in needed)


def different_settings(config: Config, stored: Mapping[str, Any], ours_are: str = "asked for") -> list[str]:
    """Settings in which a result differs from ours: `name = theirs (asked for: ours)`.

    A setting that is not there, or did not exist when the result was made, counts as its default.

    Args:
        config: our settings.
        stored: those of the result.
        ours_are: what our settings are called.
    """
    ours, theirs = config.to_dict(), Config().to_dict() | {k: v for k, v in stored.items() if k in field_types()}
    defaults = method_options(config.method)
    asked, made = ({**defaults, **options} for options in (ours.pop("method_options"), theirs.pop("method_options")))
    differences = [(n, theirs[n], ours[n]) for n in ours if n not in FREE and theirs[n] != ours[n]]
    for name in sorted({*asked, *made}):
        if made.get(name) != asked.get(name):
            differences.append((f"method_options.{name}", made.get(name), asked.get(name)))
    return [f"{name} = {made} ({ours_are}: {asked})" for name, made, asked in differences]


def why_unfinished(cell: Cell, folder: Path) -> str | None:
    """None for a cell that has a result with the same settings, else what is to be done, which is "run".

    Raises:
        InvalidInputError: it has a result with other settings.
        DataError: what it has is no result.
    """
    path = folder / f"{cell.name}.json"
    if not path.exists():
        return "run"
    record = read_result(path)
    if not _is_result(record):
        raise DataError(f"Expected {path} to be the result of a cell, but its content is not. Move it.")
    differences = different_settings(cell.config(), record["config"])
    protocol, budget = record["evaluation"]["protocol"], BUDGETS[cell.budget]
    if (protocol.get("n_tasks"), protocol.get("seeds")) != (budget.n_tasks, list(budget.seeds)):
        differences.append(f"test tasks {protocol.get('n_tasks')} x {protocol.get('seeds')}")
    if differences:
        raise InvalidInputError(
            f"Expected {path} to have the settings asked for, but got {'; '.join(differences)}. Give --tag another "
            "name, --results another folder, or --again to run it anew."
        )
    return None

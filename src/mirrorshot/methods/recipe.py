"""Recipes: the settings that a preset or a method recommends for a kind of data. Needs no torch."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["characters", "photographs"]


class Case(NamedTuple):
    """A training run, as far as recipes depend on it.

    Attributes:
        preset: name of the preset.
        kind: kind of the images; own data count as photographs.
        is_benchmark: whether the data are those of the paper's experiments.
        n_shot: labelled items of each class.
    """

    preset: str
    kind: Kind
    is_benchmark: bool
    n_shot: int


class Recipe(NamedTuple):
    """Settings for all cases that meet its conditions; None is no condition.

    Attributes:
        settings: fields of `Config`; `method_options` are merged. `same_steps`: whether `n_episodes` grows with
            `tasks_per_step`, so that a method makes as many steps as one that takes a single task.
        preset, kind, is_benchmark, n_shot: the conditions, as in `Case`.
    """

    settings: Mapping[str, Any]
    preset: str | None = None
    kind: Kind | None = None
    is_benchmark: bool | None = None
    n_shot: int | None = None

    def applies(self, case: Case) -> bool:
        """Return whether all conditions are met."""
        return all(wanted in (None, has) for wanted, has in zip(self[1:], case, strict=True))


def merge(recipes: Iterable[Recipe], case: Case) -> dict[str, Any]:
    """Merge the settings of all recipes that apply; later ones win.

    Example:
        >>> recipes = [Recipe({"lr": 1e-3}), Recipe({"lr": 4e-3}, kind="photographs")]
        >>> merge(recipes, Case("default", "photographs", True, 1))
        {'method_options': {}, 'lr': 0.004}
    """
    merged: dict[str, Any] = {"method_options": {}}
    for recipe in recipes:
        if recipe.applies(case):
            options = merged["method_options"] | recipe.settings.get("method_options", {})
            merged |= recipe.settings
            merged["method_options"] = options
    return merged


MUON_ON_PHOTOGRAPHS = Recipe(
    {
        "optimizer": "muon",
        "tasks_per_step": 4,
        "lr": 4e-3,
        "kernel_lr": 2e-3,
        "validate_every": 1000,
        "same_steps": False,  # as many tasks as with one task a step
    },
    preset="default",
    kind="photographs",
)
"""For methods that were measured to learn photographs better with Muon (docs/design.md)."""

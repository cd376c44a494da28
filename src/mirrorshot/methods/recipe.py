"""Recipes: settings recommended by a preset or a method for a kind of data. Needs no torch."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["characters", "photographs"]


class Case(NamedTuple):
    """Properties of a training run on which recipes depend."""

    preset: str
    kind: Kind  # own data are photographs
    is_benchmark: bool  # of the paper's experiments
    n_shot: int


class Recipe(NamedTuple):
    """Settings, fields of `Config`, for all cases that meet its conditions; None is no condition.

    `method_options` are merged. With `same_steps`, `n_episodes` is multiplied by `tasks_per_step`, so the number of
    steps does not depend on the latter.
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
        "same_steps": False,  # as many tasks as with one task per step
    },
    preset="default",
    kind="photographs",
)
"""For methods whose results on photographs were better with Muon (docs/design.md)."""

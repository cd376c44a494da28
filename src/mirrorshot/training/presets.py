"""Named presets of settings: ours and the paper's. Data sets and methods define their own parts."""

from __future__ import annotations

from typing import Any

from mirrorshot.methods.recipe import Case, Recipe, merge
from mirrorshot.types import InvalidInputError

PRESETS: dict[str, str] = {
    "default": "Ours: trained best and fastest here, with a calibrated predictive temperature.",
    "paper": "As the MD-BFSC paper: ELBO of support and query, 3 mirror steps of rho = 1 from the prior, one task a "
    "step, Adam at 1e-3 (network) and 1e-4 (kernel), the paper's kernel and number of epochs for each data set.",
}

EPISODES_PER_EPOCH = 100

# In `default`, characters are trained for 100 epochs; more epochs only improve the training alphabets. Crops of at
# least 0.3 of an image and averaging over flips improve accuracy on CUB (docs/design.md); orientation may matter in own
# images, which are not averaged. Benchmarks are trained on GPUs, where 500 validation tasks cost little.
RECIPES = (
    Recipe({"tasks_per_step": 1, "lr": 1e-3}),
    Recipe({"kernel_lr": 1e-4, "schedule": "constant", "ema": 0.0}, preset="paper"),
    Recipe({"kernel_lr": 1e-3, "schedule": "cosine", "ema": 0.999}, preset="default"),
    Recipe({"n_validation_tasks": 500}, preset="default", is_benchmark=True),
    Recipe({"n_episodes": 100 * EPISODES_PER_EPOCH}, preset="default", kind="characters"),
    Recipe({"crop_area": 0.3}, preset="default", kind="photographs"),
    Recipe({"average_flips": True}, preset="default", kind="photographs", is_benchmark=True),
)


def preset_settings(name: str, data: str, n_shot: int, method: str = "mirror_gp") -> dict[str, Any]:
    """Return the settings of a preset for a data set, a number of shots and a method; others have their defaults.

    Example:
        >>> preset_settings("paper", "cub", 1)["n_episodes"]
        60000
        >>> preset_settings("paper", "cub", 1, "maml")["tasks_per_step"]
        4
    """
    from mirrorshot.data.benchmarks import DATASETS, OWN_DATA
    from mirrorshot.methods import METHODS

    if name not in PRESETS:
        raise InvalidInputError(f"Expected `preset` to be one of {', '.join(PRESETS)}, but got {name!r}.")
    if method not in METHODS:
        raise InvalidInputError(f"Expected `method` to be one of {', '.join(METHODS)}, but got {method!r}.")
    about = DATASETS.get(data, OWN_DATA)
    case = Case(name, about.kind, about.is_benchmark, n_shot)
    length = Recipe({"method": method, "n_episodes": EPISODES_PER_EPOCH * about.epochs[n_shot > 1]})
    settings = merge((length, *RECIPES, *METHODS[method].all_recipes()), case)
    if settings.pop("same_steps", False):
        settings["n_episodes"] *= settings["tasks_per_step"]
    return settings

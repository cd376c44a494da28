"""Reproduction of the paper's tables and figures, compared with the published numbers.

T. Ke, H. Cao and F. Zhou, "Accelerating Convergence in Bayesian Few-Shot Classification", ICML 2024. Each table and
figure has a module of its name; `program` checks a request and runs it. This file does not import torch, so that
`--help` is fast.
"""

from typing import NamedTuple


class Target(NamedTuple):
    """A table or figure: description, cost, and the paper's data sets and numbers of shots."""

    what: str
    cost: str
    data: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()


_TABLES = ("cub", "mini_imagenet_to_cub", "omniglot_to_emnist")
_PHOTOS = ("cub", "mini_imagenet")
_CELL = "1 to 8 min a cell of MD-BFSC on an H200 that others shared"

TARGETS: dict[str, Target] = {
    "table1": Target("accuracy of 17 methods on 3 data sets, 1 and 5 shots", f"94 cells, {_CELL}", _TABLES, (1, 5)),
    "table2": Target("calibration errors of 13 methods, 5 shots", f"37 cells of table1, {_CELL}", _TABLES, (5,)),
    "table3": Target("step size, kernel and number of steps on CUB, 1 shot", f"10 cells, {_CELL}", ("cub",), (1,)),
    "table4": Target("seconds of inner loop, outer loop and epoch", "minutes on a GPU", ("cub",), (1,)),
    "figure2": Target("reliability diagrams of MD-BFSC", "drawn from the cells of table2", _TABLES, (5,)),
    "figure3": Target("the inner loop: bound over steps and seconds", "minutes on two CPU cores", _PHOTOS, (1, 5)),
    "figure4": Target("the outer loop: loss over iterations", "minutes on a GPU", _PHOTOS, (1, 5)),
    "departures": Target("where the released code departs from the paper, measured", "1 min on two CPU cores"),
    "tables": Target("docs/results.md from the results that exist; runs nothing", "seconds"),
}


class Budget(NamedTuple):
    """Length of the training and the test of a cell."""

    share: float  # of the preset's episodes
    most_episodes: int  # 0: no limit
    n_tasks: int  # test tasks of each seed
    seeds: tuple[int, ...]  # of the test tasks
    settings: dict[str, int]  # further settings of training


_SMOKE = {"validate_every": 12, "n_validation_tasks": 5, "n_tune_tasks": 10, "n_query": 5}

BUDGETS: dict[str, Budget] = {
    "smoke": Budget(1.0, 24, 10, (1, 2), _SMOKE),
    "short": Budget(0.1, 0, 600, (1, 2, 3, 4, 5), {}),
    "paper": Budget(1.0, 0, 600, (1, 2, 3, 4, 5), {}),
}

"""Fitting of a run's temperature rule, on validation tasks with and without simulated domain shifts.

Unshifted tasks have six times the weight of shifted ones: the rule should be accurate in the domain of the validation
classes first, and detect other domains by the signs of a task.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.data.augment import Preprocess
from mirrorshot.data.shifts import draw_strengths, shift_images
from mirrorshot.methods import FewShotMethod
from mirrorshot.methods.calibrated import TaskTemperature, fit_task_temperature, task_signs
from mirrorshot.training.stream import NumberedTasks
from mirrorshot.types import TaskBatch

_AT_ONCE = {"cpu": 10, "cuda": 50}
_FIRST_TASK = 2**41  # disjoint from the tasks that select the best weights
_SEED = 20_011
_PLAIN_WEIGHT = 6.0  # of an unshifted task


class Found(NamedTuple):
    """Predictions of tasks with labels, weights of the queries, and the signs of `methods.calibrated`."""

    log_prob: Float[Tensor, "T M C"]
    y: Int[Tensor, "T M"]
    weight: Float[Tensor, "T M"]
    signs: Float[Tensor, "T 2"]


def fit_rule(
    method: FewShotMethod, tasks: NumberedTasks, preprocess: Preprocess | None, n_tasks: int
) -> TaskTemperature:
    """Fit the rule to predictions of a method in eval mode on tasks of validation classes, the same every time.

    `preprocess` is that of the tasks; every task is then predicted with and without a shift. None: the items are
    embeddings, which are not shifted.
    """
    found = predict_shifted(method, tasks, None, n_tasks)
    if preprocess is not None:
        shifted = predict_shifted(method, tasks, preprocess, n_tasks)
        plain = found._replace(weight=_PLAIN_WEIGHT * found.weight)
        found = Found(*(torch.cat(parts) for parts in zip(plain, shifted, strict=True)))
    return fit_task_temperature(*found)


@torch.no_grad()
def predict_shifted(method: FewShotMethod, tasks: NumberedTasks, preprocess: Preprocess | None, n_tasks: int) -> Found:
    """Predict tasks with shifted images; without `preprocess`, images are not shifted."""
    size, parts = _AT_ONCE[tasks.device.type], []
    generator = torch.Generator(tasks.device).manual_seed(_SEED)
    for start in range(0, n_tasks, size):
        batch, y = tasks.tasks(range(_FIRST_TASK + start, _FIRST_TASK + min(start + size, n_tasks)))
        if preprocess is not None:
            batch = shift_tasks(batch, preprocess, generator)
        method.seed(start)
        log_prob = method.predict(batch)
        signs = task_signs(*method.features(batch), log_prob, batch)
        parts.append(Found(log_prob, y, batch.query_weight, signs))
    return Found(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


def shift_tasks(tasks: TaskBatch, preprocess: Preprocess, generator: torch.Generator) -> TaskBatch:
    """Shift the images of each task, support and query alike."""
    x = torch.cat([tasks.support_x, tasks.query_x], 1)
    mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (preprocess.mean, preprocess.std))
    strengths = draw_strengths(len(x), generator)
    shifted: Float[Tensor, "T P c s s"] = (shift_images(x * std + mean, strengths, generator) - mean) / std
    n = tasks.support_x.shape[1]
    return tasks._replace(support_x=shifted[:, :n], query_x=shifted[:, n:])

"""The temperature rule of a run: fitted to tasks of validation classes, as they are and under simulated shifts.

Tasks as they are count six times as much as those whose images are changed as another domain would: the rule should be
right for the domain of the validation classes first, and see from the signs of a task that it is in another one.
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
_FIRST_TASK = 2**41  # none of those that choose the best weights
_SEED = 20_011
_PLAIN_WEIGHT = 6.0  # of a task whose images are not changed


class Found(NamedTuple):
    """Predictions of tasks with their labels, weights of the queries, and the signs of `methods.calibrated`."""

    log_prob: Float[Tensor, "T M C"]
    y: Int[Tensor, "T M"]
    weight: Float[Tensor, "T M"]
    signs: Float[Tensor, "T 2"]


def fit_rule(
    method: FewShotMethod, tasks: NumberedTasks, preprocess: Preprocess | None, n_tasks: int
) -> TaskTemperature:
    """Fit the rule to predictions of a method in eval mode for tasks of validation classes; the same ones every time.

    `preprocess` is that of the tasks; None: items are embeddings, which are not shifted. Otherwise every task is
    predicted as it is, and shifted.
    """
    found = predict_shifted(method, tasks, None, n_tasks)
    if preprocess is not None:
        shifted = predict_shifted(method, tasks, preprocess, n_tasks)
        plain = found._replace(weight=_PLAIN_WEIGHT * found.weight)
        found = Found(*(torch.cat(parts) for parts in zip(plain, shifted, strict=True)))
    return fit_task_temperature(*found)


@torch.no_grad()
def predict_shifted(method: FewShotMethod, tasks: NumberedTasks, preprocess: Preprocess | None, n_tasks: int) -> Found:
    """Predict tasks whose images are changed; without `preprocess` they stay as they are."""
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
    """Change the images of each task as another domain would, support and query alike."""
    x = torch.cat([tasks.support_x, tasks.query_x], 1)
    mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (preprocess.mean, preprocess.std))
    strengths = draw_strengths(len(x), generator)
    shifted: Float[Tensor, "T P c s s"] = (shift_images(x * std + mean, strengths, generator) - mean) / std
    n = tasks.support_x.shape[1]
    return tasks._replace(support_x=shifted[:, :n], query_x=shifted[:, n:])

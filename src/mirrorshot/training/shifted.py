"""The temperature rule of a run: fitted to tasks of validation classes under simulated changes of domain."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.data.augment import Preprocess
from mirrorshot.data.shifts import draw_strengths, shift_images
from mirrorshot.methods import FewShotMethod
from mirrorshot.methods.calibrated import TaskTemperature, fit_task_temperature, task_shift
from mirrorshot.training.stream import NumberedTasks
from mirrorshot.types import TaskBatch

_AT_ONCE = {"cpu": 10, "cuda": 50}
_FIRST_TASK = 2**41  # none of those that choose the best weights
_SEED = 20_011


class Found(NamedTuple):
    """Predictions of tasks with their labels, weights of the queries, and `phi` of `methods.calibrated`."""

    log_prob: Float[Tensor, "T M C"]
    y: Int[Tensor, "T M"]
    weight: Float[Tensor, "T M"]
    phi: Float[Tensor, " T"]


def fit_rule(
    method: FewShotMethod, tasks: NumberedTasks, preprocess: Preprocess | None, n_tasks: int
) -> TaskTemperature:
    """Fit the rule to predictions of a method in eval mode for tasks of validation classes; the same ones every time.

    `preprocess` is that of the tasks; None: items are embeddings, which are not shifted.
    """
    return fit_task_temperature(*predict_shifted(method, tasks, preprocess, n_tasks))


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
        support, query = method.features(batch)
        phi = task_shift(support.flatten(2), query.flatten(2), batch)
        parts.append(Found(method.predict(batch), y, batch.query_weight, phi))
    return Found(*(torch.cat(pieces) for pieces in zip(*parts, strict=True)))


def shift_tasks(tasks: TaskBatch, preprocess: Preprocess, generator: torch.Generator) -> TaskBatch:
    """Change the images of each task as another domain would, support and query alike."""
    x = torch.cat([tasks.support_x, tasks.query_x], 1)
    mean, std = (torch.tensor(values, device=x.device)[:, None, None] for values in (preprocess.mean, preprocess.std))
    strengths = draw_strengths(len(x), generator)
    shifted: Float[Tensor, "T P c s s"] = (shift_images(x * std + mean, strengths, generator) - mean) / std
    n = tasks.support_x.shape[1]
    return tasks._replace(support_x=shifted[:, :n], query_x=shifted[:, n:])

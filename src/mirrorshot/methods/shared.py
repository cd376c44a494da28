"""Operations that several methods share: labels and means of classes, masks, and batches cut into parts."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mirrorshot.gp.linalg import one_hot
from mirrorshot.types import TaskBatch

_TASKS_AT_ONCE = {"cuda": 50}


def in_parts(tasks: TaskBatch) -> Iterator[TaskBatch]:
    """The tasks a few at a time, so that the maps of a network do not fill the memory."""
    size = _TASKS_AT_ONCE.get(tasks.support_x.device.type, 10)
    for start in range(0, tasks.n_tasks, size):
        yield tasks.select(slice(start, start + size))


def support_one_hot(tasks: TaskBatch, dtype: torch.dtype) -> Float[Tensor, "T C N"]:
    """Return the labels of the support, one row for each class; columns of padding are zero."""
    return one_hot(tasks.support_y, tasks.n_way, dtype) * tasks.support_weight[:, None, :].to(dtype)


def class_means(z: Float[Tensor, "T N D"], tasks: TaskBatch) -> Float[Tensor, "T C D"]:
    """Return the mean of the support of each class, padding left out; zero for classes without points."""
    member = support_one_hot(tasks, z.dtype)
    return member @ z / member.sum(-1, keepdim=True).clamp(min=1.0)


def class_log_softmax(logits: Float[Tensor, "T M C"], tasks: TaskBatch) -> Float[Tensor, "T M C"]:
    """Return normalised log-probabilities, `-inf` for classes that do not exist."""
    return torch.log_softmax(logits.masked_fill(~tasks.class_mask[:, None, :], -torch.inf), -1)


def with_mask(prob: Float[Tensor, "T C M"], class_mask: Bool[Tensor, "T C"]) -> Float[Tensor, "T M C"]:
    """Logarithm of probabilities, classes last; `-inf` for classes that do not exist."""
    log_prob = prob.mT.clamp(min=torch.finfo(prob.dtype).tiny).log()
    return torch.log_softmax(log_prob.masked_fill(~class_mask[:, None, :], -torch.inf), -1)

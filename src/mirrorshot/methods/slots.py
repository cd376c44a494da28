"""Heads with one learned row for each class of a task: which rows a task uses, and its columns of the result.

Such a row belongs to the slot of a class (first, second, ...), so a head has as many slots as tasks may have classes.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from mirrorshot.types import InvalidInputError, TaskBatch


def check_n_way(n_way: int) -> None:
    """Refuse heads that cannot tell anything apart."""
    if n_way < 2:
        raise InvalidInputError(f"Expected `n_way` to be at least 2, the classes of a task, but got {n_way}.")


def xavier_rows(n_heads: int, n_way: int, n_features: int, generator: Generator) -> Float[Tensor, "P S D1"]:
    """Weights of `n_heads` linear heads as Glorot and Bengio (2010) start them, with a last column of zero biases.

    Example:
        >>> xavier_rows(3, n_way=5, n_features=8, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([3, 5, 9])
    """
    std = math.sqrt(2.0 / (n_way + n_features))
    weight = std * torch.randn(n_heads, n_way, n_features, generator=generator)
    return torch.cat([weight, weight.new_zeros(n_heads, n_way, 1)], -1)


def used_slots(tasks: TaskBatch, n_way: int) -> Bool[Tensor, "T S"]:
    """Which of the `n_way` slots of a head the classes of each task take.

    Raises:
        InvalidInputError: a task has more classes than the head has slots.

    Example:
        >>> x, y, ones = torch.zeros(1, 2, 4), torch.tensor([[0, 1]]), torch.ones(1, 2)
        >>> used_slots(TaskBatch(x, y, x, 2, ones, ones, ones.bool()), n_way=3)
        tensor([[ True,  True, False]])
    """
    surplus = tasks.n_way - n_way
    # only tasks padded to more classes than the head has are looked at, for which the device has to be waited for
    if surplus > 0 and bool(tasks.class_mask[:, n_way:].any()):
        raise InvalidInputError(
            f"Expected tasks of at most n_way={n_way} classes, for which the head was built, but got "
            f"{tasks.n_way}. Train with that n_way, or use a method without a learned head, for instance mirror_gp."
        )
    return torch.nn.functional.pad(tasks.class_mask, (0, -surplus))


def as_columns(log_prob: Float[Tensor, "T M S"], tasks: TaskBatch) -> Float[Tensor, "T M C"]:
    """Log-probabilities of the slots as those of the tasks' classes; `-inf` for classes that do not exist."""
    surplus = tasks.n_way - log_prob.shape[-1]
    columns = torch.nn.functional.pad(log_prob, (0, surplus))
    return columns.masked_fill(~tasks.class_mask[:, None, :], -torch.inf)


def mean_of_softmax(
    logits: Float[Tensor, "T P M S"], used: Bool[Tensor, "T S"], tasks: TaskBatch
) -> Float[Tensor, "T M C"]:
    """Logarithm of the class probabilities, averaged over the `P` heads of each task."""
    log_prob = masked_log_softmax(logits, used[:, None, None, :])
    return as_columns(log_prob.logsumexp(1) - math.log(logits.shape[1]), tasks)


def masked_log_softmax(logits: Float[Tensor, "*shape S"], used: Bool[Tensor, "*#shape S"]) -> Float[Tensor, "*shape S"]:
    """Log-softmax over the used slots; zero in the others, where minus infinity would make gradients undefined."""
    return torch.log_softmax(logits.masked_fill(~used, -torch.inf), -1).masked_fill(~used, 0.0)

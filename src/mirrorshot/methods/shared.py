"""Shared operations of methods: checks of options, initial weights, class means, and masked softmaxes.

A head with one learned row per class has `S` slots (first, second, ...), the maximum number of classes of a task.
"""

import math
from collections.abc import Iterator
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from mirrorshot.gp.linalg import one_hot
from mirrorshot.types import InvalidInputError, TaskBatch

_TASKS_AT_ONCE = {"cuda": 50}


def check_positive(**options: int | float) -> None:
    """Raise for options that are zero, negative, infinite or NaN."""
    for name, value in options.items():
        if not 0.0 < value < math.inf:
            raise InvalidInputError(f"Expected `{name}` to be positive, but got {value}.")


def check_choice(choices: Any, **options: str) -> None:
    """Raise for options that are not among the values of the `Literal` type `choices`."""
    *others, last = map(repr, get_args(choices))
    for name, value in options.items():
        if value not in get_args(choices):
            raise InvalidInputError(f"Expected `{name}` to be {', '.join(others)} or {last}, but got {value!r}.")


def in_parts(tasks: TaskBatch) -> Iterator[TaskBatch]:
    """Yield a few tasks at a time, to limit the memory of a network's maps."""
    size = _TASKS_AT_ONCE.get(tasks.support_x.device.type, 10)
    for start in range(0, tasks.n_tasks, size):
        yield tasks.select(slice(start, start + size))


def support_one_hot(tasks: TaskBatch, dtype: torch.dtype) -> Float[Tensor, "T C N"]:
    """Return the one-hot labels of the support, one row per class; columns of padding are zero."""
    return one_hot(tasks.support_y, tasks.n_way, dtype) * tasks.support_weight[:, None, :].to(dtype)


def class_means(z: Float[Tensor, "T N D"], tasks: TaskBatch) -> Float[Tensor, "T C D"]:
    """Return the mean of the support of each class, without padding; zero for classes without points."""
    member = support_one_hot(tasks, z.dtype)
    return member @ z / member.sum(-1, keepdim=True).clamp(min=1.0)


def class_log_softmax(logits: Float[Tensor, "*T M C"], class_mask: Bool[Tensor, "*T C"]) -> Float[Tensor, "*T M C"]:
    """Return normalised log-probabilities, `-inf` for missing classes."""
    return torch.log_softmax(logits.masked_fill(~class_mask[..., None, :], -torch.inf), -1)


def class_log_prob(prob: Float[Tensor, "T C M"], class_mask: Bool[Tensor, "T C"]) -> Float[Tensor, "T M C"]:
    """Return the logarithm of probabilities, classes last; `-inf` for missing classes."""
    return class_log_softmax(prob.mT.clamp(min=torch.finfo(prob.dtype).tiny).log(), class_mask)


def mean_nll(
    log_prob: Float[Tensor, "*T M C"], y: Int[Tensor, "*T M"], weight: Float[Tensor, "*T M"]
) -> Float[Tensor, "*T"]:
    """Mean cross-entropy of labelled points; points of weight zero are padding, whose log-probability may be `-inf`."""
    score = log_prob.gather(-1, y[..., None])[..., 0]
    weight = weight.to(score.dtype)
    return -(weight * score.masked_fill(weight == 0, 0.0)).sum(-1) / weight.sum(-1)


def slot_log_softmax(logits: Float[Tensor, "T P M S"], used: Bool[Tensor, "T S"]) -> Float[Tensor, "T P M S"]:
    """Log-softmax over the used slots; zero in the others, where `-inf` would make gradients undefined."""
    unused = ~used[:, None, None, :]
    return torch.log_softmax(logits.masked_fill(unused, -torch.inf), -1).masked_fill(unused, 0.0)


def mean_of_softmax(
    logits: Float[Tensor, "T P M S"], used: Bool[Tensor, "T S"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T M C"]:
    """Logarithm of the class probabilities, averaged over `P` heads; `-inf` for missing classes."""
    mean = slot_log_softmax(logits, used).logsumexp(1) - math.log(logits.shape[1])
    columns = nn.functional.pad(mean, (0, class_mask.shape[1] - used.shape[1]))
    return columns.masked_fill(~class_mask[:, None, :], -torch.inf)


def used_slots(tasks: TaskBatch, n_way: int) -> Bool[Tensor, "T S"]:
    """Mask of the `n_way` slots of a head that are used by the classes of each task.

    Example:
        >>> x, y, ones = torch.zeros(1, 2, 4), torch.tensor([[0, 1]]), torch.ones(1, 2)
        >>> used_slots(TaskBatch(x, y, x, 2, ones, ones, ones.bool()), n_way=3)
        tensor([[ True,  True, False]])
    """
    surplus = tasks.n_way - n_way
    # Reading the mask synchronises with the device; only needed for tasks padded to more classes than slots.
    if surplus > 0 and bool(tasks.class_mask[:, n_way:].any()):
        raise InvalidInputError(
            f"Expected tasks of at most n_way={n_way} classes, for which the head was built, but got "
            f"{tasks.n_way}. Train with that n_way, or use a method without a learned head, for instance mirror_gp."
        )
    return nn.functional.pad(tasks.class_mask, (0, -surplus))


def xavier_rows(n_heads: int, n_way: int, n_features: int, generator: Generator) -> Float[Tensor, "P S D1"]:
    """Initial weights of linear heads as in Glorot and Bengio (2010), with a last column of zero biases."""
    std = math.sqrt(2.0 / (n_way + n_features))
    weight = std * torch.randn(n_heads, n_way, n_features, generator=generator)
    return torch.cat([weight, weight.new_zeros(n_heads, n_way, 1)], -1)


def initial_weights_(parameter: Float[Tensor, "..."], n_in: int, generator: Generator) -> None:
    """Fill with the default initial values of torch's layers, uniform up to n_in^-1/2."""
    nn.init.uniform_(parameter, -(n_in**-0.5), n_in**-0.5, generator=generator)


def linear_layer(n_in: int, n_out: int, generator: Generator, *, zero_bias: bool = False) -> nn.Linear:
    """Linear layer with initial weights drawn only from `generator`."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)
    initial_weights_(layer.weight, n_in, generator)
    if zero_bias:
        nn.init.zeros_(layer.bias)
    else:
        initial_weights_(layer.bias, n_in, generator)
    return layer

"""Predictions and latents of a method for numbered tasks."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.data import EpisodeSampler
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.types import InvalidInputError, TaskBatch

Prepare = Callable[[Tensor], Tensor]
"""From gathered items (n, *item), for instance images as bytes, to what the backbone takes."""

Progress = Callable[[int, int, str], None]
"""Called with the number of tasks done, the number of all tasks, and a label."""

_Part = TypeVar("_Part")


class Predictions(NamedTuple):
    """Predictions of tasks, on the CPU.

    Attributes:
        log_prob: logarithm of the class probabilities, `-inf` for classes that a task does not have; (T, M, C).
        y: labels; (T, M).
        weight: one for queries, zero for padding; (T, M).
    """

    log_prob: Float[Tensor, "T M C"]
    y: Int[Tensor, "T M"]
    weight: Float[Tensor, "T M"]


class Latents(NamedTuple):
    """Gaussian latents of the queries of tasks, on the device of the method.

    Attributes:
        mean: `-inf` for classes that a task does not have; (T, M, C).
        var: their variances; (T, M, C).
    """

    mean: Float[Tensor, "T M C"]
    var: Float[Tensor, "T M C"]


def predict_tasks(
    method: FewShotMethod,
    sampler: EpisodeSampler,
    numbers: Sequence[int],
    *,
    prepare: Prepare,
    batch_size: int,
    progress: Progress | None = None,
) -> Predictions:
    """Let a method predict the queries of some tasks, in eval mode and without gradients.

    Args:
        method: stays in the mode it was in.
        sampler: draws the tasks.
        numbers: which tasks.
        prepare: from gathered items (n, *item) to what the backbone takes, on the device of the method.
        batch_size: tasks at a time.
        progress: told after each batch how far it has come.

    Example:
        >>> from mirrorshot.networks.backbones import make_backbone
        >>> from mirrorshot.data import ClassSource
        >>> from mirrorshot.methods import make_method
        >>> source = ClassSource.from_arrays(torch.arange(40.0)[:, None], torch.arange(40) // 10)
        >>> sampler = EpisodeSampler(source, n_way=2, n_shot=1, n_query=3, seed=0)
        >>> method = make_method("protonet", make_backbone("identity", in_features=1))
        >>> predict_tasks(method, sampler, range(5), prepare=torch.Tensor.float, batch_size=2).log_prob.shape
        torch.Size([5, 6, 2])
    """

    def predict(tasks: TaskBatch, y: Tensor) -> Predictions:
        log_prob = method.predict(tasks)
        expected = (*tasks.query_x.shape[:2], tasks.n_way)
        if log_prob.shape != expected:
            raise InvalidInputError(
                f"Expected `predict` of {type(method).__name__} to return shape {expected}, "
                f"but got {tuple(log_prob.shape)}."
            )
        return Predictions(log_prob.cpu(), y.cpu(), tasks.query_weight.cpu())

    parts = _of_batches(predict, method, sampler, numbers, prepare, batch_size, progress)
    return Predictions(*map(torch.cat, zip(*parts, strict=True)))


def predict_latents(
    method: FewShotMethod,
    sampler: EpisodeSampler,
    numbers: Sequence[int],
    *,
    prepare: Prepare,
    batch_size: int,
    progress: Progress | None = None,
) -> Latents | None:
    """Compute the latents of some tasks, with the arguments of `predict_tasks`; None for methods without latents."""

    def predict(tasks: TaskBatch, _: Tensor) -> Latents | None:
        found = method.predict_latent(tasks)
        if found is None:
            return None
        absent = ~tasks.class_mask[:, None, :]
        return Latents(found[0].masked_fill(absent, -torch.inf), found[1].masked_fill(absent, 0.0))

    parts = _of_batches(predict, method, sampler, numbers, prepare, batch_size, progress)
    return Latents(*map(torch.cat, zip(*parts, strict=True))) if parts else None


def _of_batches(
    compute: Callable[[TaskBatch, Tensor], _Part | None],
    method: FewShotMethod,
    sampler: EpisodeSampler,
    numbers: Sequence[int],
    prepare: Prepare,
    batch_size: int,
    progress: Progress | None,
) -> list[_Part]:
    """Results of all batches of tasks; none if `compute` returns None for the first one."""
    if batch_size < 1 or len(numbers) == 0:
        raise InvalidInputError(
            f"Expected `batch_size` and the number of tasks to be at least 1, but got {batch_size} and {len(numbers)}."
        )
    parts: list[_Part] = []
    with _eval_mode(method), torch.no_grad():
        for start in range(0, len(numbers), batch_size):
            batch = numbers[start : start + batch_size]
            part = compute(*_draw_batch(method, sampler, batch, prepare))
            if part is None:
                return []
            parts.append(part)
            if progress is not None:
                progress(start + len(batch), len(numbers), "tasks")
    return parts


@contextmanager
def _eval_mode(method: nn.Module) -> Iterator[None]:
    """Eval mode for the method and all its parts; afterwards each is in the mode it had."""
    modes = [(module, module.training) for module in method.modules()]
    method.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _draw_batch(
    method: FewShotMethod, sampler: EpisodeSampler, numbers: Sequence[int], prepare: Prepare
) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
    tasks, y = sampler.tasks(numbers)
    tensor = next(itertools.chain(method.parameters(), method.buffers()), None)
    tasks = _prepare_tasks(tasks if tensor is None else tasks.to(tensor.device), prepare)
    method.seed(int(numbers[0]))  # what a stochastic method draws depends on the tasks, not on who predicts them
    return tasks, y


def _prepare_tasks(tasks: TaskBatch, prepare: Prepare) -> TaskBatch:
    support_x = _prepare_items(tasks.support_x, tasks.support_weight, prepare)
    return tasks._replace(support_x=support_x, query_x=_prepare_items(tasks.query_x, tasks.query_weight, prepare))


def _prepare_items(
    x: Shaped[Tensor, "T N *item"], weight: Float[Tensor, "T N"], prepare: Prepare
) -> Shaped[Tensor, "T N *prepared"]:
    flat = prepare(x.flatten(0, 1))
    if len(flat) != x.shape[0] * x.shape[1]:
        raise InvalidInputError(
            f"Expected `prepare` to return {x.shape[0] * x.shape[1]} items, as many as it got, but got {len(flat)}."
        )
    prepared = flat.reshape(*x.shape[:2], *flat.shape[1:])
    if bool((weight == 0).any()):  # padding is zeros, before and after
        prepared = prepared * (weight > 0).view(*weight.shape, *[1] * (prepared.ndim - 2))
    return prepared

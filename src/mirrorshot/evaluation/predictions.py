"""Predictions of a method for numbered tasks, by one process or shared between several."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.data import EpisodeSampler
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.types import InvalidInputError, TaskBatch

Prepare = Callable[[Tensor], Tensor]
"""From gathered items (n, *item), for instance pictures as bytes, to what the backbone takes."""

Progress = Callable[[int, int, str], None]
"""Called with the number of tasks done, the number of all tasks, and what they are."""


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


class Share(NamedTuple):
    """Which part of the tasks this process computes: that of `rank` among `world_size`.

    Design note: whole batches are dealt out, so that a task meets the same tasks in its batch whatever the number of
    processes, and the numbers agree to the last bit. Rejected: every n-th task.
    """

    rank: int = 0
    world_size: int = 1

    def of(self, n_tasks: int, batch_size: int) -> list[int]:
        """Numbers of its tasks.

        Example:
            >>> Share(1, 2).of(n_tasks=7, batch_size=2)
            [2, 3, 6]
        """
        first = range(self.rank * batch_size, n_tasks, self.world_size * batch_size)
        return [number for start in first for number in range(start, min(start + batch_size, n_tasks))]


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
        >>> from mirrorshot.backbones import make_backbone
        >>> from mirrorshot.data import ClassSource
        >>> class Uniform(FewShotMethod):
        ...     def loss(self, tasks, query_y): ...
        ...     def predict(self, tasks):
        ...         return torch.zeros(*tasks.query_x.shape[:2], tasks.n_way).log_softmax(-1)
        >>> source = ClassSource.from_arrays(torch.arange(40.0)[:, None], torch.arange(40) // 10)
        >>> sampler = EpisodeSampler(source, n_way=2, n_shot=1, n_query=3, seed=0)
        >>> method = Uniform(make_backbone("identity", in_features=1))
        >>> predict_tasks(method, sampler, range(5), prepare=torch.Tensor.float, batch_size=2).log_prob.shape
        torch.Size([5, 6, 2])
    """
    if batch_size < 1:
        raise InvalidInputError(f"Expected `batch_size` to be at least 1, but got {batch_size}.")
    parts = [_empty(sampler)]
    with _eval_mode(method), torch.no_grad():
        for start in range(0, len(numbers), batch_size):
            batch = numbers[start : start + batch_size]
            parts.append(_predict_batch(method, sampler, batch, prepare))
            if progress is not None:
                progress(start + len(batch), len(numbers), "tasks")
    return Predictions(*(torch.cat(tensors) for tensors in zip(*(parts[1:] or parts), strict=True)))


def predict_latents(
    method: FewShotMethod,
    sampler: EpisodeSampler,
    numbers: Sequence[int],
    *,
    prepare: Prepare,
    batch_size: int,
    progress: Progress | None = None,
) -> Latents | None:
    """The latents of some tasks, as `predict_tasks` has their predictions; None for methods without latents."""
    parts = []
    with _eval_mode(method), torch.no_grad():
        for start in range(0, len(numbers), batch_size):
            batch = numbers[start : start + batch_size]
            tasks, _ = _draw_batch(method, sampler, batch, prepare)
            found = method.predict_latent(tasks)
            if found is None:
                return None
            absent = ~tasks.class_mask[:, None, :]
            parts.append(Latents(found[0].masked_fill(absent, -torch.inf), found[1].masked_fill(absent, 0.0)))
            if progress is not None:
                progress(start + len(batch), len(numbers), "tasks")
    return Latents(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def gather_latents(part: Latents | None, numbers: Sequence[int], n_tasks: int, share: Share) -> Latents | None:
    """Put the latents of all processes together, as `gather_predictions` does."""
    if part is None or share.world_size == 1:
        return part
    return Latents(*(_sum_of_parts(tensor, numbers, n_tasks).to(tensor.device) for tensor in part))


def gather_predictions(part: Predictions, numbers: Sequence[int], n_tasks: int, share: Share) -> Predictions:
    """Put the predictions of all processes together, in the order of the tasks; each process gets all of them.

    Args:
        part: predictions of this process, of the tasks `numbers`.
        numbers: as `Share.of` gave them.
        n_tasks: tasks of all processes.
        share: which process this is.
    """
    part = part._replace(log_prob=part.log_prob.double())
    if share.world_size == 1:
        return part
    return Predictions(*(_sum_of_parts(tensor, numbers, n_tasks) for tensor in part))


def check_share(share: Share) -> None:
    """Refuse shares that `torch.distributed` does not know of."""
    rank, world_size = share
    if not 0 <= rank < world_size:
        raise InvalidInputError(f"Expected `rank` to be from 0 to {world_size - 1}, but got {rank}.")
    if world_size == 1:
        return
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise InvalidInputError(
            f"Expected torch.distributed to be initialised for `world_size` = {world_size}, but it is not. "
            "Call torch.distributed.init_process_group first, or leave out `rank` and `world_size`."
        )
    actual = Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if share != actual:
        raise InvalidInputError(
            f"Expected `rank` and `world_size` to be those of torch.distributed, {tuple(actual)}, "
            f"but got {tuple(share)}."
        )


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


def _predict_batch(
    method: FewShotMethod, sampler: EpisodeSampler, numbers: Sequence[int], prepare: Prepare
) -> Predictions:
    tasks, y = _draw_batch(method, sampler, numbers, prepare)
    log_prob = method.predict(tasks)
    expected = (*tasks.query_x.shape[:2], tasks.n_way)
    if log_prob.shape != expected:
        raise InvalidInputError(
            f"Expected `predict` of {type(method).__name__} to return shape {expected}, "
            f"but got {tuple(log_prob.shape)}."
        )
    return Predictions(log_prob.cpu(), y.cpu(), tasks.query_weight.cpu())


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


def _empty(sampler: EpisodeSampler) -> Predictions:
    M, C = sampler.n_way * sampler.n_query, sampler.n_way
    return Predictions(torch.zeros(0, M, C), torch.zeros(0, M, dtype=torch.int64), torch.zeros(0, M))


def _sum_of_parts(part: Tensor, numbers: Sequence[int], n_tasks: int) -> Tensor:
    """Every task is filled in by one process and zero in the others."""
    on_gpu = torch.distributed.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    whole = torch.zeros(n_tasks, *part.shape[1:], dtype=part.dtype, device=device)
    whole[torch.tensor(numbers, dtype=torch.int64, device=device)] = part.to(whole.device)
    torch.distributed.all_reduce(whole)
    return whole.cpu()

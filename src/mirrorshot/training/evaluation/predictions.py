"""Predictions and latents of a method for numbered tasks, in batches and in passes over all tasks of a seed."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.decoding import Progress
from mirrorshot.methods.base import FewShotMethod
from mirrorshot.types import InvalidInputError, NumericalError, TaskBatch

Prepare = Callable[[Tensor], Tensor]
"""Map from items (n, *item), for instance images as bytes, to the input of the backbone, on its device."""

_Part = TypeVar("_Part")


class Predictions(NamedTuple):
    """Log-probabilities (`-inf` for missing classes), labels and weights of tasks, on the CPU."""

    log_prob: Float[Tensor, "T M C"]
    y: Int[Tensor, "T M"]
    weight: Float[Tensor, "T M"]  # zero for padding


class Latents(NamedTuple):
    """Gaussian latents of the queries of tasks, on the device of the method; mean `-inf` for missing classes."""

    mean: Float[Tensor, "T M C"]
    var: Float[Tensor, "T M C"]


_Tensors = TypeVar("_Tensors", Predictions, Latents)


def predict_tasks(
    method: FewShotMethod,
    sampler: EpisodeSampler,
    numbers: Sequence[int],
    *,
    prepare: Prepare,
    batch_size: int,
    progress: Progress | None = None,
) -> Predictions:
    """Predict the queries of the tasks with these numbers, in eval mode and without gradients.

    `progress` is called after each batch of `batch_size` tasks. See `evaluate` for an example.
    """
    parts = []
    with _eval_mode(method), torch.no_grad():
        options: dict[str, Any] = {"prepare": prepare, "batch_size": batch_size, "progress": progress}
        for tasks, y in _batches(method, sampler, numbers, **options):
            log_prob = method.predict(tasks)
            expected = (*tasks.query_x.shape[:2], tasks.n_way)
            if log_prob.shape != expected:
                raise InvalidInputError(
                    f"Expected `predict` of {type(method).__name__} to return shape {expected}, "
                    f"but got {tuple(log_prob.shape)}."
                )
            parts.append(Predictions(log_prob.cpu(), y.cpu(), tasks.query_weight.cpu()))
    return joined(parts)


def predict_latents(
    method: FewShotMethod, sampler: EpisodeSampler, numbers: Sequence[int], **options: Any
) -> Latents | None:
    """Compute the latents of tasks, with the arguments of `predict_tasks`; None for methods without latents."""
    parts = []
    with _eval_mode(method), torch.no_grad():
        for tasks, _ in _batches(method, sampler, numbers, **options):
            found = method.predict_latent(tasks)
            if found is None:
                return None
            absent = ~tasks.class_mask[:, None, :]
            parts.append(Latents(found[0].masked_fill(absent, -torch.inf), found[1].masked_fill(absent, 0.0)))
    return joined(parts)


def joined(parts: Sequence[_Tensors]) -> _Tensors:
    """Concatenate predictions, or latents, of several batches of tasks."""
    return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


class Passes:
    """Passes of one method over tasks of `sizes` n_way, n_shot and n_query, with a common progress report.

    `total` is the number of tasks of all passes, plus the grid if two temperatures are searched.
    """

    def __init__(
        self,
        method: FewShotMethod,
        sizes: tuple[int, int, int],
        prepare: Prepare,
        batch_size: int,
        progress: Progress | None,
        total: int,
    ) -> None:
        self.method, self.sizes, self.prepare, self.batch_size = method, sizes, prepare, batch_size
        self._report, self._done, self._total = progress, 0, total

    def predictions(self, source: ClassSource, seed: int, n_tasks: int, label: str) -> Predictions:
        """Predict all tasks of a seed, in float64; raises `NumericalError` if a prediction is NaN."""
        found = self._over(predict_tasks, source, seed, n_tasks, label)
        is_bad = (found.log_prob.isnan().any(-1) & (found.weight > 0)).any(-1)
        if bool(is_bad.any()):
            raise NumericalError(
                f"Expected predictions to be numbers, but got NaN in {int(is_bad.sum())} of {n_tasks} tasks "
                f"({label}; the first is number {int(is_bad.nonzero()[0])}). "
                "Check the parameters of the method for NaN."
            )
        return found._replace(log_prob=found.log_prob.double())

    def latents(self, source: ClassSource, seed: int, n_tasks: int, label: str) -> Latents | None:
        """Compute the latents of all tasks of a seed; None for methods without latents."""
        return self._over(predict_latents, source, seed, n_tasks, label)

    def _over(self, predict: Callable[..., _Part], source: ClassSource, seed: int, n_tasks: int, label: str) -> _Part:
        sampler, progress = EpisodeSampler(source, *self.sizes, seed=seed), self.progress(label, n_tasks)
        options = {"prepare": self.prepare, "batch_size": self.batch_size, "progress": progress}
        return predict(self.method, sampler, range(n_tasks), **options)

    def progress(self, label: str, size: int) -> Progress | None:
        """Return the progress callback of the next pass."""
        if self._report is None:
            return None
        report, before, total = self._report, self._done, self._total
        self._done += size
        return lambda done, of, _: report(before + done * size // of, total, label)


def _batches(
    method: FewShotMethod,
    sampler: EpisodeSampler,
    numbers: Sequence[int],
    *,
    progress: Progress | None = None,
    batch_size: int,
    prepare: Prepare,
) -> Iterator[tuple[TaskBatch, Int[Tensor, "T M"]]]:
    if batch_size < 1 or len(numbers) == 0:
        raise InvalidInputError(
            f"Expected `batch_size` and the number of tasks to be at least 1, but got {batch_size} and {len(numbers)}."
        )
    for start in range(0, len(numbers), batch_size):
        batch = numbers[start : start + batch_size]
        yield _draw_batch(method, sampler, batch, prepare)
        if progress is not None:
            progress(start + len(batch), len(numbers), "tasks")


@contextmanager
def _eval_mode(method: nn.Module) -> Iterator[None]:
    """Switch all modules to eval mode, and restore the mode of each afterwards."""
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
    tasks = tasks if tensor is None else tasks.to(tensor.device)
    support_x = _prepare_items(tasks.support_x, tasks.support_weight, prepare)
    tasks = tasks._replace(support_x=support_x, query_x=_prepare_items(tasks.query_x, tasks.query_weight, prepare))
    method.seed(int(numbers[0]))  # random numbers depend on the batch only
    return tasks, y


def _prepare_items(
    x: Shaped[Tensor, "T N *item"], weight: Float[Tensor, "T N"], prepare: Prepare
) -> Shaped[Tensor, "T N *prepared"]:
    flat = prepare(x.flatten(0, 1))
    if len(flat) != x.shape[0] * x.shape[1]:
        raise InvalidInputError(
            f"Expected `prepare` to return {x.shape[0] * x.shape[1]} items, as many as it got, but got {len(flat)}."
        )
    prepared = flat.reshape(*x.shape[:2], *flat.shape[1:])
    if bool((weight == 0).any()):  # padding stays zero
        prepared = prepared * (weight > 0).view(*weight.shape, *[1] * (prepared.ndim - 2))
    return prepared

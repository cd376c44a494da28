"""Few-shot episodes: classes and items of each task, identical for all methods.

Design note: an episode depends only on the seed and its own number. Every random key is a hash of (seed, number of the
task, stream, position), so tasks can be drawn in any batches, skipped, resumed or shared between processes, and whole
batches are computed at once. Rejected: one generator advanced from task to task (the batch size would change the
episodes), and one generator per task (a Python loop, and a stream that depends on a library version).
"""

import operator
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from mirrorshot.data.source import ClassSource
from mirrorshot.files.texts import first
from mirrorshot.types import DataError, InvalidInputError, TaskBatch, check_at_least

Range = int | tuple[int, int]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WAY, _SHOT, _CLASSES, _ITEMS = range(4)  # streams of random keys of a task


class EpisodeIndex(NamedTuple):
    """Indices into a source of the items of tasks, class-major; negative: padding."""

    support: Int[Tensor, "T N"]
    query: Int[Tensor, "T M"]
    n_way: int


class EpisodeSampler:
    """Sampler of batches of tasks: classes, then items of each class, without replacement.

    The same seed gives the same episodes in any batches: one draw of four tasks equals four draws of one task.
    `position` is the number of the next task; set it to resume.

    Args:
        n_way: classes of a task, or a range `(low, high)`, both included, from which each task draws. The attributes
            `n_way` and `n_shot` are then the maxima, to which smaller tasks are padded.
        n_shot: labelled items per class, or a range.
        n_query: other items per class.
        on_small_class: if a class has fewer than `n_shot + n_query` items, "error" raises `DataError`, "fewer_queries"
            lowers `n_query` for all classes, with a warning.

    Example:
        >>> source = ClassSource.from_arrays(torch.arange(60.0)[:, None], torch.arange(60) // 10)
        >>> sampler = EpisodeSampler(source, n_way=5, n_shot=1, n_query=3, seed=0)
        >>> tasks, query_y = sampler.draw(4)
        >>> tasks.support_x.shape, tasks.query_x.shape
        (torch.Size([4, 5, 1]), torch.Size([4, 15, 1]))
        >>> query_y[0].tolist()
        [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    """

    def __init__(
        self,
        source: ClassSource,
        n_way: Range,
        n_shot: Range,
        n_query: int,
        *,
        seed: int | torch.Generator,
        on_small_class: Literal["error", "fewer_queries"] = "error",
    ) -> None:
        if on_small_class not in ("error", "fewer_queries"):
            raise InvalidInputError(
                f"Expected `on_small_class` to be 'error' or 'fewer_queries', but got {on_small_class!r}."
            )
        self._ways, self._shots = _as_range("n_way", n_way, 2), _as_range("n_shot", n_shot, 1)
        self.n_way, self.n_shot = self._ways[1], self._shots[1]
        _check_n_classes(source, self.n_way)
        self.n_query = _check_counts(source, self.n_shot, _as_range("n_query", n_query, 1)[1], on_small_class)
        self.source, self.seed, self.position = source, _as_seed(seed), 0
        labels = source.labels.cpu().numpy()
        self._order = np.argsort(labels, kind="stable")  # item indices, class by class
        self._counts = np.bincount(labels, minlength=source.n_classes)
        self._starts = np.cumsum(self._counts) - self._counts

    def draw(self, n_tasks: int) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
        """Return the next tasks and, separately, the labels of their queries."""
        check_at_least(1, n_tasks=n_tasks)
        start = self.position
        self.position += n_tasks
        return self.tasks(range(start, start + n_tasks))

    def tasks(self, numbers: Sequence[int] | NDArray[np.int64]) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
        """Return the tasks with these numbers, counted from 0; `position` does not change."""
        index, items = self.index(numbers), self.source.items
        is_padded = bool((index.query < 0).any() or (index.support < 0).any())  # read before the copy to a device
        support, query = index.support.to(items.device), index.query.to(items.device)
        if not is_padded:
            return make_tasks(items[support], items[query], index.n_way)
        x, query_x = items[support.clamp(min=0)], items[query.clamp(min=0)]
        return make_tasks(x, query_x, index.n_way, support_real=support >= 0, query_real=query >= 0)

    def index(self, numbers: Sequence[int] | NDArray[np.int64]) -> EpisodeIndex:
        """Return the item indices of these tasks, on the CPU."""
        task = _mix(np.uint64(self.seed), np.asarray(numbers, dtype=np.int64))  # (T,)
        classes = np.argsort(_keys(task, _CLASSES, self.source.n_classes), axis=-1, kind="stable")[:, : self.n_way]
        counts = self._counts[classes]  # (T, C)
        # the stream of a class is its position in the task; keys beyond the end of a class sort last
        place = _mix(_keys(task, _ITEMS, self.n_way), np.int64(0))
        keys = _keys(place, 0, int(counts.max()))
        keys[np.arange(keys.shape[-1]) >= counts[..., None]] = np.iinfo(np.uint64).max
        chosen = np.argsort(keys, axis=-1, kind="stable")[..., : self.n_shot + self.n_query]
        items = self._order[self._starts[classes][..., None] + chosen]
        ways, shots = _uniform(task, _WAY, self._ways), _uniform(task, _SHOT, self._shots)
        items[np.arange(self.n_way) >= ways[:, None]] = -1
        support, query = items[..., : self.n_shot], items[..., self.n_shot :]
        support = np.where(np.arange(self.n_shot) < shots[:, None, None], support, -1)
        flat = [torch.from_numpy(rows.reshape(len(task), -1)) for rows in (support, query)]
        return EpisodeIndex(flat[0], flat[1], self.n_way)

    @property
    def may_pad(self) -> bool:
        """Whether tasks may be smaller than the maximum, so batches may contain padding."""
        return self._ways[0] < self._ways[1] or self._shots[0] < self._shots[1]


def make_tasks(
    support_x: Shaped[Tensor, "T N *item"],
    query_x: Shaped[Tensor, "T M *item"],
    n_way: int,
    *,
    support_real: Bool[Tensor, "T N"] | None = None,
    query_real: Bool[Tensor, "T M"] | None = None,
) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
    """Build tasks from class-major items, equally many per class; also return the labels of the queries.

    Items for which `support_real` or `query_real` is false become padding. No value is read back from the device.

    Example:
        >>> tasks, query_y = make_tasks(torch.ones(1, 2, 4), torch.ones(1, 6, 4), n_way=2)
        >>> tasks.support_y.tolist(), query_y.tolist()
        ([[0, 1]], [[0, 0, 0, 1, 1, 1]])
    """
    support_x, support_y, support_weight = _points(support_x, n_way, support_real)
    query_x, query_y, query_weight = _points(query_x, n_way, query_real)
    real = query_weight > 0 if query_real is None else query_real
    class_mask = real.reshape(len(query_x), n_way, -1).any(-1)
    return TaskBatch(support_x, support_y, query_x, n_way, support_weight, query_weight, class_mask), query_y


def _points(x: Tensor, n_way: int, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    T, N = x.shape[:2]
    y = (torch.arange(N, device=x.device) // (N // n_way)).expand(T, N)
    if real is None:
        return x, y, torch.ones(T, N, device=x.device)
    return x * real.view(T, N, *[1] * (x.ndim - 2)), y * real, real.float()


def _mix(state: NDArray[np.uint64] | np.uint64, number: NDArray[np.int64] | np.int64) -> NDArray[np.uint64]:
    """Hash a state and a number: the splitmix64 generator (Steele, Lea and Flood, 2014) after `number` jumps."""
    with np.errstate(over="ignore"):
        z = np.asarray(state + _GOLDEN * (np.asarray(number).astype(np.uint64) + np.uint64(1)))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def _keys(state: NDArray[np.uint64], stream: int, n: int) -> NDArray[np.uint64]:
    """Return `n` random keys per state, in a new last dimension."""
    return _mix(_mix(state, np.int64(stream))[..., None], np.arange(n))


def _uniform(state: NDArray[np.uint64], stream: int, bounds: tuple[int, int]) -> NDArray[np.int64]:
    low, high = bounds
    return low + (_keys(state, stream, 1)[..., 0] % np.uint64(high - low + 1)).astype(np.int64)


def _as_range(name: str, value: Range, least: int) -> tuple[int, int]:
    try:
        low, high = map(operator.index, value if isinstance(value, tuple | list) else (value, value))
    except (TypeError, ValueError):
        raise InvalidInputError(f"Expected `{name}` to be an integer or a pair of them, but got {value!r}.") from None
    if not least <= low <= high:
        raise InvalidInputError(f"Expected `{name}` to be at least {least} and in order, but got {value!r}.")
    return low, high


def _as_seed(seed: int | torch.Generator) -> int:
    if isinstance(seed, torch.Generator):
        return int(torch.randint(2**62, (), generator=seed, device=seed.device))
    if not 0 <= operator.index(seed) < 2**63:
        raise InvalidInputError(f"Expected `seed` to be between 0 and 2**63 - 1, but got {seed}.")
    return operator.index(seed)


def _check_n_classes(source: ClassSource, n_way: int) -> None:
    if source.n_classes < n_way:
        raise DataError(
            f"Expected at least as many classes as ways, but got {source.n_classes} classes for n_way = {n_way}. "
            "Lower `n_way` or add classes."
        )


def _check_counts(source: ClassSource, n_shot: int, n_query: int, on_small_class: str) -> int:
    counts = source.counts.tolist()
    need = n_shot + n_query if on_small_class == "error" else n_shot + 1
    small = [f"{name} ({n})" for name, n in zip(source.class_names, counts, strict=True) if n < need]
    if small:
        allowed = min(counts) - n_shot
        hint = (
            f"Lower `n_query` to {allowed} (option --n-query), pass on_small_class='fewer_queries' or leave these "
            "classes out."
            if allowed > 0
            else "Lower `n_shot` or leave these classes out."
        )
        raise DataError(
            f"Expected every class to have at least {need} items for n_shot = {n_shot} and n_query = {n_query}, "
            f"but {len(small)} of {len(counts)} have fewer: {first(small)}. {hint}"
        )
    lowered = min(n_query, int(min(counts)) - n_shot)
    if lowered < n_query:
        few = [name for name, n in zip(source.class_names, counts, strict=True) if n < n_shot + n_query]
        warnings.warn(
            f"n_query lowered from {n_query} to {lowered} in ALL episodes: {len(few)} of {len(counts)} classes have "
            f"fewer than n_shot + n_query = {n_shot + n_query} items: {first(few)}.",
            stacklevel=3,
        )
    return lowered

"""Training data of a run in blocks of steps, drawn on the host, gathered and augmented on the device."""

import abc
import copy
import math
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.augment import Preprocess
from mirrorshot.data.episodes import make_tasks
from mirrorshot.methods import FewShotMethod, PretrainedMethod
from mirrorshot.types import InvalidInputError, TaskBatch


class Block(NamedTuple):
    """Item indices and random numbers of a block: S steps of G groups of P items."""

    rows: Int[Tensor, "S G P"]
    draws: Float[Tensor, "S G P r"]


class Stream(abc.ABC):
    """Stream that draws the items of every step and prepares them on the device.

    The items of a step depend only on the seed and its number; the processes share its groups. The random numbers of
    the augmentation also depend on the first step of the block. Groups are tasks or single items, `groups_per_step`
    over all processes. `seed` is that of the augmentation and, in `ItemStream`, of the order. Without `preprocess`,
    items are embeddings.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        preprocess: Preprocess | None,
        groups_per_step: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.sampler, self.preprocess, self.groups_per_step, self.seed = sampler, preprocess, groups_per_step, seed
        self.share = slice(rank * groups_per_step // world_size, (rank + 1) * groups_per_step // world_size)
        self.source: ClassSource = sampler.source
        self._prepare = _prepare

    @abc.abstractmethod
    def _rows(self, first_step: int, n_steps: int) -> Int[Tensor, "S G P"]:
        """Return the item indices of some steps."""

    @abc.abstractmethod
    def loss(self, method: FewShotMethod, rows: Int[Tensor, "G P"], draws: Float[Tensor, "G P r"]) -> Float[Tensor, ""]:
        """Return this process's part of the mean loss of a step, with device operations only."""

    @property
    def device(self) -> torch.device:
        """Device on which items are prepared."""
        return self.source.items.device

    def block(self, first_step: int, n_steps: int) -> Block:
        """Return the items of some steps, copied to the device asynchronously."""
        rows = self._rows(first_step, n_steps)
        mine = [part[:, self.share].contiguous() for part in (rows, self._draws(first_step, rows.shape))]
        if self.device.type == "cuda":
            mine = [part.pin_memory() for part in mine]
        return Block(*(part.to(self.device, non_blocking=True) for part in mine))

    def compile(self) -> None:
        """Compile gathering and augmentation; worthwhile on a GPU."""
        self._prepare = torch.compile(_prepare, dynamic=False)

    def items(self, rows: Int[Tensor, "G P"], draws: Float[Tensor, "G P r"]) -> Tensor:
        """Return the input of the backbone (G, P, ...). Padding indices return arbitrary values."""
        flat = rows.flatten().clamp(min=0)
        x: Tensor
        if self.preprocess is None:
            x = self.source.items[flat].float()
        else:
            numbers = draws.flatten(0, 1) if self._n_draws else None
            x = self._prepare(self.preprocess, self.source.items, self.source.sizes, flat, numbers)
        return x.reshape(*rows.shape, *x.shape[1:])

    @property
    def _n_draws(self) -> int:
        return 0 if self.preprocess is None else self.preprocess.n_draws

    def _draws(self, first_step: int, shape: torch.Size) -> Float[Tensor, "S G P r"]:
        if self.preprocess is None or not self._n_draws:
            return torch.empty(*shape, 0)
        key = zlib.crc32(f"{self.seed} {first_step}".encode())
        return self.preprocess.draw(tuple(shape), torch.Generator().manual_seed(key))


class TaskStream(Stream):
    """Stream of tasks. A group is a task: its support, then its query.

    With `turn_classes` the images of each class of a task are rotated by the same random multiple of 90 degrees, stored
    in the last column of `draws`. This makes four times as many classes.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        preprocess: Preprocess | None,
        groups_per_step: int,
        *,
        turn_classes: bool = False,
        **share: int,
    ) -> None:
        super().__init__(sampler, preprocess, groups_per_step, **share)
        if turn_classes and preprocess is None:
            raise InvalidInputError("Expected images for turn_classes=true, but the data are embeddings.")
        self.turn_classes = turn_classes

    def loss(self, method: FewShotMethod, rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"]) -> Float[Tensor, ""]:
        """Return this process's part of the mean loss of the tasks of a step."""
        return method.loss(*self.assemble(rows, draws)).sum() / self.groups_per_step

    def _rows(self, first_step: int, n_steps: int) -> Int[Tensor, "S T P"]:
        T = self.groups_per_step
        index = self.sampler.index(np.arange(first_step * T, (first_step + n_steps) * T))
        return torch.cat([index.support, index.query], 1).reshape(n_steps, T, -1)

    def items(self, rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"]) -> Tensor:
        """Return the input of the backbone, with rotated classes."""
        x = super().items(rows, draws[..., : self._n_draws])
        return turned(x, draws[..., -1]) if self.turn_classes else x

    def classes(self, rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"]) -> Int[Tensor, "T P"]:
        """Return the training classes of items; each rotation of a class is its own class. Padding has class -1."""
        labels = self.source.labels[rows.clamp(min=0)]
        if self.turn_classes:
            labels = 4 * labels + draws[..., -1].long()
        return torch.where(rows >= 0, labels, -1)

    @property
    def n_classes(self) -> int:
        """Number of training classes, including rotated ones."""
        return self.source.n_classes * (4 if self.turn_classes else 1)

    def _draws(self, first_step: int, shape: torch.Size) -> Float[Tensor, "S T P r"]:
        draws = super()._draws(first_step, shape)
        if not self.turn_classes:
            return draws
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} turns {first_step}".encode()))
        C = self.sampler.n_way
        turns = torch.randint(4, (*shape[:2], C), generator=generator).to(draws.dtype)
        sizes = (self.sampler.n_shot, self.sampler.n_query)  # class-major: the support, then the query
        each = torch.cat([turns.repeat_interleave(size, -1) for size in sizes], -1)
        return torch.cat([draws, each[..., None]], -1)

    def assemble(self, rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"]) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
        """Gather and prepare tasks, with device operations only."""
        n, n_way = self.sampler.n_way * self.sampler.n_shot, self.sampler.n_way
        x = self.items(rows, draws)
        if not self.sampler.may_pad:
            return make_tasks(x[:, :n], x[:, n:], n_way)
        real = rows >= 0
        return make_tasks(x[:, :n], x[:, n:], n_way, support_real=real[:, :n], query_real=real[:, n:])


class NumberedTasks:
    """Tasks by number, for tuning and validation, the same every time.

    With `augment` images are augmented if `preprocess` does so, a range of tasks in the same way every time. With
    `turn_classes` they are rotated as in `TaskStream`.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        preprocess: Preprocess | None,
        *,
        augment: bool = False,
        turn_classes: bool = False,
    ) -> None:
        if preprocess is not None and not augment:
            preprocess = preprocess.plain
        self._stream = TaskStream(sampler, preprocess, 1, seed=0, turn_classes=turn_classes)
        self._drawn: dict[range, Block] = {}

    @property
    def device(self) -> torch.device:
        """Device on which tasks are assembled."""
        return self._stream.device

    @property
    def n_items(self) -> int:
        """Number of items of the source."""
        return self._stream.source.n_items

    @property
    def n_points(self) -> int:
        """Number of items of a task."""
        sampler = self._stream.sampler
        return sampler.n_way * (sampler.n_shot + sampler.n_query)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Prepare all items in order, in chunks of equal length up to `size`; the last item pads the last chunk."""
        n_chunks = math.ceil(self.n_items / size)
        rows = torch.arange(n_chunks * math.ceil(self.n_items / n_chunks), device=self.device)
        for chunk in rows.clamp(max=self.n_items - 1).chunk(n_chunks):
            yield self._stream.items(chunk[None], torch.empty(1, len(chunk), 0, device=self.device))

    def with_items(self, items: Tensor) -> "NumberedTasks":
        """Return the same tasks with other items, which need no preparation."""
        other = copy.copy(self)
        other._stream = copy.copy(self._stream)
        other._stream.source, other._stream.preprocess = self._stream.source._replace(items=items, sizes=None), None
        return other

    def tasks(self, numbers: range) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
        """Return the tasks with these numbers and, separately, the labels of their queries."""
        if numbers not in self._drawn:  # reused in every validation
            self._drawn[numbers] = self._stream.block(numbers.start, len(numbers))
        block = self._drawn[numbers]
        return self._stream.assemble(block.rows[:, 0], block.draws[:, 0])


class ItemStream(Stream):
    """Stream of single items of all training classes, for pre-training, shuffled every epoch; groups have one item."""

    def loss(self, method: FewShotMethod, rows: Int[Tensor, "B 1"], draws: Float[Tensor, "B 1 r"]) -> Float[Tensor, ""]:
        """Return this process's part of the mean loss of the items of a step."""
        assert isinstance(method, PretrainedMethod)
        x, y = self.items(rows, draws)[:, 0], self.source.labels[rows[:, 0]]
        return method.classification_loss(x, y).sum() / self.groups_per_step

    def _rows(self, first_step: int, n_steps: int) -> Int[Tensor, "S B 1"]:
        B, n = self.groups_per_step, self.source.n_items
        numbers = np.arange(first_step * B, (first_step + n_steps) * B)
        epochs, places = np.divmod(numbers, n)
        orders = {e: np.random.default_rng((self.seed, int(e))).permutation(n) for e in np.unique(epochs)}
        rows = np.array([orders[e][p] for e, p in zip(epochs, places, strict=True)], dtype=np.int64)
        return torch.from_numpy(rows).reshape(n_steps, B, 1)


def turned(x: Float[Tensor, "T P c s s"], quarters: Float[Tensor, "T P"]) -> Float[Tensor, "T P c s s"]:
    """Rotate each image by a number of quarter turns, with device operations only.

    Example:
        >>> turned(torch.tensor([[[[[1.0, 2.0], [3.0, 4.0]]]]]), torch.ones(1, 1)).flatten().tolist()
        [2.0, 4.0, 1.0, 3.0]
    """
    for k in (1, 2, 3):
        x = torch.where((quarters == k)[..., None, None, None], x.rot90(k, (-2, -1)), x)
    return x


def _prepare(
    preprocess: Preprocess, items: Tensor, sizes: Tensor | None, rows: Int[Tensor, " n"], draws: Tensor | None
) -> Float[Tensor, "n c s s"]:
    return preprocess(items[rows], None if sizes is None else sizes[rows], draws)

"""The tasks of a training run, a block of steps at a time: drawn on the host, gathered and augmented on the device."""

import zlib
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.data import ClassSource, EpisodeSampler
from mirrorshot.data.augment import Preprocess
from mirrorshot.types import TaskBatch


class Block(NamedTuple):
    """What the steps of a block need: rows of items (S, T, N + M) and random numbers (S, T, N + M, n_draws)."""

    rows: Int[Tensor, "S T P"]
    draws: Float[Tensor, "S T P r"]


class TaskStream:
    """Draws the tasks of every step, and assembles them on the device.

    A step's tasks depend on the seed and the number of the step only; its random numbers also on where its block
    begins. Neither depends on the number of processes: each takes its share.

    Args:
        sampler: draws the tasks; its source is where they are gathered.
        preprocess: from pictures to what the backbone takes. None: items are embeddings.
        tasks_per_step: tasks of one step, over all processes.
        seed: seed of the augmentation.
        rank, world_size: number of this process, and of all.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        preprocess: Preprocess | None,
        tasks_per_step: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.sampler, self.preprocess, self.tasks_per_step, self.seed = sampler, preprocess, tasks_per_step, seed
        self.n_support = sampler.n_way * sampler.n_shot
        self.share = slice(rank * tasks_per_step // world_size, (rank + 1) * tasks_per_step // world_size)
        self.source: ClassSource = sampler.source
        self._prepare = _prepare
        self._rows: dict[range, Tensor] = {}

    @property
    def device(self) -> torch.device:
        """Where tasks are assembled."""
        return self.source.items.device

    def block(self, first_step: int, n_steps: int) -> Block:
        """The tasks of some steps. One copy to the device, without waiting for it."""
        T = self.tasks_per_step
        numbers = np.arange(first_step * T, (first_step + n_steps) * T)
        index = self.sampler.index(numbers)
        rows = torch.cat([index.support, index.query], 1).reshape(n_steps, T, -1)
        draws = self._draws(first_step, rows.shape)
        mine = (part[:, self.share].contiguous() for part in (rows, draws))
        return Block(*(_send(part, self.device) for part in mine))

    def assemble(self, rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"]) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
        """Gather and prepare the tasks of one step; device operations only."""
        n, C, T = self.n_support, self.sampler.n_way, len(rows)
        real = (rows >= 0) if self.sampler.may_pad else torch.ones_like(rows, dtype=torch.bool)
        x = self._items(rows, draws, real)
        y = torch.cat([_labels(C, n, rows.device), _labels(C, rows.shape[1] - n, rows.device)]) * real
        weight = real.float()
        class_mask = real[:, n:].reshape(T, C, -1).any(-1)
        batch = TaskBatch(x[:, :n], y[:, :n], x[:, n:], C, weight[:, :n], weight[:, n:], class_mask)
        return batch, y[:, n:]

    def compile(self) -> None:
        """Compile gathering and augmentation; pays on a GPU."""
        self._prepare = torch.compile(_prepare, dynamic=False)

    def tasks(self, numbers: range) -> tuple[TaskBatch, Int[Tensor, "T M"]]:
        """Whole tasks by their numbers, prepared without augmentation: for tuning and validation."""
        if numbers not in self._rows:  # they are asked for again at every validation
            index = self.sampler.index(numbers)
            self._rows[numbers] = _send(torch.cat([index.support, index.query], 1), self.device)
        rows = self._rows[numbers]
        plain = None if self.preprocess is None else self.preprocess._replace(augment=False)
        twin = TaskStream(self.sampler, plain, len(rows), seed=0)
        return twin.assemble(rows, torch.empty(*rows.shape, 0, device=self.device))

    def _items(self, rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"], real: Tensor) -> Tensor:
        """Items (T, P, ...) as the backbone takes them; zeros for padding."""
        flat = rows.flatten().clamp(min=0)
        x: Tensor
        if self.preprocess is None:
            x = self.source.items[flat]
        else:
            numbers = draws.flatten(0, 1) if self.preprocess.augment else None
            x = self._prepare(self.preprocess, self.source.items, self.source.sizes, flat, numbers)
        x = x.unflatten(0, tuple(rows.shape))
        return x * real.view(*rows.shape, *[1] * (x.ndim - 2)) if self.sampler.may_pad else x

    def _draws(self, first_step: int, shape: torch.Size) -> Float[Tensor, "S T P r"]:
        if self.preprocess is None or not self.preprocess.augment:
            return torch.empty(*shape, 0)
        key = zlib.crc32(f"{self.seed} {first_step}".encode())
        return self.preprocess.draw(tuple(shape), torch.Generator().manual_seed(key))


def _prepare(
    preprocess: Preprocess, items: Tensor, sizes: Tensor | None, rows: Int[Tensor, " n"], draws: Tensor | None
) -> Float[Tensor, "n c s s"]:
    """Gather pictures and prepare them."""
    return preprocess(items[rows], None if sizes is None else sizes[rows], draws)


def _labels(n_way: int, n: int, device: torch.device) -> Int[Tensor, " n"]:
    """Classes of `n` points, class by class."""
    return torch.arange(n, device=device) // (n // n_way)


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)

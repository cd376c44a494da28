"""Processes of a run: one, or several under `torchrun` that share the tasks of every step."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mirrorshot.types import InvalidInputError, MirrorshotError

T = TypeVar("T")


class LostProcessError(MirrorshotError, RuntimeError):
    """Another process of the run has died. The run can be resumed."""


class World(NamedTuple):
    """This process, `rank` of `size`, with its device."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def mean_(self, tensors: Iterable[Tensor]) -> None:
        """Average tensors over the processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor.div_(self.size)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def share_(self, tensors: Iterable[Tensor]) -> None:
        """Copy tensors from the first process to all others, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def share_value(self, value: T) -> T:
        """Return the value of the first process in every process."""
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, 0, device=self.device)
        return values[0]

    def part_of(self, n: int) -> range:
        """Return this process's share of the numbers 0 to `n - 1`."""
        return range(self.rank * n // self.size, (self.rank + 1) * n // self.size)


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """Join the processes started by `torchrun`, each with its own GPU, or make a world of one process.

    `device` is as in `choose_device`.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")) if size > 1 else None)
    if size == 1:
        yield World(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(rank, size, chosen)
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "closed by peer" in str(error):
            raise LostProcessError(
                f"Expected {size} processes, but lost the connection to one: {str(error).splitlines()[0]} "
                "Everything up to the last checkpoint is kept; start again with --resume."
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    """Return the device "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"devices of type {device.type} are not supported")
    except RuntimeError as error:
        raise InvalidInputError(f"Expected `device` to be auto, cpu, cuda or cuda:N, but got {name!r}.") from error
    if device.type == "cuda":
        n_devices = torch.cuda.device_count()
        index = local_rank if local_rank is not None else device.index or 0
        if index >= n_devices:
            raise InvalidInputError(f"Expected a GPU number {index}, but got {n_devices} GPUs. Use device=cpu.")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device

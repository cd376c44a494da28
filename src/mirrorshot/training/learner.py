"""Optimiser steps, computed eagerly or as a recorded CUDA graph, and the state that they change."""

import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.methods import FewShotMethod
from mirrorshot.training.auxiliary import AuxiliaryLoss, listening
from mirrorshot.training.config import Config
from mirrorshot.training.optimizers import make_optimizers
from mirrorshot.training.stream import Block, Stream
from mirrorshot.types import NumericalError

_WARM_UP = 3  # steps before recording
_RECENT = 10  # EMA warm-up: average over the last 10 % of the steps only


class BlockStats(NamedTuple):
    """Means over the steps of a block, and the index of its first step that is not finite (-1: none); on the device."""

    loss: Float[Tensor, ""]
    norm: Float[Tensor, ""]
    first_bad: Int[Tensor, ""]


class NotFiniteError(NumericalError):
    """The loss or the gradient of a step is not finite. `step` is its index in its block."""

    def __init__(self, step: int, loss: float, norm: float) -> None:
        super().__init__(f"loss {loss}, length of the gradient {norm}")
        self.step = step


class Learner:
    """A method in training, with its optimisers and the running average of its weights.

    Attributes:
        average: running averages of the parameters by name; None without averaging.
        auxiliary: auxiliary loss over all training classes, or None.
        optimizers: one or two, see `make_optimizers`.
    """

    def __init__(self, method: FewShotMethod, config: Config, stream: Stream, *, world_size: int = 1) -> None:
        self.method, self.config, self.stream, self.world_size = method, config, stream, world_size
        self.average = {n: p.detach().clone() for n, p in method.named_parameters()} if config.ema else None
        self.is_cuda = stream.device.type == "cuda"
        # without a network, as for embeddings, it would train nothing
        has_auxiliary = config.auxiliary_weight and any(True for _ in method.backbone.parameters())
        self.auxiliary = AuxiliaryLoss(method, stream, config) if has_auxiliary else None
        others = self.auxiliary.parameters() if self.auxiliary is not None else ()
        self.optimizers = make_optimizers(method, config, is_cuda=self.is_cuda, others=others)
        self._groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self._base_lrs = [float(group["lr"]) for group in self._groups]
        self._parameters = [p for group in self._groups for p in group["params"]]
        self._recorded: Callable[[Tensor, Tensor, Tensor], None] | None = None
        self._sums = torch.zeros(2, device=stream.device)
        self._bad = torch.zeros((), dtype=torch.int64, device=stream.device)
        self._count = torch.zeros((), dtype=torch.int64, device=stream.device)

    def run(self, block: Block, first_step: int, tick: Callable[[int], None] | None = None) -> BlockStats:
        """Take the steps of a block: on a GPU enqueue them, on the CPU call `tick` with the number of steps done."""
        n_steps = len(block.rows)
        plan = torch.tensor([self._plan(first_step + i) for i in range(n_steps)], device=self.stream.device)
        one = self._recorded_step(block, plan) if self._can_record else self._step
        self._reset(first_step)
        for i in range(n_steps):
            one(block.rows[i], block.draws[i], plan[i])
            if tick is not None and not self.is_cuda:
                tick(i + 1)
        loss, norm = (self._sums / n_steps).unbind()
        return BlockStats(loss, norm, self._bad.clone())

    def find_failure(self, block: Block, first_step: int) -> int:
        """Repeat a block eagerly up to the first step that fails, without applying it; return its index, -1: none."""
        self._reset(first_step)
        for i in range(len(block.rows)):
            plan = torch.tensor(self._plan(first_step + i), device=self.stream.device)
            try:
                self._step(block.rows[i], block.draws[i], plan, look=True)
            except NotFiniteError:
                return i
        return -1

    def _reset(self, first_step: int) -> None:
        self.method.seed(zlib.crc32(f"{self.config.seed} {first_step}".encode()))
        self._sums.zero_()
        self._bad.fill_(-1)
        self._count.zero_()

    @property
    def _can_record(self) -> bool:
        sampler = self.stream.sampler
        n_points = sampler.n_way * (sampler.n_shot + sampler.n_query)
        allowed = self.is_cuda and self.config.accelerate and self.world_size == 1
        return allowed and self.method.is_recordable(n_points, sampler.n_way)

    def _plan(self, step: int) -> tuple[float, float, float]:
        """Return learning-rate factor, weight of the newest parameters in the average, and auxiliary weight."""
        done = step / max(1, self.config.n_steps)
        fallen = 0.5 * (1 + math.cos(math.pi * done))
        factor = fallen if self.config.schedule == "cosine" else 1.0
        weight = self.config.auxiliary_weight * (fallen if self.config.auxiliary_schedule == "cosine" else 1.0)
        return factor, max(1 - self.config.ema, _RECENT / (step + _RECENT)), weight

    def _step(self, rows: Tensor, draws: Tensor, plan: Tensor, *, look: bool | None = None) -> None:
        """Take a step. With `look` (None: on the CPU) raise before using a loss or gradient that is not finite."""
        loss, norm = self._gradients(rows, draws, plan[2])
        if not self.is_cuda if look is None else look:
            values = float(loss), float(norm)
            if not all(map(math.isfinite, values)):
                raise NotFiniteError(int(self._count), *values)
        self._apply(plan)
        self._sums += torch.stack([loss, norm])
        finite = loss.isfinite() & norm.isfinite()
        self._bad.copy_(torch.where((self._bad < 0) & ~finite, self._count, self._bad))
        self._count += 1

    def _gradients(self, rows: Tensor, draws: Tensor, auxiliary_weight: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient over all processes; return the mean loss and the gradient's norm before clipping."""
        self._forget_gradients()
        with listening(self.method) as heard:
            loss = self.stream.loss(self.method, rows, draws)
        if self.auxiliary is not None:
            loss = loss + auxiliary_weight * self.auxiliary(heard, rows, draws)
        loss.backward()
        loss = loss.detach()
        grads = [p.grad for p in self._parameters if p.grad is not None]
        if self.world_size > 1:
            packed = torch.cat([g.flatten() for g in grads] + [loss[None].to(grads[0].dtype)])
            dist.all_reduce(packed)
            pieces = packed.split([g.numel() for g in grads] + [1])
            for grad, piece in zip(grads, pieces, strict=False):
                grad.copy_(piece.view_as(grad))
            loss = pieces[-1][0]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if self.config.clip:
            torch._foreach_mul_(grads, (self.config.clip / norm.clamp(min=self.config.clip)))
        return loss.float(), norm.float()

    def _forget_gradients(self) -> None:
        for p in self._parameters:
            p.grad = None

    def _apply(self, plan: Tensor) -> None:
        for group, base in zip(self._groups, self._base_lrs, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(base * plan[0])
            else:
                group["lr"] = base * float(plan[0])
        for optimizer in self.optimizers:
            optimizer.step()
        if self.average is not None:
            with torch.no_grad():
                averages = list(self.average.values())
                difference = torch._foreach_sub(list(self.method.parameters()), averages)
                torch._foreach_mul_(difference, plan[1])
                torch._foreach_add_(averages, difference)

    def _recorded_step(self, block: Block, plan: Tensor) -> Callable[[Tensor, Tensor, Tensor], None]:
        """Return the step as a CUDA graph with static inputs; recording restores the state."""
        if self._recorded is None:
            inputs = block.rows[0].clone(), block.draws[0].clone(), plan[0].clone()
            before = self.snapshot()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP):
                    self._step(*inputs)
            torch.cuda.current_stream().wait_stream(side)
            self._forget_gradients()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.method.generator)
            with torch.cuda.graph(graph):
                self._step(*inputs)
            self.restore(before)
            self._recorded = functools.partial(_replay, graph, inputs)
        return self._recorded

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name: the content of a checkpoint."""
        state = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        if self.average is not None:
            state |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        names: dict[Tensor, str] = {p: name for name, p in self.method.named_parameters()}
        if self.auxiliary is not None:
            names |= {p: f"auxiliary.{name}" for name, p in self.auxiliary.named_parameters()}
            state |= {f"auxiliary.{name}": tensor for name, tensor in self.auxiliary.state_dict().items()}
        for optimizer in self.optimizers:
            kind = type(optimizer).__name__.lower()
            for p, own in optimizer.state.items():
                state |= {f"{kind}.{names[p]}.{key}": value for key, value in own.items()}
        return state

    def weights(self) -> dict[str, Tensor]:
        """Return the state of the method for validation and saving, with averaged weights if there are any."""
        averaged = self.average or {}
        return {name: averaged.get(name, tensor) for name, tensor in self.method.state_dict().items()}

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of `tensors`."""
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a state of the same method."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])


def _replay(graph: torch.cuda.CUDAGraph, inputs: tuple[Tensor, ...], *values: Tensor) -> None:
    for place, value in zip(inputs, values, strict=True):
        place.copy_(value, non_blocking=True)
    graph.replay()

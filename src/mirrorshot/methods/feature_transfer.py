"""W.-Y. Chen, Y.-C. Liu, Z. Kira, Y.-C. Wang, J.-B. Huang, "A Closer Look at Few-shot Classification", ICLR 2019.

https://arxiv.org/abs/1904.04232

"Baseline" of that paper, called Feature Transfer in later tables. A network with a linear layer is trained to classify
all training classes, on single images without tasks. For a new task the network is fixed, and a new linear layer is
fitted to the features of the support by stochastic gradient descent in small batches.
"""

from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mirrorshot.methods.frozen_heads import FrozenFeatureMethod
from mirrorshot.methods.shared import check_positive, class_log_softmax, support_one_hot
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import TaskBatch, check_at_least

_MOMENTUM, _WEIGHT_DECAY = 0.9, 1e-3
_DAMPENING = 0.9  # equal to momentum, so steps have the length of plain descent

Head: TypeAlias = tuple[Tensor, ...]
"""Parameters of the layers of all tasks, (T, C, ...)."""


class FeatureTransfer(FrozenFeatureMethod):
    """Feature Transfer (the "Baseline" of A Closer Look at Few-shot Classification).

    The heads of all tasks are fitted at once, by `n_passes` over the support in steps of `batch_size` points. Initial
    heads and the order of the support are drawn from `generator` and shared by all tasks: row i of the random numbers
    belongs to the i-th real point and to class i, so padding changes nothing.

    Design note: `predict` draws from a copy of the generator, so it is a function of seed and tasks, and tasks have the
    same results in every batch. Gradients of a head are written out, without a graph of 700 steps; `loss`, which
    training does not use, has the gradient at a fixed head.
    """

    def __init__(
        self, backbone: Backbone, *, n_passes: int = 100, batch_size: int = 4, lr: float = 0.01, **options: Any
    ) -> None:
        super().__init__(backbone, **options)
        check_at_least(1, n_passes=n_passes, batch_size=batch_size)
        check_positive(lr=lr)
        self.n_passes, self.batch_size, self.lr = n_passes, batch_size, lr

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the outputs of a head fitted to the support."""
        support, query = self.features(tasks)
        return class_log_softmax(self._logits(self._fit(support.detach(), tasks), query), tasks.class_mask)

    @torch.no_grad()
    def _fit(self, z: Float[Tensor, "T N D"], tasks: TaskBatch) -> Head:
        draws = _draw(max(tasks.n_way, z.shape[1]), z.shape[2] + 1 + self.n_passes, self.generator).to(z)
        start, places = draws[: tasks.n_way, : z.shape[2] + 1], draws[: z.shape[1], z.shape[2] + 1 :]
        head = tuple(part.expand(len(z), *part.shape).clone() for part in self._start(2 * start - 1))
        order, target = _orders(tasks.support_weight > 0, places), support_one_hot(tasks, z.dtype).mT
        velocity: Head | None = None
        for index in (part for one_pass in order for part in one_pass.split(self.batch_size, 1)):
            z_part, target_part = (torch.take_along_dim(part, index[..., None], 1) for part in (z, target))
            residual = _residual(self._logits(head, z_part), target_part, tasks.class_mask)
            gradient = self._gradient(head, z_part, residual)
            is_real = target_part.sum((1, 2)) > 0
            head, velocity = self._step(head, gradient, velocity, is_real)
        return head

    def _step(
        self, head: Head, gradient: Head, velocity: Head | None, is_real: Bool[Tensor, " T"]
    ) -> tuple[Head, Head]:
        """Take one step for tasks with points in this batch; as in torch, the first gradient is not dampened."""
        new_head, new_velocity = [], []
        for i, (p, g) in enumerate(zip(head, gradient, strict=True)):
            use = is_real.view(-1, *[1] * (p.ndim - 1))
            g = g + _WEIGHT_DECAY * p
            v = g if velocity is None else _MOMENTUM * velocity[i] + (1 - _DAMPENING) * g
            new_head.append(torch.where(use, p - self.lr * v, p))
            new_velocity.append(v if velocity is None else torch.where(use, v, velocity[i]))
        return tuple(new_head), tuple(new_velocity)

    def _start(self, draws: Float[Tensor, "C D1"]) -> Head:
        """Initial parameters (C, ...) of all tasks, from numbers uniform in [-1, 1]."""
        start = draws * (draws.shape[1] - 1) ** -0.5
        return start[:, :-1], start[:, -1]

    def _logits(self, head: Head, z: Float[Tensor, "T M D"]) -> Float[Tensor, "T M C"]:
        weight, bias = head
        return z @ weight.mT + bias[:, None, :]

    def _gradient(self, head: Head, z: Float[Tensor, "T B D"], residual: Float[Tensor, "T B C"]) -> Head:
        return residual.mT @ z, residual.sum(1)


def _draw(n_rows: int, n_columns: int, generator: torch.Generator) -> Float[Tensor, "R K"]:
    """Numbers uniform in [0, 1) whose first rows do not depend on `n_rows`; the generator does not advance."""
    copy = generator.clone_state()
    rows = [torch.rand(n_columns, generator=copy, device=copy.device, dtype=torch.float32) for _ in range(n_rows)]
    return torch.stack(rows)


def _orders(is_real: Bool[Tensor, "T N"], places: Float[Tensor, "N P"]) -> Int[Tensor, "P T N"]:
    """Order of the points in each pass: real points by their random numbers, padding last."""
    rank = (is_real.cumsum(1) - 1).clamp(min=0)
    key = places[rank].masked_fill(~is_real[..., None], torch.inf)
    return key.permute(2, 0, 1).argsort(dim=-1, stable=True)


def _residual(
    logits: Float[Tensor, "T B C"], target: Float[Tensor, "T B C"], class_mask: Bool[Tensor, "T C"]
) -> Float[Tensor, "T B C"]:
    """Gradient of the mean cross-entropy in the logits: (p - y) / B, zero for padding (targets of zero)."""
    prob = torch.softmax(logits.masked_fill(~class_mask[:, None, :], -torch.inf), -1)
    weight = target.sum(-1, keepdim=True)
    return (weight * prob - target) / weight.sum(1, keepdim=True).clamp(min=1.0)

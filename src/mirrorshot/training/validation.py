"""Validation during training: tuning on training tasks, scores on validation tasks."""

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mirrorshot.methods import FewShotMethod
from mirrorshot.training.stream import NumberedTasks
from mirrorshot.training.world import World
from mirrorshot.types import NumericalError

_TASKS_AT_ONCE = {"cpu": 10, "cuda": 50}
_TASKS_OF_FEATURES = {"cpu": 50, "cuda": 200}
_ITEMS_AT_ONCE = {"cpu": 256, "cuda": 1024}
_FIRST_TUNING_TASK = 2**40  # beyond the numbers of training tasks: other tasks of the same classes


class Score(NamedTuple):
    """Mean accuracy and NLL of the queries of the validation tasks."""

    accuracy: float
    nll: float


class Validator:
    """Evaluation of weights in `method`, an eval-mode copy of the method in training.

    `tuning` are tasks of training classes, for `tune`; the processes of `world` share the validation tasks.
    """

    def __init__(self, method: FewShotMethod, tuning: NumberedTasks, validation: NumberedTasks, world: World) -> None:
        self.method = copy.deepcopy(method).eval().requires_grad_(False)
        self._plain = copy.deepcopy(self.method)
        self._head = self.method.on_features()
        self._tuning, self._validation, self._world = tuning, validation, world

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of all parameters and buffers."""
        return {name: tensor.clone() for name, tensor in self.method.state_dict().items()}

    @torch.no_grad()
    def tune(self, weights: Mapping[str, Tensor], n_tasks: int, final: NumberedTasks | None = None) -> None:
        """Load weights, and tune the method on training tasks, the same every time; on `final` at the end of a run."""
        if final is not None:  # uncompiled: another number of tasks would cause a recompilation
            self.method = self._plain
        self.method.load_state_dict(weights)
        if self.method.is_tuned and self._world.is_first:
            self.method.seed(0)
            self.method.tune(*(final or self._tuning).tasks(range(_FIRST_TUNING_TASK, _FIRST_TUNING_TASK + n_tasks)))
        self._world.share_(self.method.buffers())

    @torch.no_grad()
    def weigh(self, n_tasks: int) -> Float[Tensor, "4"]:
        """Sum correct answers, NLL, NaN predictions and queries of this process's tasks; on a GPU only enqueued."""
        sums = torch.zeros(4, dtype=torch.float64, device=self._world.device)
        method, source, size = self._prepared(n_tasks)
        numbers = self._world.part_of(n_tasks)
        for start in range(0, len(numbers), size):
            method.seed(numbers[start])
            tasks, query_y = source.tasks(numbers[start : start + size])
            log_prob = method.predict(tasks)
            right = (log_prob.argmax(-1) == query_y).double()
            lost = -log_prob.gather(-1, query_y[..., None])[..., 0].double()
            weight = tasks.query_weight.double()
            is_nan = log_prob.isnan().any(-1).double()
            sums += torch.stack([(weight * part).sum() for part in (right, lost, is_nan)] + [weight.sum()])
        return sums

    def read(self, sums: Float[Tensor, "4"]) -> Score:
        """Return the score from the sums of all processes; a probability of zero gives an infinite NLL.

        Raises `NumericalError` if a prediction is NaN.
        """
        right, lost, n_nan, n = self._world.sum_(sums).tolist()
        if n_nan:
            raise NumericalError(
                f"Expected predictions of validation tasks to be numbers, but got NaN for {n_nan:.0f} of {n:.0f} "
                "queries. Try a lower lr or kernel_lr, or precision=float32."
            )
        return Score(right / n, lost / n)

    def _prepared(self, n_tasks: int) -> tuple[FewShotMethod, NumberedTasks, int]:
        """Return method, tasks and batch size; on features if it is less work to compute all of them once."""
        kind = self._world.device.type
        if self._head is None or self._validation.n_items > n_tasks * self._validation.n_points:
            return self.method, self._validation, _TASKS_AT_ONCE[kind]
        rest = {name: t for name, t in self.method.state_dict().items() if not name.startswith("backbone.")}
        self._head.load_state_dict(rest)
        chunks = self._validation.chunks(_ITEMS_AT_ONCE[kind])
        features = torch.cat([self.method.embed(chunk)[0] for chunk in chunks])[: self._validation.n_items]
        return self._head, self._validation.with_items(features), _TASKS_OF_FEATURES[kind]

    def describe(self) -> dict[str, float]:
        """Return the scalars stored as logarithms, such as kernel parameters and a temperature."""
        scalars = [*self.method.named_parameters(), *self.method.named_buffers()]
        return {
            name.rpartition(".")[2].removeprefix("log_"): float(t.exp())
            for name, t in scalars
            if name.rpartition(".")[2].startswith("log_") and t.numel() == 1
        }

"""C. Finn, P. Abbeel and S. Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.

MAML, https://arxiv.org/abs/1703.03400

A network with a linear head is adapted to each task by a few gradient steps on its support, and classifies the queries
with the adapted weights. Training learns the initial weights: it minimises the cross-entropy of the queries after
adaptation, through the steps, with second derivatives. First-order MAML treats the gradients of the steps as constants.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mirrorshot.methods.base import query_nll
from mirrorshot.methods.per_task import AdaptedMethod, LabelledItems, call_network, compiled, side_by_side
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS, Recipe
from mirrorshot.methods.shared import class_log_softmax, linear_layer, mean_nll
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import InvalidInputError, TaskBatch

Weights = Mapping[str, Tensor]
Step = Callable[["MAML", Weights, LabelledItems, Tensor], Weights]
Classify = Callable[["MAML", Weights, Tensor, Tensor, Tensor], Tensor]


class MAML(AdaptedMethod):
    """Model-agnostic meta-learning, of second or first order.

    All parameters adapt: convolutions, scales and shifts of batch normalisation, and the head. The head has one output
    per class slot, so **renaming the classes changes the predictions**, and tasks must have as many classes as the
    head; tasks with fewer are padded.

    Batch normalisation never uses running statistics. With `transductive=True`, as in the references, the queries of a
    task are normalised together, so **the prediction of one query depends on the others**, and accuracies do not apply
    to single queries.

    The loss of a step is the mean over its tasks. The references use the sum over `tasks_per_step=4` tasks (32 for
    characters), which is equivalent for Adam.

    Design note: `accelerate` compiles one step of one task with its derivatives, and processes tasks one after the
    other. Without it, a GPU adapts tasks in parallel with `torch.func.vmap`, which turns convolutions into grouped ones
    and takes 2.7 to 3.7 times as long (benchmarks/adapted_steps.py). Norms are replaced, because padding must not count
    and vmap cannot write running statistics; convolutions are replaced for faster second derivatives.

    Args:
        transductive: normalise the queries by their own statistics instead of those of the support.
        **options: those of `AdaptedMethod`. The references use 5 steps of 0.01; for characters, one step of 0.1.
    """

    recipes = (
        Recipe({"tasks_per_step": 4}),
        Recipe({"method_options": {"n_steps": 1, "step_size": 0.1}}, kind="characters"),
        MUON_ON_PHOTOGRAPHS,
        Recipe({"validate_every": 2000, "n_validation_tasks": 200}, is_benchmark=True),
    )

    def __init__(self, backbone: Backbone, *, transductive: bool = True, seed: int = 0, **options: Any) -> None:
        super().__init__(backbone, **options)
        self.transductive, generator = transductive, torch.Generator().manual_seed(seed)
        self.head = linear_layer(backbone.out_features, self.n_way, generator, zero_bias=True)
        self._compiled: tuple[Step, Classify] | None = None

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Mean cross-entropy of the queries after adaptation."""
        return query_nll(self._log_prob(tasks, self.n_steps), tasks, query_y)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the adapted logits."""
        return self._log_prob(tasks, self.n_test_steps)

    def accelerate(self) -> None:
        """Compile one step of one task and the adapted network, for train mode only: it takes a minute."""
        self._compiled = compiled(_step), compiled(_classify)

    def forward(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N C"]:
        """Logits of the items of one task, with the current weights."""
        return self.head(self.embed(x[None])[0].flatten(1))

    def _log_prob(self, tasks: TaskBatch, n_steps: int) -> Float[Tensor, "T M C"]:
        self._check_way(tasks)
        functions = self._compiled if self.training else None
        step, classify = functions or (_step, _classify)
        start: Weights = dict(self.named_parameters())
        if functions:  # same layout as after a step
            start = {name: _laid_out(weight) for name, weight in start.items()}

        def one_task(x: Tensor, y: Tensor, query: Tensor, counts: Tensor, query_counts: Tensor, mask: Tensor) -> Tensor:
            weights = start
            for _ in range(n_steps):
                weights = step(self, weights, LabelledItems(x, y, counts), mask)
            if self.transductive:
                return classify(self, weights, query, query_counts, mask)
            both, only_support = torch.cat([x, query]), torch.cat([counts, torch.zeros_like(query_counts)])
            return classify(self, weights, both, only_support, mask)[len(x) :]

        x, y, query, _, counts, query_counts, mask = tasks
        return side_by_side(one_task, x, y, query, counts, query_counts, mask, in_turn=functions is not None)

    def _check_way(self, tasks: TaskBatch) -> None:
        if tasks.n_way != self.n_way:
            raise InvalidInputError(
                f"Expected tasks of {self.n_way} classes, as many as the learned head has outputs, but got "
                f"{tasks.n_way}. Train with n_way={tasks.n_way}, or use a method without such a head, for instance "
                "protonet."
            )


def _step(method: MAML, weights: Weights, support: LabelledItems, class_mask: Bool[Tensor, " C"]) -> Weights:
    def support_loss(weights: Weights) -> Tensor:
        log_prob = _classify(method, weights, support.x, support.counts, class_mask)
        return mean_nll(log_prob, support.y, support.counts)

    slope = method._slope(support_loss, weights)
    return {name: _laid_out(weight - method.step_size * slope[name]) for name, weight in weights.items()}


def _laid_out(weight: Tensor) -> Tensor:
    """Return the same values in one layout, including strides of single channels: torch compiles for each layout."""
    return weight.flatten().view(weight.shape)


def _classify(
    method: MAML, weights: Weights, x: Shaped[Tensor, "N ..."], counts: Float[Tensor, " N"], mask: Bool[Tensor, " C"]
) -> Float[Tensor, "N C"]:
    """Log-probabilities of the items of one task; `counts` are their weights in batch normalisation."""
    return class_log_softmax(call_network(method, weights, method._norms, x, counts), mask)

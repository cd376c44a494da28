"""C. Finn, P. Abbeel and S. Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017.

MAML, https://arxiv.org/abs/1703.03400

A network with a linear head is adapted to each task by a few gradient steps on its labelled items, and classifies the
queries with the adapted weights. What is learned over many tasks is where these steps start. Training descends the
cross-entropy of the queries after adaptation, through the steps, which takes second derivatives. First-order MAML
takes the gradients of the steps as constants.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.func import grad

from mirrorshot.methods.base import FewShotMethod, query_nll
from mirrorshot.methods.per_task import call_network, compiled, replace_layers, side_by_side
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS, Recipe
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import InvalidInputError, TaskBatch

Weights = Mapping[str, Tensor]
Step = Callable[["MAML", Weights, Tensor, Tensor, Tensor, Tensor], Weights]
Classify = Callable[["MAML", Weights, Tensor, Tensor, Tensor], Tensor]


class MAML(FewShotMethod):
    """Model-agnostic meta-learning, of second or first order.

    All parameters adapt: convolutions, scales and shifts of batch normalisation, and the head. Probabilities are the
    softmax of the adapted logits. The head has one output for each class slot, so **renaming the classes changes the
    predictions**, and tasks have as many classes as the head; tasks with fewer are padded.

    Batch normalisation never uses running statistics. With `transductive=True`, as in the references, the queries of a
    task are normalised together, so that **the prediction of one query depends on the others**, and accuracies are not
    those of queries that come one by one. With False they are normalised by the statistics of the support.

    The loss of a step is the mean over its tasks. The references take the sum of `tasks_per_step=4` tasks (32 for
    characters), which is the same for Adam.

    Design note: `accelerate` compiles one step of one task with its derivatives, and tasks follow one another. Without
    it tasks are adapted side by side on a GPU, with `torch.func.vmap`, which makes the convolutions grouped ones and
    takes 2.7 to 3.7 times as long (benchmarks/adapted_steps.py). Norms are replaced, because padding must not count and
    vmap cannot write running statistics, and convolutions for the sake of their second derivatives.

    Args:
        backbone: from items to features. The method takes it over and replaces its layers.
        n_way: number of classes; the trainer fills it in.
        n_steps: gradient steps on the support.
        step_size: their length. The references take 5 steps of 0.01, for characters one of 0.1.
        n_test_steps: steps of `predict`; None: `n_steps`.
        first_order: take the gradients of the steps as constants.
        transductive: normalise the queries by their own statistics, not those of the support.
        seed: of the initial weights of the head, whose biases are zero; the trainer derives it from that of the run.

    Example:
        >>> from mirrorshot.networks.backbones import make_backbone
        >>> from mirrorshot.data import ClassSource, EpisodeSampler
        >>> source = ClassSource.from_arrays(torch.randn(60, 8), torch.arange(60) % 6)
        >>> tasks, query_y = EpisodeSampler(source, n_way=5, n_shot=1, n_query=3, seed=0).draw(2)
        >>> method = MAML(make_backbone("identity", in_features=8), n_way=5)
        >>> method.predict(tasks).exp().sum(-1).allclose(torch.ones(2, 15))
        True
    """

    recipes = (
        Recipe({"tasks_per_step": 4}),
        Recipe({"method_options": {"n_steps": 1, "step_size": 0.1}}, kind="characters"),
        MUON_ON_PHOTOGRAPHS,
        Recipe({"validate_every": 2000, "n_validation_tasks": 200}, is_benchmark=True),
    )
    is_by_features = False

    def __init__(
        self,
        backbone: Backbone,
        *,
        n_way: int = 5,
        n_steps: int = 5,
        step_size: float = 0.01,
        n_test_steps: int | None = None,
        first_order: bool = False,
        transductive: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(backbone)
        _check_options(n_way, n_steps, step_size, n_test_steps)
        self.n_way, self.n_steps, self.step_size = n_way, n_steps, step_size
        self.n_test_steps = n_steps if n_test_steps is None else n_test_steps
        self.first_order, self.transductive = first_order, transductive
        self.head: nn.Linear = nn.utils.skip_init(nn.Linear, backbone.out_features, n_way)
        bound, generator = backbone.out_features**-0.5, torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.uniform_(-bound, bound, generator=generator)
            self.head.bias.zero_()
        self._norms = replace_layers(backbone, "backbone")
        self._compiled: tuple[Step, Classify] | None = None

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Mean cross-entropy of the queries after adaptation."""
        return query_nll(self._log_prob(tasks, self.n_steps), tasks, query_y)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the adapted logits."""
        return self._log_prob(tasks, self.n_test_steps)

    def accelerate(self) -> None:
        """Compile one step of one task with its derivatives, and the network after it.

        They are used in train mode: compiling takes a minute, which validations do not win back.
        """
        self._compiled = compiled(_step), compiled(_classify)

    def forward(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N C"]:
        """Logits of the items of one task, with the weights of this moment."""
        return self.head(self.embed(x[None])[0].flatten(1))  # type: ignore[no-any-return]

    def _log_prob(self, tasks: TaskBatch, n_steps: int) -> Float[Tensor, "T M C"]:
        self._check_way(tasks)
        functions = self._compiled if self.training else None
        step, classify = functions or (_step, _classify)
        start: Weights = dict(self.named_parameters())
        if functions:  # as a step returns them
            start = {name: _laid_out(weight) for name, weight in start.items()}

        def one_task(x: Tensor, y: Tensor, query: Tensor, counts: Tensor, query_counts: Tensor, mask: Tensor) -> Tensor:
            weights = start
            for _ in range(n_steps):
                weights = step(self, weights, x, y, counts, mask)
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


def _step(
    method: MAML,
    weights: Weights,
    x: Shaped[Tensor, "N ..."],
    y: Int[Tensor, " N"],
    counts: Float[Tensor, " N"],
    class_mask: Bool[Tensor, " C"],
) -> Weights:
    """Weights after a step of gradient descent on the cross-entropy of the support of one task."""

    def support_loss(weights: Weights) -> Tensor:
        score = _classify(method, weights, x, counts, class_mask).gather(1, y[:, None])[:, 0]
        return -(counts.to(score.dtype) * score.masked_fill(counts == 0, 0.0)).sum() / counts.sum()

    # an outer no_grad does not reach what `grad` does, only derivatives of its result
    with torch.set_grad_enabled(torch.is_grad_enabled() and not method.first_order):
        slope = grad(support_loss)(weights)
    return {name: _laid_out(weight - method.step_size * slope[name]) for name, weight in weights.items()}


def _laid_out(weight: Tensor) -> Tensor:
    """The same numbers in one layout, strides of single channels included: each other one would be compiled for."""
    return weight.flatten().view(weight.shape)


def _classify(
    method: MAML,
    weights: Weights,
    x: Shaped[Tensor, "N ..."],
    counts: Float[Tensor, " N"],
    class_mask: Bool[Tensor, " C"],
) -> Float[Tensor, "N C"]:
    """Log-probabilities of the items of one task; `counts`: how much each counts in batch normalisation."""
    logits = call_network(method, weights, method._norms, x, counts)
    return logits.masked_fill(~class_mask, -torch.inf).log_softmax(-1)


def _check_options(n_way: int, n_steps: int, step_size: float, n_test_steps: int | None) -> None:
    for name, value, low in (("n_way", n_way, 2), ("n_steps", n_steps, 0), ("n_test_steps", n_test_steps or 0, 0)):
        if value < low:
            raise InvalidInputError(f"Expected `{name}` to be at least {low}, but got {value}.")
    if not 0 < step_size < float("inf"):
        raise InvalidInputError(f"Expected `step_size` to be positive, but got {step_size}.")

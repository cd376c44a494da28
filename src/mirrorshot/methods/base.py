"""What a few-shot method is: something that learns over many tasks and then classifies the queries of new ones."""

import abc
import copy
import itertools
from collections.abc import Callable
from typing import ClassVar, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.methods.recipe import Recipe
from mirrorshot.networks.backbones import Backbone, Identity, ImageBackbone
from mirrorshot.types import InvalidInputError, TaskBatch


class FewShotMethod(nn.Module, abc.ABC):
    """Base of all methods. A new method is one file with two functions, `loss` and `predict`.

    Items of the tasks are what the backbone takes: normalised floating-point pictures, or embeddings.

    Design note: the labels of the queries are an argument of `loss` alone, so `predict` cannot leak them. `loss` and
    `predict` never look at values on the device (no `.item()`), so that a whole training step can be recorded
    once and replayed; what has to look goes into `tune`. Stochastic methods draw from `generator` alone, which whoever
    calls them seeds: the same seed and tasks give the same result, before and after a resume.

    Args:
        backbone: from items to features.

    Attributes:
        network_dtype: type in which the backbone computes, for instance bfloat16; None: that of its parameters.
        is_by_features: whether the method sees an item only through the features that a backbone with fixed weights
            gives it, so that at test time they can be computed once for all tasks.
        recipes: settings that the method recommends, on top of those of its base classes and of a preset.
    """

    is_by_features = True
    recipes: ClassVar[tuple[Recipe, ...]] = (
        Recipe({"validate_every": 200, "n_validation_tasks": 500, "same_steps": True}, is_benchmark=True),
    )

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.network_dtype: torch.dtype | None = None
        self._seed, self._generator = 0, cast("torch.Generator | None", None)

    @classmethod
    def all_recipes(cls) -> list[Recipe]:
        """Return the recipes of the method and of its base classes, the general ones first."""
        return [recipe for base in reversed(cls.__mro__) for recipe in vars(base).get("recipes", ())]

    @abc.abstractmethod
    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """What training makes small, of each task, in nats per point."""

    @abc.abstractmethod
    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Logarithm of the class probabilities of every query; `-inf` for classes that a task does not have."""

    def predict_latent(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T M C"], Float[Tensor, "T M C"]] | None:
        """Mean and variance of Gaussian latents f whose `E[softmax(f)]` is the prediction before any temperature.

        Default: None, the method has no such latents. With them there can be a temperature inside the likelihood, and
        uncertainty has an epistemic and an aleatoric part.
        """
        return None

    @property
    def is_tuned(self) -> bool:
        """Whether `tune` does anything. Default: if it is overridden."""
        return type(self).tune is not FewShotMethod.tune

    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Fit, on training tasks, what is not learned by gradients (default: nothing). Called before validations."""
        return

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by the name of their learning rate: "network", and "kernel" if the method has one."""
        return {"network": list(self.parameters())}

    def seed(self, seed: int) -> None:
        """Make all further draws of a stochastic method a function of this number; the others draw nothing."""
        self._seed = seed
        if self._generator is not None:
            self._generator.manual_seed(seed)  # the same one: a recorded step draws from it

    @property
    def generator(self) -> torch.Generator:
        """Source of random numbers for stochastic methods, on the device of their parameters and buffers."""
        device = next(itertools.chain(self.parameters(), self.buffers()), torch.empty(0)).device
        if self._generator is None or self._generator.device != device:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self._generator

    def is_recordable(self, n_points: int, n_way: int) -> bool:
        """Whether `loss` of tasks with so many points and classes can be recorded as a CUDA graph. Default: yes."""
        return True

    def accelerate(self) -> None:
        """Compile what pays on a GPU; results stay the same to rounding. Default: the backbone."""
        self.backbone.compile(dynamic=False)

    def on_features(self) -> "FewShotMethod | None":
        """A copy of the method that takes features in place of items; None if it needs more than a vector of them.

        Design note: in eval mode the features of an item do not depend on the items beside it. They can be computed
        once for all tasks, and the predictions are those of the whole method, up to rounding.
        """
        if not self.is_by_features or len(self.backbone.out_shape) > 1:
            return None
        backbone = self.backbone
        memo = {id(backbone): Identity(backbone.out_features)}  # the network itself need not be copied
        return copy.deepcopy(self, memo)

    def features(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T N *D"], Float[Tensor, "T M *D"]]:
        """Features of support and query, through the backbone in one pass (so in train mode they share statistics)."""
        n_support = tasks.support_x.shape[1]
        z = self.embed(torch.cat([tasks.support_x, tasks.query_x], 1))
        return z[:, :n_support], z[:, n_support:]

    def network_precision(self, device: torch.device) -> torch.autocast:
        """A context in which operations of the network have its type."""
        return torch.autocast(device.type, self.network_dtype, enabled=self.network_dtype is not None)

    def embed(self, x: Shaped[Tensor, "T N *item"], *, one_view: bool = False) -> Float[Tensor, "T N *features"]:
        """Features of items, in the type of the network, and at least in single precision.

        Args:
            x: the items.
            one_view: as training has them, also where both sides of a picture are averaged.
        """
        network: Callable[[Tensor], Tensor] = self.backbone
        if one_view and isinstance(self.backbone, ImageBackbone) and self.backbone.average_flips:
            network = self.backbone.one_view
        with self.network_precision(x.device):
            z = network(x)
        # a network may run in half precision, probabilities never do
        return z if z.dtype == torch.float64 else z.float()


class PretrainedMethod(FewShotMethod):
    """Base of methods that learn to tell all training classes apart, from batches of single items.

    New tasks get a head of their own on the features of the trained network.

    Args:
        backbone: from items to features.
        n_base_classes: number of training classes; the trainer fills it in.
    """

    # 64 images a step: validation accuracy on mini-ImageNet -> CUB, 1 / 5 shots, Baseline++ after 24,000 steps, is
    # 0.437 / 0.587, and 0.389 / 0.529 with the 16 of the references
    recipes: ClassVar[tuple[Recipe, ...]] = (
        Recipe({"validate_every": 1000, "n_validation_tasks": 300}, is_benchmark=True),
        Recipe({"batch_size": 64}, preset="default", kind="photographs", is_benchmark=True),
    )

    def __init__(self, backbone: Backbone, *, n_base_classes: int = 0) -> None:
        super().__init__(backbone)
        if n_base_classes < 2:
            raise InvalidInputError(
                "Expected `n_base_classes` to be the number of training classes, at least 2, but got "
                f"{n_base_classes}. {type(self).__name__} learns from labels of all training classes; where there are "
                "none, use an episodic method, for instance protonet."
            )
        self.n_base_classes = n_base_classes

    @abc.abstractmethod
    def classification_loss(self, x: Shaped[Tensor, "N ..."], y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """What training makes small, of each item of a training class, in nats."""

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Mean NLL of the queries; training does not use it."""
        return query_nll(self.predict(tasks), tasks, query_y)


def query_nll(log_prob: Float[Tensor, "T M C"], tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
    """Mean cross-entropy of the queries of each task, padding left out."""
    score = log_prob.gather(-1, query_y[..., None])[..., 0]
    weight = tasks.query_weight.to(score.dtype)
    return -(weight * score.masked_fill(weight == 0, 0.0)).sum(-1) / weight.sum(-1)

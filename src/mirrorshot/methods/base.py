"""Base classes of few-shot methods, which are trained on many tasks and classify the queries of new ones."""

import abc
import copy
import itertools
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.methods.recipe import Recipe
from mirrorshot.methods.shared import in_parts, mean_nll
from mirrorshot.metrics import fit_temperature
from mirrorshot.networks.backbones import Backbone, Identity, ImageBackbone
from mirrorshot.types import InvalidInputError, TaskBatch


class FewShotMethod(nn.Module, abc.ABC):
    """Base class of all methods. A new method defines `predict` and, for another training objective, `loss`.

    Items of the tasks are inputs of the backbone: normalised floating-point images, or embeddings.

    Design note: only `loss` gets the labels of the queries, so `predict` cannot leak them. `loss` and `predict` never
    read values from the device (no `.item()`), so a training step can be recorded and replayed; `tune` may. Stochastic
    methods draw only from `generator`, which the caller seeds: the same seed and tasks give the same result, also after
    a resume.

    The trainer sets the options `n_way` and `n_base_classes`, and derives `seed`, for initial weights outside the
    network, from the seed of the run. `recipes` are recommended settings, which override those of base classes and of a
    preset. `is_by_features`: the method uses items only through their features, which can be computed once for all
    tasks at test.
    """

    is_by_features = True
    recipes: ClassVar[tuple[Recipe, ...]] = (
        Recipe({"validate_every": 200, "n_validation_tasks": 500, "same_steps": True}, is_benchmark=True),
    )

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.network_dtype: torch.dtype | None = None  # dtype of the backbone's computations; None: of its parameters
        self.listener: Callable[[Tensor], None] | None = None  # called with the features of every `embed`
        self._seed = 0
        self._generator: torch.Generator | None = None

    @classmethod
    def all_recipes(cls) -> list[Recipe]:
        """Return the recipes of the method and its base classes, the most general first."""
        return [recipe for base in reversed(cls.__mro__) for recipe in vars(base).get("recipes", ())]

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Training loss of each task, in nats per point. Default: mean cross-entropy of the queries."""
        return query_nll(self.predict(tasks), tasks, query_y)

    @abc.abstractmethod
    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the classes for every query; `-inf` for missing classes."""

    def predict_latent(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T M C"], Float[Tensor, "T M C"]] | None:
        """Mean and variance of Gaussian latents f; `E[softmax(f)]` is the prediction before any temperature.

        Default: None. Latents allow a temperature inside the likelihood, and separate epistemic and aleatoric
        uncertainty.
        """
        return None

    @property
    def is_tuned(self) -> bool:
        """Whether `tune` has an effect. Default: whether it is overridden."""
        return type(self).tune is not FewShotMethod.tune

    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Fit quantities without gradients on training tasks, before validations. Default: nothing."""
        return

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """All parameters by the name of their learning rate: "network", and "kernel" if the method has one."""
        return {"network": list(self.parameters())}

    def seed(self, seed: int) -> None:
        """Seed the generator of a stochastic method; no effect for other methods."""
        self._seed = seed
        if self._generator is not None:
            self._generator.manual_seed(seed)  # not replaced, because a recorded step draws from it

    @property
    def generator(self) -> torch.Generator:
        """Random generator of stochastic methods, on the device of their parameters and buffers."""
        device = next(itertools.chain(self.parameters(), self.buffers()), torch.empty(0)).device
        if self._generator is None or self._generator.device != device:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self._generator

    def is_recordable(self, n_points: int, n_way: int) -> bool:
        """Whether `loss` can be recorded as a CUDA graph for tasks of this size. Default: yes."""
        return True

    def accelerate(self) -> None:
        """Compile for a GPU; results stay the same up to rounding. Default: the backbone."""
        self.backbone.compile(dynamic=False)

    def on_features(self) -> "FewShotMethod | None":
        """A copy of the method that takes features instead of items; None if it needs more than a feature vector.

        In eval mode the features of an item do not depend on other items, so predictions are the same up to rounding.
        """
        if not self.is_by_features or len(self.backbone.out_shape) > 1:
            return None
        memo = {id(self.backbone): Identity(self.backbone.out_features)}  # avoids a copy of the network
        return copy.deepcopy(self, memo)

    def features(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T N *D"], Float[Tensor, "T M *D"]]:
        """Features of support and query, from one pass through the backbone (with shared statistics in train mode)."""
        n_support = tasks.support_x.shape[1]
        z = self.embed(torch.cat([tasks.support_x, tasks.query_x], 1))
        return z[:, :n_support], z[:, n_support:]

    def network_precision(self, device: torch.device) -> torch.autocast:
        """Autocast context with the dtype of the network."""
        return torch.autocast(device.type, self.network_dtype, enabled=self.network_dtype is not None)

    def embed(self, x: Shaped[Tensor, "T N *item"], *, one_view: bool = False) -> Float[Tensor, "T N *features"]:
        """Features of items; with `one_view` without averaging over flips, as in training."""
        network: Callable[[Tensor], Tensor] = self.backbone
        if one_view and isinstance(self.backbone, ImageBackbone) and self.backbone.average_flips:
            network = self.backbone.one_view
        with self.network_precision(x.device):
            z = network(x)
        # the network may run in half precision, but not the probabilities
        z = z if z.dtype == torch.float64 else z.float()
        if self.listener is not None:
            self.listener(z)
        return z


class PretrainedMethod(FewShotMethod):
    """Base class of methods trained to classify `n_base_classes` training classes, from batches of single items.

    New tasks get their own head on the features of the trained network.
    """

    # 64 images per step: validation accuracy of Baseline++ on mini-ImageNet -> CUB, 1 / 5 shots, after 24,000 steps:
    # 0.437 / 0.587, but 0.389 / 0.529 with 16 images as in the references
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
        """Training loss of each item, in nats. Training does not use `loss`."""


class FittedTemperature(FewShotMethod):
    """Base class of methods with a predictive temperature, fitted by `tune` if `has_temperature`."""

    has_temperature: bool
    log_temperature: Tensor

    @abc.abstractmethod
    def _raw_log_prob(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the queries at temperature 1."""

    @property
    def is_tuned(self) -> bool:
        """Whether there is a temperature to fit."""
        return self.has_temperature

    @torch.no_grad()
    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Fit the temperature on predictions for training tasks."""
        if self.has_temperature:
            log_prob = torch.cat([self._raw_log_prob(part) for part in in_parts(tasks)])
            self.log_temperature.fill_(fit_temperature(log_prob, query_y, tasks.query_weight)).log_()


def query_nll(log_prob: Float[Tensor, "T M C"], tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
    """Mean cross-entropy of the queries of each task, without padding."""
    return mean_nll(log_prob, query_y, tasks.query_weight)

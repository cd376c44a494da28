"""What methods share that pre-train a network as an ordinary classifier and give new tasks a head on its features."""

import abc
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.methods.base import PretrainedMethod
from mirrorshot.methods.shared import class_log_softmax, in_parts
from mirrorshot.metrics import fit_temperature
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import InvalidInputError, TaskBatch


class FrozenFeatureMethod(PretrainedMethod):
    """Pre-training with a linear layer for all training classes; features of new tasks are fixed.

    With backbone "identity" there is no network to train: all that pre-training moves is the layer, which new tasks do
    not use.

    Feature maps are flattened.

    Args:
        backbone: from items to features.
        n_base_classes: number of training classes; the trainer fills it in.
        seed: of the initial weights of the layer; the trainer derives it from that of the run.
    """

    def __init__(self, backbone: Backbone, *, n_base_classes: int = 0, seed: int = 0) -> None:
        super().__init__(backbone, n_base_classes=n_base_classes)
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, backbone.out_features, n_base_classes)  # without a draw
        initial_weights_(layer.weight, torch.Generator().manual_seed(seed))
        nn.init.zeros_(layer.bias)
        self.classifier: nn.Module = layer

    def classification_loss(self, x: Shaped[Tensor, "N ..."], y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Cross-entropy of each item under the layer over all training classes."""
        z = self.embed(x[None])[0].flatten(1)
        logits = self.classifier(z.to(next(self.classifier.parameters()).dtype))
        return F.cross_entropy(logits, y, reduction="none")

    def features(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T N D"], Float[Tensor, "T M D"]]:
        """Features of support and query, maps flattened."""
        support, query = super().features(tasks)
        return support.flatten(2), query.flatten(2)


class TemperedMethod(FrozenFeatureMethod):
    """A frozen-feature method whose scores are no log-probabilities: their softmax at a fitted temperature is.

    Args:
        backbone: from items to features.
        n_base_classes: number of training classes; the trainer fills it in.
        temperature: what scores are divided by. None: `tune` fits it to training tasks; until then it is 1.
        seed: as in `FrozenFeatureMethod`.
    """

    log_temperature: Tensor

    def __init__(
        self, backbone: Backbone, *, n_base_classes: int = 0, temperature: float | None = None, seed: int = 0
    ) -> None:
        super().__init__(backbone, n_base_classes=n_base_classes, seed=seed)
        if temperature is not None and not (temperature > 0.0 and math.isfinite(temperature)):
            raise InvalidInputError(f"Expected `temperature` to be positive or None, but got {temperature}.")
        self.has_temperature = temperature is None
        self.register_buffer("log_temperature", torch.tensor(math.log(temperature or 1.0)))

    @abc.abstractmethod
    def _scores(
        self, support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], tasks: TaskBatch
    ) -> Float[Tensor, "T M C"]:
        """The larger, the likelier is the class; whatever for classes that do not exist."""

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the scores over the temperature."""
        scores = self._scores(*self.features(tasks), tasks)
        return class_log_softmax(scores / self.log_temperature.exp().to(scores.dtype), tasks)

    @property
    def is_tuned(self) -> bool:
        """Whether there is a temperature to fit."""
        return self.has_temperature

    @torch.no_grad()
    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Fit the temperature to the scores of training tasks."""
        if self.has_temperature:
            parts = [class_log_softmax(self._scores(*self.features(part), part), part) for part in in_parts(tasks)]
            temperature = fit_temperature(torch.cat(parts), query_y, tasks.query_weight)
            self.log_temperature.fill_(temperature).log_()


def initial_weights_(weight: Float[Tensor, "C D"], generator: torch.Generator) -> None:
    """Fill with the usual start of a linear layer, uniform up to D^-1/2.

    Example:
        >>> weight = torch.empty(3, 100)
        >>> initial_weights_(weight, torch.Generator().manual_seed(0))
        >>> bool((weight.abs() <= 0.1).all()), round(float(weight.std()), 2)
        (True, 0.06)
    """
    bound = weight.shape[1] ** -0.5
    nn.init.uniform_(weight, -bound, bound, generator=generator)

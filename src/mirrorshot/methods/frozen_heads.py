"""Base classes of methods that pre-train a network as a classifier and fit a head on its features."""

import abc
import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from mirrorshot.methods.base import FittedTemperature, PretrainedMethod
from mirrorshot.methods.shared import class_log_softmax, linear_layer
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import InvalidInputError, TaskBatch


class FrozenFeatureMethod(PretrainedMethod):
    """Pre-training with a linear layer for all training classes; fixed features of new tasks, with flattened maps.

    With backbone "identity" there is no network to train, and new tasks do not use the layer.
    """

    def __init__(self, backbone: Backbone, *, n_base_classes: int = 0, seed: int = 0) -> None:
        super().__init__(backbone, n_base_classes=n_base_classes)
        generator = torch.Generator().manual_seed(seed)
        self.classifier: nn.Module = linear_layer(backbone.out_features, n_base_classes, generator, zero_bias=True)

    def classification_loss(self, x: Shaped[Tensor, "N ..."], y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Cross-entropy of each item under the layer for all training classes."""
        z = self.embed(x[None])[0].flatten(1)
        logits = self.classifier(z.to(next(self.classifier.parameters()).dtype))
        return F.cross_entropy(logits, y, reduction="none")

    def features(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T N D"], Float[Tensor, "T M D"]]:
        """Features of support and query, with flattened maps."""
        support, query = super().features(tasks)
        return support.flatten(2), query.flatten(2)


class TemperedMethod(FrozenFeatureMethod, FittedTemperature):
    """A frozen-feature method whose probabilities are the softmax of scores over a temperature.

    `temperature` divides the scores. None: 1 until `tune` fits it on training tasks.
    """

    def __init__(self, backbone: Backbone, *, temperature: float | None = None, **options: Any) -> None:
        super().__init__(backbone, **options)
        if temperature is not None and not (temperature > 0.0 and math.isfinite(temperature)):
            raise InvalidInputError(f"Expected `temperature` to be positive or None, but got {temperature}.")
        self.has_temperature = temperature is None
        self.register_buffer("log_temperature", torch.tensor(math.log(temperature or 1.0)))

    @abc.abstractmethod
    def _scores(
        self, support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], tasks: TaskBatch
    ) -> Float[Tensor, "T M C"]:
        """Scores, larger for more likely classes; arbitrary for missing ones."""

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the scores over the temperature."""
        scores = self._scores(*self.features(tasks), tasks)
        return class_log_softmax(scores / self.log_temperature.exp().to(scores.dtype), tasks.class_mask)

    def _raw_log_prob(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        return class_log_softmax(self._scores(*self.features(tasks), tasks), tasks.class_mask)

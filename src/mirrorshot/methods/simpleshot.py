"""Y. Wang et al., "SimpleShot: Revisiting Nearest-Neighbor Classification for Few-Shot Learning", 2019 (SimpleShot).

https://arxiv.org/abs/1911.04623

The features of a network trained to classify all training classes are centred by their mean and scaled to unit length
("CL2N"). A class is the mean of these features over its labelled items, and the nearest mean is predicted. The paper
defines no probabilities: here they are the softmax of the negative squared distances over a temperature.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mirrorshot.methods.frozen_heads import TemperedMethod
from mirrorshot.methods.shared import class_means, in_parts
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import TaskBatch


class SimpleShot(TemperedMethod):
    """SimpleShot: nearest class mean of centred features of unit length.

    `tune` computes the centre from all items of training tasks, with the current network; before that it is zero.

    Rejected: a running average during pre-training, which mixes the features of earlier networks and of
    augmented images.
    """

    centre: Tensor

    def __init__(self, backbone: Backbone, **options: Any) -> None:
        super().__init__(backbone, **options)
        self.register_buffer("centre", torch.zeros(backbone.out_features))

    def _scores(
        self, support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], tasks: TaskBatch
    ) -> Float[Tensor, "T M C"]:
        means, z = class_means(self._transformed(support), tasks), self._transformed(query)
        # -|z - m|^2 + |z|^2 = 2 <z, m> - |m|^2; |z|^2 does not depend on the class
        return 2 * z @ means.mT - means.square().sum(-1)[:, None, :]

    def _transformed(self, z: Float[Tensor, "T N D"]) -> Float[Tensor, "T N D"]:
        return F.normalize(z - self.centre.to(z.dtype), dim=-1)

    @property
    def is_tuned(self) -> bool:
        """Always: there is a centre to fit."""
        return True

    @torch.no_grad()
    def tune(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> None:
        """Compute the centre from the items of training tasks, then fit the temperature on their queries."""
        total = sum(
            (weight[..., None].to(z.dtype) * z).sum((0, 1))
            for part in in_parts(tasks)
            for z, weight in zip(self.features(part), (part.support_weight, part.query_weight), strict=True)
        )
        self.centre.copy_(torch.as_tensor(total) / (tasks.support_weight.sum() + tasks.query_weight.sum()))
        super().tune(tasks, query_y)

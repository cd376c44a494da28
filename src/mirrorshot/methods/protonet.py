"""J. Snell, K. Swersky and R. Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017 (ProtoNet).

https://arxiv.org/abs/1703.05175

A class is the mean of the features of its labelled items. The logits are the negative squared Euclidean distances of a
query to these means.
"""

from jaxtyping import Float
from torch import Tensor

from mirrorshot.methods.base import FewShotMethod
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS
from mirrorshot.methods.shared import class_log_softmax, class_means
from mirrorshot.types import TaskBatch


class ProtoNet(FewShotMethod):
    """Prototypical network."""

    recipes = (MUON_ON_PHOTOGRAPHS,)

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-softmax of the negative squared distance to the mean of each class."""
        support, query = self.features(tasks)
        means = class_means(support, tasks)
        distance = (query[:, :, None, :] - means[:, None, :, :]).square().sum(-1)
        return class_log_softmax(-distance, tasks.class_mask)

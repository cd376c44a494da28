"""Y. Chen et al., "Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning", ICCV 2021.

https://arxiv.org/abs/2003.04390

The "Classifier-Baseline" of that paper, a nearest class mean by cosine. A network learns to tell all training classes
apart, as an ordinary classifier whose last layer is then dropped. A class of a new task is the mean of the features of
its labelled items, and a query belongs to the class with the largest cosine between its features and that mean.
Probabilities are the softmax of the cosines over a temperature, which is fitted to training tasks.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mirrorshot.methods.frozen_heads import TemperedMethod
from mirrorshot.methods.shared import class_means
from mirrorshot.types import TaskBatch


class NCMCosine(TemperedMethod):
    """Nearest class mean by cosine, on the features of a pre-trained classifier. Options: those of `TemperedMethod`."""

    def _scores(
        self, support: Float[Tensor, "T N D"], query: Float[Tensor, "T M D"], tasks: TaskBatch
    ) -> Float[Tensor, "T M C"]:
        """Cosine between each query and the mean of each class."""
        means = class_means(support, tasks)
        return F.normalize(query, dim=-1) @ F.normalize(means, dim=-1).mT

"""Y. Chen et al., "Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning", ICCV 2021.

https://arxiv.org/abs/2003.04390

"Classifier-Baseline" of that paper: nearest class mean by cosine, on the features of a network trained to classify all
training classes. Probabilities are the softmax of the cosines over a temperature, fitted on training tasks.
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
        means = class_means(support, tasks)
        return F.normalize(query, dim=-1) @ F.normalize(means, dim=-1).mT

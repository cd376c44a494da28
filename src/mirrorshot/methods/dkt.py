"""M. Patacchiola et al., "Bayesian Meta-Learning for the Few-Shot Setting via Deep Kernels", NeurIPS 2020 (DKT).

https://arxiv.org/abs/1910.05199

Each class has a Gaussian-process regression on the features of a network, with targets +1 for its points and -1 for all
others, so evidence and predictions have closed forms. Meta-training maximises the evidence of support and query over
the network and the kernel. The predicted class has the largest posterior mean.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mirrorshot.gp.linalg import one_hot
from mirrorshot.gp.regression import Regression, regress, regression_mean
from mirrorshot.methods.gp import Covariances, GPMethod, Points
from mirrorshot.methods.shared import check_positive, class_log_softmax
from mirrorshot.networks.backbones import Backbone
from mirrorshot.types import InvalidInputError, TaskBatch


class DKT(GPMethod):
    """Deep kernel transfer.

    Objective "ml" is the paper's. The regression has no class probabilities: as in the published calibration results,
    they are the softmax of the posterior means; with `temperature`, at the temperature that `tune` fits on training
    tasks.

    Design note: one prior mean for all classes, because their numbering is arbitrary; the published code has one per
    class slot (`per_class_mean`).

    The variance `noise` is not learned. `batch_norm` normalises the features over the batch before the kernel, at test
    with running statistics. With the cosine kernel this is the paper's BNCosSim, without it CosSim.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        noise: float = 0.1,
        batch_norm: bool = False,
        per_class_mean: bool = False,
        n_way: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(backbone, **options)
        check_positive(noise=noise)
        self.noise = noise
        self.mean = nn.Parameter(torch.zeros(n_way if per_class_mean else 1))
        self.norm = nn.BatchNorm1d(backbone.out_features) if batch_norm else None

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """The network with its last normalisation; kernel and prior mean."""
        groups = super().parameter_groups()
        norm = [] if self.norm is None else list(self.norm.parameters())
        return {"network": [*groups["network"], *norm], "kernel": [*groups["kernel"], self.mean]}

    def features(self, tasks: TaskBatch) -> tuple[Float[Tensor, "T N D"], Float[Tensor, "T M D"]]:
        """Features of support and query, normalised with `batch_norm`."""
        support, query = super().features(tasks)
        if self.norm is None:
            return support, query
        weight = torch.cat([tasks.support_weight, tasks.query_weight], 1)
        z = masked_batch_norm(self.norm, torch.cat([support, query], 1), weight)
        return z[:, : support.shape[1]], z[:, support.shape[1] :]

    def _bound(self, K: Tensor, points: Points) -> Float[Tensor, " T"]:
        evidence = self._regress(K, points).log_evidence
        return (evidence * points.class_mask).sum(-1) / points.class_mask.sum(-1)

    def _log_prob(self, tasks: TaskBatch, prior: Covariances, *, differentiable: bool) -> Float[Tensor, "T M C"]:
        fit = self._regress(prior.K, Points.of(tasks))
        return class_log_softmax(regression_mean(fit, prior.cross).mT, tasks.class_mask)

    def _regress(self, K: Tensor, points: Points) -> Regression:
        if len(self.mean) not in (1, points.n_way):
            raise InvalidInputError(
                f"Expected tasks of {len(self.mean)} classes, one for each prior mean, but got {points.n_way}. Use "
                "per_class_mean=False for tasks of any number."
            )
        targets = 2 * one_hot(points.y, points.n_way, K.dtype) - 1
        return regress(K, targets, self.mean.to(K.dtype), points.weight, noise=self.noise)


def masked_batch_norm(
    norm: nn.BatchNorm1d, z: Float[Tensor, "T N D"], weight: Float[Tensor, "T N"]
) -> Float[Tensor, "T N D"]:
    """Apply `norm` to the points of all tasks, without padding in its statistics.

    Example:
        >>> z, weight = torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([[1.0, 1.0, 0.0]])
        >>> masked_batch_norm(nn.BatchNorm1d(1, eps=0.0), z, weight)[0, :2, 0].tolist()
        [-1.0, 1.0]
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    if not norm.training:
        return norm(z.mT).mT
    share, n = weight[..., None].to(z.dtype), weight.sum().to(z.dtype)
    mean = (share * z).sum((0, 1)) / n
    var = (share * (z - mean).square()).sum((0, 1)) / n
    with torch.no_grad():
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum or 0.0)
        unbiased = var * n / (n - 1).clamp(min=1.0)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), norm.momentum or 0.0)
    return (z - mean) * torch.rsqrt(var + norm.eps) * norm.weight + norm.bias

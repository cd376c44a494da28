"""W.-Y. Chen, Y.-C. Liu, Z. Kira, Y.-C. Wang, J.-B. Huang, "A Closer Look at Few-shot Classification", ICLR 2019.

https://arxiv.org/abs/1904.04232

"Baseline++" of that paper: Feature Transfer with cosine classifiers instead of linear layers, in training and in the
heads of new tasks. A logit is the cosine between the features and the direction of a class, times a learned magnitude
per class, times a fixed scale. With the paper's scale of 2 in the heads, predictions are under-confident; fit a
temperature on validation tasks if the probabilities matter.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mirrorshot.methods.feature_transfer import FeatureTransfer, Head
from mirrorshot.methods.shared import check_positive, initial_weights_
from mirrorshot.networks.backbones import Backbone

_EPS = 1e-5  # added to the norm of features
_MANY_CLASSES, _SCALE, _SCALE_OF_MANY = 200, 2.0, 10.0


class CosineClassifier(nn.Module):
    """Cosine classifier with separately learned directions and magnitudes of the class weights, without bias.

    Example:
        >>> layer = CosineClassifier(n_features=2, n_classes=3, scale=2.0, generator=torch.Generator())
        >>> _ = layer.magnitude.data.fill_(1.0), layer.direction.data.copy_(torch.tensor([[1, 0], [0, 5], [-1, 0]]))
        >>> layer(torch.tensor([[4.0, 0.0]])).round(decimals=3)
        tensor([[ 2.,  0., -2.]], grad_fn=...)
    """

    def __init__(self, n_features: int, n_classes: int, *, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        weight = torch.empty(n_classes, n_features)
        initial_weights_(weight, n_features, generator)
        self.scale = scale
        self.direction, self.magnitude = nn.Parameter(weight), nn.Parameter(weight.norm(dim=1))

    def forward(self, z: Float[Tensor, "N D"]) -> Float[Tensor, "N C"]:
        """Logits of features."""
        return cosine_logits(z, self.direction, self.magnitude, self.scale)


class BaselinePP(FeatureTransfer):
    """Baseline++: pre-training and heads of new tasks with cosine classifiers.

    Args:
        scale: factor of the logits in training; None: 2 for up to 200 training classes, 10 for more. Heads of new tasks
            use 2.
    """

    def __init__(self, backbone: Backbone, *, scale: float | None = None, seed: int = 0, **options: Any) -> None:
        super().__init__(backbone, seed=seed, **options)
        if scale is None:
            scale = _SCALE if self.n_base_classes <= _MANY_CLASSES else _SCALE_OF_MANY
        check_positive(scale=scale)
        generator = torch.Generator().manual_seed(seed)
        self.classifier = CosineClassifier(backbone.out_features, self.n_base_classes, scale=scale, generator=generator)

    def _start(self, draws: Float[Tensor, "C D1"]) -> Head:
        direction = super()._start(draws)[0]
        return direction, direction.norm(dim=-1)

    def _logits(self, head: Head, z: Float[Tensor, "T M D"]) -> Float[Tensor, "T M C"]:
        direction, magnitude = head
        return cosine_logits(z, direction, magnitude[:, None, :], _SCALE)

    def _gradient(self, head: Head, z: Float[Tensor, "T B D"], residual: Float[Tensor, "T B C"]) -> Head:
        direction, magnitude = head
        length = direction.norm(dim=-1, keepdim=True)
        unit = direction / length
        # with r = dL/d logits and s = a r^T z/|z|: dL/dg = <v/|v|, s>, dL/dv = g / |v| (s - <v/|v|, s> v/|v|)
        slope = _SCALE * residual.mT @ _unit(z)
        along = (unit * slope).sum(-1, keepdim=True)
        return magnitude[..., None] / length * (slope - along * unit), along[..., 0]


def cosine_logits(
    z: Float[Tensor, "*T M D"], direction: Float[Tensor, "*T C D"], magnitude: Tensor, scale: float
) -> Float[Tensor, "*T M C"]:
    """`a g_c <v_c / |v_c|, z / |z|>`: the cosine to the direction of each class, times its magnitude and a scale."""
    cosine: Tensor = _unit(z) @ (direction / direction.norm(dim=-1, keepdim=True)).mT
    return scale * magnitude * cosine


def _unit(z: Float[Tensor, "*T M D"]) -> Float[Tensor, "*T M D"]:
    length: Tensor = z.norm(dim=-1, keepdim=True)
    return z / (length + _EPS)

"""F. Sung et al., "Learning to Compare: Relation Network for Few-Shot Learning", CVPR 2018 (RelationNet).

F. Sung, Y. Yang, L. Zhang, T. Xiang, P. Torr and T. Hospedales, https://arxiv.org/abs/1711.06025

The mean feature map of a class and the map of a query are stacked, and a small convolutional network computes a
relation score between 0 and 1 for the pair. Training regresses the scores to 1 for the correct class and to 0 for the
others. A variant trains with cross-entropy.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mirrorshot.gp.linalg import one_hot
from mirrorshot.methods.base import FewShotMethod, query_nll
from mirrorshot.methods.recipe import MUON_ON_PHOTOGRAPHS, Recipe
from mirrorshot.methods.shared import check_choice, class_log_softmax, linear_layer, support_one_hot
from mirrorshot.networks.backbones import Backbone
from mirrorshot.networks.blocks import ConvBlock
from mirrorshot.types import InvalidInputError, TaskBatch

Loss = Literal["mse", "softmax"]
_CHANNELS, _HIDDEN = 64, 8  # sizes of the relation network


class RelationNet(FewShotMethod):
    """Relation network. Needs feature maps: backbone conv4np, or conv4snp for small images.

    `loss` determines the probabilities, with `s` the score before the sigmoid:

    - `loss="mse"`, the paper's: the squared error to one-hot labels is minimal if `sigmoid(s_c)` is the probability of
      class c, so probabilities are the sigmoids divided by their sum.
    - `loss="softmax"`: softmax of `s`.

    In train mode the relation network normalises like the backbone, over all pairs of a call or of each task (`norm` of
    the backbone), including padding; in eval mode with running statistics, without influence of padding. Their
    `momentum` is 0.1 as in the backbone. The references use 1, that is, the statistics of the last training task alone.

    Design note: the first convolution is linear, so it is applied separately to prototypes and queries, and the results
    are added for each pair: 85 maps instead of 400, with half the channels.
    """

    recipes = (
        Recipe({"validate_every": 500, "n_validation_tasks": 200}, is_benchmark=True),
        MUON_ON_PHOTOGRAPHS,
    )
    is_by_features = False
    needs_maps = True

    def __init__(self, backbone: Backbone, *, loss: Loss = "mse", momentum: float = 0.1, seed: int = 0) -> None:
        super().__init__(backbone)
        check_choice(Loss, loss=loss)
        if not 0 < momentum <= 1:
            raise InvalidInputError(f"Expected `momentum` to be above 0 and at most 1, but got {momentum}.")
        channels, side, padding = _check_maps(backbone)
        self.loss_name, self.padding = loss, padding
        generator = torch.Generator().manual_seed(seed)
        self.blocks = nn.ModuleList(
            ConvBlock(n_in, _CHANNELS, padding=padding, pool=True, generator=generator)
            for n_in in (2 * channels, _CHANNELS)
        )
        for block in self.blocks:
            block.norm.momentum = momentum  # type: ignore[union-attr]
        last = _after_block(_after_block(side, padding), padding)
        self.hidden = linear_layer(_CHANNELS * last * last, _HIDDEN, generator)
        self.score = linear_layer(_HIDDEN, 1, generator)

    def loss(self, tasks: TaskBatch, query_y: Int[Tensor, "T M"]) -> Float[Tensor, " T"]:
        """Mean squared error of the relation scores over queries and classes, or cross-entropy of the queries."""
        scores = self.scores(tasks)
        if self.loss_name == "softmax":
            return query_nll(self._log_prob(scores, tasks), tasks, query_y)
        weight = (tasks.query_weight[..., None] * tasks.class_mask[:, None, :]).to(scores.dtype)
        error = (scores.sigmoid() - one_hot(query_y, tasks.n_way, scores.dtype).mT).square()
        return (weight * error).sum((1, 2)) / weight.sum((1, 2))

    def predict(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Log-probabilities of the classes."""
        return self._log_prob(self.scores(tasks), tasks)

    def _log_prob(self, scores: Float[Tensor, "T M C"], tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        if self.loss_name == "mse":
            scores = F.logsigmoid(scores)
        return class_log_softmax(scores, tasks.class_mask)

    def scores(self, tasks: TaskBatch) -> Float[Tensor, "T M C"]:
        """Relation score of every query and class, before the sigmoid."""
        support, query = self.features(tasks)
        weight = support_one_hot(tasks, support.dtype)
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-6)
        prototypes = (weight @ support.flatten(2)).unflatten(2, support.shape[2:])
        with self.network_precision(query.device):
            maps = self._relation_maps(prototypes, query)
        relation = F.relu(self.hidden(maps.flatten(1).to(query.dtype)))
        return self.score(relation).reshape(*query.shape[:2], tasks.n_way)

    def _relation_maps(
        self, prototypes: Float[Tensor, "T C c h w"], query: Float[Tensor, "T M c h w"]
    ) -> Float[Tensor, "TMC d h2 w2"]:
        first, second = self.blocks
        assert isinstance(first, ConvBlock)
        of_class, of_query = first.conv.weight.chunk(2, 1)
        from_class = F.conv2d(prototypes.flatten(0, 1), of_class, first.conv.bias, padding=self.padding)
        from_query = F.conv2d(query.flatten(0, 1), of_query, padding=self.padding)
        from_class, from_query = (
            z.unflatten(0, x.shape[:2]) for z, x in ((from_class, prototypes), (from_query, query))
        )
        pairs = (from_class[:, None] + from_query[:, :, None]).flatten(0, 2)
        # backbones without normalisation: statistics per task
        n_tasks = 1 if getattr(self.backbone, "norm", "task") == "episode" else len(query)
        maps = first.norm(pairs, n_tasks)
        return second(F.relu(F.max_pool2d(maps, 2)), n_tasks)


def _after_block(side: int, padding: int) -> int:
    return (side + 2 * padding - 2) // 2


def _check_maps(backbone: Backbone) -> tuple[int, int, int]:
    """Return channels and side of the feature maps, and the padding of the relation network."""
    shape = tuple(backbone.out_shape)
    if len(shape) != 3:
        raise InvalidInputError(
            f"Expected a backbone that returns feature maps (c, h, w), but got one of features {shape}. RelationNet "
            "compares maps: use backbone=conv4np, or conv4snp for small images; for embeddings use dkt or mirror_gp."
        )
    channels, *sides = shape
    side = min(sides)
    padding = 1 if side < 10 else 0
    if sides[0] != sides[1] or _after_block(_after_block(side, padding), padding) < 1:
        raise InvalidInputError(
            f"Expected square feature maps of at least 4 x 4, but got {sides[0]} x {sides[1]}. Use larger images: "
            "conv4np needs 22 x 22."
        )
    return channels, side, padding

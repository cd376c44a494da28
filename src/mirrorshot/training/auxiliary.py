"""Auxiliary classification loss: the training class of each item of a step.

A cosine classifier over all training classes (as in Baseline++, scale 10) takes the features that the step computes for
its tasks. Its cross-entropy is added to the loss of the tasks; the classifier is discarded after training. Episodic
methods never see the labels of training classes.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mirrorshot.methods import FewShotMethod, PretrainedMethod
from mirrorshot.methods.baseline_pp import CosineClassifier
from mirrorshot.training.config import Config
from mirrorshot.training.stream import Stream, TaskStream
from mirrorshot.types import InvalidInputError

_SCALE = 10.0


class AuxiliaryLoss(nn.Module):
    """Cross-entropy of a classifier over all training classes, on the features of the tasks of a step.

    The method must be episodic and embed all items of a step at once; `stream` provides its training data.
    """

    def __init__(self, method: FewShotMethod, stream: Stream, config: Config) -> None:
        super().__init__()
        if isinstance(method, PretrainedMethod):
            raise InvalidInputError(
                f"Expected auxiliary_weight=0 for {config.method}, which learns to classify all training classes "
                f"anyway, but got {config.auxiliary_weight}."
            )
        assert isinstance(stream, TaskStream)
        self.stream, self.smoothing, self.name = stream, config.auxiliary_smoothing, config.method
        generator = torch.Generator().manual_seed(zlib.crc32(f"{config.seed} auxiliary".encode()))
        n_features, n_classes = method.backbone.out_features, stream.n_classes
        self.classifier = CosineClassifier(n_features, n_classes, scale=_SCALE, generator=generator)
        self.to(stream.device)

    def forward(
        self, heard: list[Tensor], rows: Int[Tensor, "T P"], draws: Float[Tensor, "T P r"]
    ) -> Float[Tensor, ""]:
        """Return this process's part of the mean over tasks of their means over items, without padding."""
        if len(heard) != 1 or heard[0].shape[:2] != rows.shape:
            raise InvalidInputError(
                f"Expected auxiliary_weight=0 for {self.name}, which does not compute the features of a step's items "
                "once for all tasks. Set it to 0, or use a method with one network for all tasks."
            )
        logits = self.classifier(heard[0].flatten(2).flatten(0, 1))
        each = nn.functional.cross_entropy(
            logits,
            self.stream.classes(rows, draws).flatten(),
            ignore_index=-1,
            reduction="none",
            label_smoothing=self.smoothing,
        ).view(rows.shape)
        return (each.sum(1) / (rows >= 0).sum(1)).sum() / self.stream.groups_per_step


@contextmanager
def listening(method: FewShotMethod) -> Iterator[list[Tensor]]:
    """Collect the features that the method computes."""
    heard: list[Tensor] = []
    method.listener = heard.append
    try:
        yield heard
    finally:
        method.listener = None
